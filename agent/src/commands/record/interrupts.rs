//! SIGINT, SIGTERM, SIGHUP and SIGQUIT: the first signal asks lj-trace to finish, the second ends it at once.

use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::Duration;

use lj_trace_engine::bounded::now;

use crate::exit::CommandError;

/// The eventfd that the handler makes readable; -1 before there is one.
static EVENT: AtomicI32 = AtomicI32::new(-1);

/// When the first signal came, in nanoseconds of the monotonic clock; 0 before.
static FIRST: AtomicU64 = AtomicU64::new(0);

/// The number of the first signal; 0 before.
static SIGNAL: AtomicI32 = AtomicI32::new(0);

/// Signals this soon after the first belong to it: timeout(1) sends its signal to the process, and to the process group
/// as well.
const SAME: Duration = Duration::from_millis(200);

/// The signals that end a recording: Ctrl-C, a service manager, a closed terminal, and Ctrl-\.
const SIGNALS: [libc::c_int; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

/// Listens for the signals that end a recording. They work whatever lj-trace is doing: a stalled output may block
/// everything else, but not these.
#[derive(Debug)]
pub struct Interrupts(OwnedFd);

impl Interrupts {
    /// Starts listening: from here on, the first signal does not end lj-trace before its files are complete.
    ///
    /// # Errors
    /// The system has no more descriptors.
    pub fn listen() -> Result<Self, CommandError> {
        Self::listen_to(&SIGNALS)
    }

    /// The same, for callers in which SIGHUP means something else.
    ///
    /// # Errors
    /// As [`Self::listen`].
    pub fn listen_but_for_hangup() -> Result<Self, CommandError> {
        let signals: Vec<_> = SIGNALS.into_iter().filter(|signal| *signal != libc::SIGHUP).collect();
        Self::listen_to(&signals)
    }

    fn listen_to(signals: &[libc::c_int]) -> Result<Self, CommandError> {
        let failed = || CommandError::internal(&io::Error::last_os_error());
        // SAFETY: eventfd(2) takes two plain integers.
        let event = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if event < 0 {
            return Err(failed());
        }
        // SAFETY: the kernel has just given us this descriptor, and nobody else closes it.
        let event = unsafe { OwnedFd::from_raw_fd(event) };
        EVENT.store(event.as_raw_fd(), Ordering::SeqCst);
        FIRST.store(0, Ordering::SeqCst);
        SIGNAL.store(0, Ordering::SeqCst);
        for signal in signals.iter().copied().filter(|&signal| signal != libc::SIGHUP || !is_ignored(signal)) {
            // SAFETY: all zeros are a valid `sigaction`: no flags, no signals to block.
            let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
            action.sa_sigaction = heard as extern "C" fn(libc::c_int) as libc::sighandler_t;
            action.sa_flags = libc::SA_RESTART;
            // SAFETY: `action` is initialized, and its handler does only what a signal handler may.
            if unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) } != 0 {
                return Err(failed());
            }
        }
        Ok(Self(event))
    }

    /// Waits up to `time` for a signal. Returns whether there has been one, now or before.
    pub fn heard_within(&self, time: Duration) -> bool {
        let mut event = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let milliseconds = i32::try_from(time.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: it is given one valid `pollfd`. The signal itself may interrupt it, and its handler has run then.
        unsafe { libc::poll(&raw mut event, 1, milliseconds) };
        // SAFETY: as above.
        unsafe { libc::poll(&raw mut event, 1, 0) == 1 }
    }

    /// A descriptor that becomes readable with the first signal, and stays readable.
    ///
    /// # Errors
    /// The system has no more descriptors.
    pub fn event(&self) -> Result<OwnedFd, CommandError> {
        self.0.try_clone().map_err(|error| CommandError::internal(&error))
    }
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        EVENT.store(-1, Ordering::SeqCst);
        default_actions();
    }
}

/// Notes the first signal. Any later signal ends lj-trace at once.
extern "C" fn heard(signal: libc::c_int) {
    // This is one call of clock_gettime(2), which is safe in a signal handler.
    let now = now();
    match FIRST.compare_exchange(0, now, Ordering::SeqCst, Ordering::SeqCst) {
        Ok(_) => {
            SIGNAL.store(signal, Ordering::SeqCst);
            let one = 1_u64;
            // SAFETY: write(2) is safe in a signal handler, and `one` is eight readable bytes. Without an event there is
            // nobody to tell: the descriptor is -1.
            unsafe { libc::write(EVENT.load(Ordering::SeqCst), (&raw const one).cast(), size_of::<u64>()) };
        }
        Err(first) if u128::from(now.saturating_sub(first)) < SAME.as_nanos() => {}
        Err(_) => {
            default_actions();
            // SAFETY: raise(3) is safe in a signal handler. The signal is blocked here, and ends the process on the way out.
            unsafe { libc::raise(signal) };
        }
    }
}

/// The first signal that asked lj-trace to end; 0 before there was one.
pub fn first_signal() -> libc::c_int {
    SIGNAL.load(Ordering::SeqCst)
}

/// Whether a signal is ignored: nohup(1) makes programs continue after their terminal is closed.
fn is_ignored(signal: libc::c_int) -> bool {
    // SAFETY: all zeros are a valid `sigaction`, which the call overwrites, and nothing is changed.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &raw mut action) == 0 && action.sa_sigaction == libc::SIG_IGN
    }
}

fn default_actions() {
    for signal in SIGNALS.into_iter().filter(|&signal| !is_ignored(signal)) {
        // SAFETY: the default action is a valid disposition, and signal(2) is safe in a signal handler.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_signal_is_heard_and_stays_so() {
        let interrupts = Interrupts::listen().unwrap();
        assert!(!interrupts.heard_within(Duration::ZERO));
        // SAFETY: the handler is in place.
        unsafe { libc::raise(libc::SIGTERM) };
        assert!(interrupts.heard_within(Duration::from_secs(5)) && interrupts.heard_within(Duration::ZERO));
        // A signal that comes with it changes nothing. A later signal would end this process, so the test moves the
        // time of the first one into the future, however long this thread was kept from running.
        FIRST.store(u64::MAX, Ordering::SeqCst);
        // SAFETY: as above.
        unsafe { libc::raise(libc::SIGINT) };
    }
}
