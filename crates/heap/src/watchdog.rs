//! A thread that stops a process and lets it go on: when it is told to, or when the time is over, no matter what other
//! threads do meanwhile. They may wait for a disk, a terminal or a CPU.
//!
//! This thread traces the process. Only the tracer can let the process go on; if the thread ends in any way, the kernel
//! does so.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

use lj_trace_process::Process;
use lj_trace_process::privileges::priority::come_first;

use super::pause::{PauseError, Paused, StoppedThreads};

/// How long a process was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stood {
    /// The duration of the stop.
    pub time: Duration,
    /// Whether the process stayed stopped until it was released, and not only until the time was over.
    pub to_the_end: bool,
}

/// A process that is stopped until the time is over. It goes on when this is dropped.
#[derive(Debug)]
pub struct Watchdog<'scope> {
    release: Option<Sender<()>>,
    thread: Option<ScopedJoinHandle<'scope, Stood>>,
    /// The stopped threads; empty if the process did not stop in time.
    threads: StoppedThreads,
}

impl<'scope> Watchdog<'scope> {
    /// Stops `process` for at most `limit`, from a thread of `scope`.
    ///
    /// # Errors
    /// [`PauseError`] if the process cannot be stopped.
    pub fn stop<'env>(
        scope: &'scope Scope<'scope, 'env>,
        process: &'env Process,
        limit: Duration,
    ) -> Result<Self, PauseError> {
        let (release, released) = mpsc::channel();
        let (tell, told) = mpsc::channel();
        let thread = scope.spawn(move || {
            // The thread must let the process go on as soon as the time is over.
            come_first();
            watch(process, limit, &released, &tell)
        });
        let outcome = told.recv().unwrap_or(Ok(StoppedThreads::new()));
        outcome.map(|threads| Self { release: Some(release), thread: Some(thread), threads })
    }

    /// The threads, with the registers that they stopped with; empty if they did not stop in time.
    pub fn threads(&self) -> &StoppedThreads {
        &self.threads
    }

    /// Lets the process go on, if it does not already; returns how long it was stopped.
    pub fn release(mut self) -> Stood {
        self.release.take();
        let nothing = Stood { time: Duration::ZERO, to_the_end: false };
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or(nothing)
    }
}

/// The body of the thread.
fn watch(
    process: &Process,
    limit: Duration,
    released: &Receiver<()>,
    tell: &Sender<Result<StoppedThreads, PauseError>>,
) -> Stood {
    let start = std::time::Instant::now();
    match Paused::new(process, limit) {
        Ok(Some(paused)) => {
            let _ = tell.send(Ok(paused.threads()));
            let to_the_end = released.recv_timeout(limit.saturating_sub(paused.elapsed()));
            let to_the_end = to_the_end != Err(RecvTimeoutError::Timeout);
            Stood { time: paused.resume(), to_the_end }
        }
        Ok(None) => {
            let time = start.elapsed();
            let _ = tell.send(Ok(StoppedThreads::new()));
            Stood { time, to_the_end: false }
        }
        Err(error) => {
            let _ = tell.send(Err(error));
            Stood { time: Duration::ZERO, to_the_end: false }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    fn state(pid: u32) -> char {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()).unwrap_or('?')
    }

    #[test]
    fn it_lets_go_whatever_the_others_do() {
        let mut child = Command::new("sleep").arg("60").stdout(Stdio::null()).spawn().unwrap();
        let process = Process::open(child.id()).unwrap();
        std::thread::scope(|scope| {
            let limit = Duration::from_millis(100);
            // If ptrace is not permitted, there is nothing to test.
            let Ok(watchdog) = Watchdog::stop(scope, &process, limit) else { return };
            assert_eq!(state(child.id()), 't');
            std::thread::sleep(Duration::from_secs(1));
            assert_ne!(state(child.id()), 't');
            let stood = watchdog.release();
            assert!(!stood.to_the_end && stood.time >= limit && stood.time < Duration::from_secs(1), "{stood:?}");
            let watchdog = Watchdog::stop(scope, &process, Duration::from_secs(60)).unwrap();
            let stood = watchdog.release();
            assert!(stood.to_the_end && stood.time < Duration::from_secs(50), "{stood:?}");
            assert_ne!(state(child.id()), 't');
        });
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
