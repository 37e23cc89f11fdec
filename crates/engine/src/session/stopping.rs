//! What ends a recording.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use lj_trace_process::{Exit, Process};
use tokio::io::unix::AsyncFd;

use crate::error::EngineError;
use crate::recording::stop::Stop;

/// The interval between two checks of a process whose exit the kernel does not report.
const INTERVAL: Duration = Duration::from_secs(1);

/// How to learn of the exit of one process.
enum Exiting {
    /// The descriptor becomes readable at the exit.
    Told(AsyncFd<OwnedFd>),
    /// The process has to be checked from time to time.
    Untold(Process),
    /// The process has exited.
    Gone,
}

impl Exiting {
    fn of(process: &Process) -> Self {
        match process.exit() {
            Exit::Gone => Self::Gone,
            Exit::Untold => Self::Untold(process.clone()),
            Exit::Event(fd) => {
                // SAFETY: an owned descriptor stays open, and the same, until the event drops it.
                unsafe { AsyncFd::register(fd) }.map_or_else(|_| Self::Untold(process.clone()), Self::Told)
            }
        }
    }

    async fn wait(&self) {
        match self {
            Self::Told(fd) => drop(fd.readable().await),
            Self::Untold(process) => {
                while process.is_alive() {
                    tokio::time::sleep(INTERVAL).await;
                }
            }
            Self::Gone => {}
        }
    }
}

/// Waits for whatever ends a recording.
pub struct Stopping {
    interrupt: AsyncFd<OwnedFd>,
    /// The exits of the processes; [`None`] if exits do not end the recording.
    exits: Option<Vec<Exiting>>,
}

impl Stopping {
    /// `interrupt` becomes readable when the user wants to stop. Exits end the recording once all of `processes` have
    /// exited. The caller must be within a runtime.
    ///
    /// # Errors
    /// The system cannot wait for `interrupt`.
    pub fn new<'a>(interrupt: OwnedFd, processes: impl Iterator<Item = &'a Process>) -> Result<Self, EngineError> {
        // SAFETY: an owned descriptor stays open, and the same, until the event drops it.
        let interrupt = unsafe { AsyncFd::register(interrupt) }.map_err(std::io::Error::from);
        Ok(Self {
            interrupt: interrupt.map_err(|error| EngineError::internal(&error))?,
            exits: Some(processes.map(Exiting::of).collect()),
        })
    }

    /// From now on, exits do not end the recording.
    pub fn ignore_exits(&mut self) {
        self.exits = None;
    }

    /// Waits for the end of the recording, at most until `deadline`.
    pub async fn next(&mut self, deadline: Option<Instant>) -> Stop {
        let exit = async {
            match &self.exits {
                Some(exits) => {
                    for exit in exits {
                        exit.wait().await;
                    }
                }
                None => std::future::pending().await,
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

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::process::{Child, Command};

    use super::*;

    fn sleeping() -> (Child, Process) {
        let child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::open(child.id()).unwrap();
        (child, process)
    }

    fn end(child: &mut Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// What ends a recording of `processes` with this duration, if the test ends the processes in `later` while it runs.
    fn outcome(processes: &[Process], later: &mut [Child], duration: Duration) -> Stop {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (interrupt, _other) = UnixStream::pair().unwrap();
            let mut stopping = Stopping::new(interrupt.into(), processes.iter()).unwrap();
            later.iter_mut().for_each(end);
            stopping.next(Instant::now().checked_add(duration)).await
        })
    }

    #[test]
    fn an_exit_ends_it_whenever_it_happens() {
        let ((mut early, first), (late, second)) = (sleeping(), sleeping());
        end(&mut early);
        let long = Duration::from_secs(5);
        assert_eq!(outcome(std::slice::from_ref(&first), &mut [], long), Stop::TargetExited);
        assert_eq!(outcome(&[first, second], &mut [late], long), Stop::TargetExited);
    }

    #[test]
    fn one_that_runs_does_not() {
        let ((mut early, first), (mut late, second)) = (sleeping(), sleeping());
        end(&mut early);
        // An exit is reported at once.
        assert_eq!(outcome(&[first, second], &mut [], Duration::from_millis(300)), Stop::Duration);
        end(&mut late);
    }

    #[tokio::test]
    async fn an_exit_that_is_not_told_is_found() {
        let (mut child, process) = sleeping();
        let exiting = Exiting::Untold(process);
        end(&mut child);
        tokio::time::timeout(5 * INTERVAL, exiting.wait()).await.unwrap();
    }
}
