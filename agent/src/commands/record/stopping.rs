//! What ends a recording.

use std::time::Instant;

use tokio::io::unix::AsyncFd;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::commands::exit::CommandError;
use crate::target::Process;

/// Why recording ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    Signal,
    Duration,
    TargetExited,
    /// It cost the process more than it may.
    TooDear,
    /// The memory that lj-trace may use is used up.
    OutOfMemory,
}

impl Stop {
    /// In a few words.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Signal => "stopped by a signal",
            Self::Duration => "the time is over",
            Self::TargetExited => "the process has exited",
            Self::TooDear => "stopped since it cost the process too much",
            Self::OutOfMemory => "stopped for want of memory",
        }
    }
}

/// Waits for whatever ends a recording.
pub struct Stopping {
    interrupt: Signal,
    terminate: Signal,
    /// The exits of the processes; none where the kernel does not tell.
    exits: Vec<Option<AsyncFd<std::os::fd::OwnedFd>>>,
}

impl Stopping {
    /// Begins to listen: from here on no signal ends lj-trace before its files are complete. All of `processes` have to
    /// exit for that to end the recording. To be called within a runtime.
    ///
    /// # Errors
    /// Signals cannot be listened to.
    pub fn new<'a>(processes: impl Iterator<Item = &'a Process>) -> Result<Self, CommandError> {
        let listen = |kind| signal(kind).map_err(|error| CommandError::internal(&error));
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
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
        let stop = tokio::select! {
            _ = self.interrupt.recv() => Stop::Signal,
            _ = self.terminate.recv() => Stop::Signal,
            () = exit => Stop::TargetExited,
            () = deadline => Stop::Duration,
        };
        // After any other end, a signal that comes late is no second one: what was recorded is still written.
        if stop == Stop::Signal {
            exit_at_next_signal();
        }
        stop
    }
}

/// From here on a second SIGINT or SIGTERM ends lj-trace at once.
fn exit_at_next_signal() {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the default action is a valid disposition, and nothing of ours waits for these signals any more.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}
