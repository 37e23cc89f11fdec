//! Keeps lj-trace alive while it measures breakpoints and watchpoints on itself. If the kernel does not recognize a
//! trap as theirs, it sends a SIGTRAP, which ends a process without a handler. On virtual machines that happens
//! ([`Harm::Ends`](super::harm::Harm::Ends)).

use std::cell::Cell;
use std::io;
use std::sync::Once;

use lj_trace_process::Maps;

use crate::arch::next_instruction;

/// A SIGTRAP that a thread has received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Trap {
    /// `si_code` of sigaction(2): `SI_KERNEL` (128) for a breakpoint, `TRAP_HWBKPT` (4) for a watchpoint, `TRAP_TRACE`
    /// (2) for a single step, `TRAP_BRKPT` (1) for a trap of unknown origin.
    code: i32,
    /// The address of the instruction that the thread continues with.
    next: u64,
}

/// A trap of a probe or a watchpoint that the kernel did not recognize: it would have ended a process without a
/// handler.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the kernel took a trap for somebody else's: SIGTRAP with code {code} before {place}")]
struct Mistaken {
    /// As in [`Trap`].
    code: i32,
    /// The instruction after the trap: a place in a file, or an address.
    place: String,
}

/// Whether this is an error of [`survive`] about a SIGTRAP.
pub fn is_mistaken(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|error| error.is::<Mistaken>())
}

thread_local! {
    /// The trap that this thread has received; the outer [`None`] means that the thread measures nothing.
    static TRAPS: Cell<Option<Option<Trap>>> = const { Cell::new(None) };
}

/// Runs `measure`, which may trap on this thread. The trapping instructions must be ones after which the thread can
/// safely continue.
///
/// # Errors
/// Those of `measure`; or a SIGTRAP came, whatever `measure` returned.
pub fn survive<T>(measure: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    static HANDLED: Once = Once::new();
    HANDLED.call_once(handle);
    TRAPS.set(Some(None));
    let measured = measure();
    match TRAPS.take().flatten() {
        None => measured,
        Some(Trap { code, next }) => {
            let maps = Maps::read(std::process::id()).ok();
            let mapping = maps.as_ref().and_then(|maps| maps.find(next));
            let place =
                mapping.map(|mapping| format!("{:#x} of {}", next - mapping.start + mapping.offset, mapping.path));
            let place = place.unwrap_or_else(|| format!("{next:#x}"));
            Err(io::Error::other(Mistaken { code, place }))
        }
    }
}

fn handle() {
    // SAFETY: all zeros are a valid `sigaction`: no flags, no signals to block.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction =
        trapped as extern "C" fn(libc::c_int, *const libc::siginfo_t, *const libc::c_void) as libc::sighandler_t;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
    // SAFETY: `action` is initialized, and its handler does only what a signal handler may. Without it a trap ends the
    // process, as it always did.
    unsafe { libc::sigaction(libc::SIGTRAP, &raw const action, std::ptr::null_mut()) };
}

/// Notes the signal. In a thread that measures nothing, the signal acts as if there were no handler.
extern "C" fn trapped(signal: libc::c_int, info: *const libc::siginfo_t, context: *const libc::c_void) {
    if TRAPS.get().is_none() {
        // SAFETY: both are safe in a signal handler. The signal is blocked here and ends the process on the way out.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
        return;
    }
    // SAFETY: the kernel passes both to handlers with `SA_SIGINFO`.
    let (info, context) = unsafe { (&*info, &*context.cast::<libc::ucontext_t>()) };
    let next = next_instruction(context);
    TRAPS.set(Some(Some(Trap { code: info.si_code, next })));
}

// On arm64, a program stays at a breakpoint of its own, since the kernel continues there.
#[cfg(target_arch = "x86_64")]
#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::Command;

    use super::*;

    fn breakpoint() {
        // SAFETY: it changes nothing, and a SIGTRAP is what this is about.
        unsafe { std::arch::asm!("int3", options(nostack, nomem)) };
    }

    #[test]
    fn a_trap_is_an_error() {
        assert_eq!(survive(|| Ok(1)).unwrap(), 1);
        let trapped = survive(|| {
            breakpoint();
            Ok(())
        });
        let said = trapped.unwrap_err().to_string();
        assert!(said.contains("code 128"), "{said}");
        assert_eq!(survive(|| Ok(2)).unwrap(), 2);
        let refused = survive(|| Err::<(), _>(io::Error::from_raw_os_error(libc::EPERM)));
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EPERM));
    }

    #[test]
    fn a_trap_elsewhere_is_the_end() {
        const CHILD: &str = "LJ_TRACE_TEST_TRAPPED";
        if std::env::var_os(CHILD).is_some() {
            let _ = survive(|| Ok(()));
            breakpoint();
            return;
        }
        let mut again = Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", "trapped::tests::a_trap_elsewhere_is_the_end"]).env(CHILD, "1");
        assert_eq!(again.output().unwrap().status.signal(), Some(libc::SIGTRAP));
    }
}
