//! Status reports to a service manager during a recording (sd_notify(3)). Without a manager, nothing happens.

use std::cell::Cell;
use std::time::{Duration, Instant};

use sd_notify::NotifyState;

/// The least time between two updates of the status.
const INTERVAL: Duration = Duration::from_secs(2);

/// Reports the progress to a service manager.
#[derive(Debug)]
pub struct Notifier {
    /// Whether there is a service manager.
    is_heard: bool,
    last: Cell<Option<Instant>>,
}

impl Notifier {
    /// A notifier for the manager that has started this process, if any has.
    pub fn new() -> Self {
        Self { is_heard: std::env::var_os("NOTIFY_SOCKET").is_some(), last: Cell::new(None) }
    }

    /// Reports that recording has begun: units that wait for this service may start.
    pub fn ready(&self, status: &str) {
        self.tell(&[NotifyState::Ready, NotifyState::Status(status)]);
    }

    /// Reports that there is nothing to record yet, so that the manager does not give up. To be called every few
    /// seconds.
    pub fn waiting(&self, status: &str) {
        const MINUTE: u32 = 60_000_000;
        self.tell(&[NotifyState::ExtendTimeoutUsec(MINUTE), NotifyState::Status(status)]);
    }

    /// Reports the progress now and then. `status` is called only when a report is due.
    pub fn progress(&self, status: impl FnOnce() -> String) {
        if self.is_heard && self.last.get().is_none_or(|last| last.elapsed() >= INTERVAL) {
            self.tell(&[NotifyState::Status(&status())]);
        }
    }

    /// Reports that lj-trace is alive: without this report, the manager restarts the service after a while
    /// (`WatchdogSec=`).
    pub fn is_alive(&self) {
        if self.is_heard {
            let _ = sd_notify::notify(&[NotifyState::Watchdog]);
        }
    }

    /// Reports that the recording ends and the files are being written.
    pub fn stopping(&self, status: &str) {
        self.tell(&[NotifyState::Stopping, NotifyState::Status(status)]);
    }

    fn tell(&self, what: &[NotifyState<'_>]) {
        if self.is_heard {
            self.last.set(Some(Instant::now()));
            // A manager that no longer listens is no reason to stop.
            let _ = sd_notify::notify(what);
        }
    }
}

impl Default for Notifier {
    fn default() -> Self {
        Self::new()
    }
}
