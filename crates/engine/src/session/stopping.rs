//! What ends a recording.

use std::os::fd::OwnedFd;
use std::time::Instant;

use lj_trace_process::Process;
use tokio::io::unix::AsyncFd;

use crate::error::EngineError;
use crate::recording::stop::Stop;

/// Waits for whatever ends a recording.
pub struct Stopping {
    interrupt: AsyncFd<OwnedFd>,
    /// The exits of the processes; none where the kernel does not tell.
    exits: Vec<Option<AsyncFd<OwnedFd>>>,
}

impl Stopping {
    /// `interrupt` becomes readable if somebody wants it to end. All of `processes` have to exit for that to end the
    /// recording. To be called within a runtime.
    ///
    /// # Errors
    /// Signals cannot be listened to.
    pub fn new<'a>(interrupt: OwnedFd, processes: impl Iterator<Item = &'a Process>) -> Result<Self, EngineError> {
        // SAFETY: an owned descriptor stays open, and the same, until the event drops it.
        let interrupt = unsafe { AsyncFd::register(interrupt) }.map_err(std::io::Error::from);
        Ok(Self {
            interrupt: interrupt.map_err(|error| EngineError::internal(&error))?,
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
