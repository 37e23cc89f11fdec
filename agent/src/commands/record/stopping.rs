//! What ends a recording.

use std::os::fd::OwnedFd;
use std::time::Instant;

use lj_trace_process::Process;
use tokio::io::unix::AsyncFd;

use super::interrupts::Interrupts;
use crate::exit::CommandError;

/// Why recording ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    Signal,
    Duration,
    TargetExited,
    /// It cost the process more than it may.
    OverBudget,
    /// The memory that lj-trace may use is used up.
    OutOfMemory,
    /// It has executed another program.
    TargetReplaced,
    /// A stream is as large as it may be.
    TooLarge,
    /// Nobody reads the output any more.
    ReaderGone,
}

impl Stop {
    /// In a few words.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Signal => "stopped by a signal",
            Self::Duration => "finished",
            Self::TargetExited => "the process has exited",
            Self::OverBudget => "stopped since it cost the process too much",
            Self::OutOfMemory => "stopped for want of memory",
            Self::TargetReplaced => "the process has executed another program",
            Self::TooLarge => "a stream has the size of --max-size",
            Self::ReaderGone => "nobody reads the output any more",
        }
    }
}

/// Waits for whatever ends a recording.
pub struct Stopping {
    interrupt: AsyncFd<OwnedFd>,
    /// The exits of the processes; none where the kernel does not tell.
    exits: Vec<Option<AsyncFd<OwnedFd>>>,
}

impl Stopping {
    /// All of `processes` have to exit for that to end the recording. To be called within a runtime.
    ///
    /// # Errors
    /// Signals cannot be listened to.
    pub fn new<'a>(
        interrupts: &Interrupts,
        processes: impl Iterator<Item = &'a Process>,
    ) -> Result<Self, CommandError> {
        // SAFETY: an owned descriptor stays open, and the same, until the event drops it.
        let listen = |fd| unsafe { AsyncFd::register(fd) }.map_err(std::io::Error::from);
        let event = interrupts.event().try_clone_to_owned();
        Ok(Self {
            interrupt: event.and_then(listen).map_err(|error| CommandError::internal(&error))?,
            exits: processes
                // SAFETY: an owned descriptor stays open, and the same, until the event drops it.
                .map(|process| process.exit_event().and_then(|fd| unsafe { AsyncFd::register(fd) }.ok()))
                .collect(),
        })
    }

    /// Exits do not end the recording any more.
    pub fn ignore_exits(&mut self) {
        self.exits = vec![None];
    }

    /// Waits, no longer than until `deadline`.
    pub async fn next(&mut self, deadline: Option<Instant>) -> Stop {
        let exit = async {
            for exit in &self.exits {
                match exit {
                    Some(fd) => drop(fd.readable().await),
                    None => std::future::pending().await,
                }
            }
        };
        let deadline = async {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.readable() => Stop::Signal,
            () = exit => Stop::TargetExited,
            () = deadline => Stop::Duration,
        }
    }
}
