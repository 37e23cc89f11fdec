//! What a service manager is told while a recording runs (sd_notify(3)). Without one, nothing happens.

use std::cell::Cell;
use std::time::{Duration, Instant};

use sd_notify::NotifyState;

/// How often the status changes.
const INTERVAL: Duration = Duration::from_secs(2);

/// Tells a service manager how far it is.
#[derive(Debug)]
pub struct Notifier {
    /// Whether there is one.
    is_heard: bool,
    last: Cell<Option<Instant>>,
}

impl Notifier {
    /// For the manager that has started this process, if one has.
    pub fn new() -> Self {
        Self { is_heard: std::env::var_os("NOTIFY_SOCKET").is_some(), last: Cell::new(None) }
    }

    /// Recording has begun: whoever waits for the service goes on.
    pub fn ready(&self, status: &str) {
        self.tell(&[NotifyState::Ready, NotifyState::Status(status)]);
    }

    /// It still waits for something to record: the manager is not to give up on it. To be said every few seconds.
    pub fn waiting(&self, status: &str) {
        const MINUTE: u32 = 60_000_000;
        self.tell(&[NotifyState::ExtendTimeoutUsec(MINUTE), NotifyState::Status(status)]);
    }

    /// Says how far it is, now and then. `status` is asked for only if it is told.
    pub fn progress(&self, status: impl FnOnce() -> String) {
        if self.is_heard && self.last.get().is_none_or(|last| last.elapsed() >= INTERVAL) {
            self.tell(&[NotifyState::Status(&status())]);
        }
    }

    /// It goes on: a manager that has not heard it for long starts it again (`WatchdogSec=`).
    pub fn is_alive(&self) {
        if self.is_heard {
            let _ = sd_notify::notify(&[NotifyState::Watchdog]);
        }
    }

    /// It is ending: the files are being written.
    pub fn stopping(&self, status: &str) {
        self.tell(&[NotifyState::Stopping, NotifyState::Status(status)]);
    }

    fn tell(&self, what: &[NotifyState<'_>]) {
        if self.is_heard {
            self.last.set(Some(Instant::now()));
            // A manager that does not listen any more is no reason to stop.
            let _ = sd_notify::notify(what);
        }
    }
}

impl Default for Notifier {
    fn default() -> Self {
        Self::new()
    }
}
