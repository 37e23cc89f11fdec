//! Gives up privileges that a running recording no longer needs.

use std::io;

use super::{Capabilities, Capability, permitted, set};

/// The capabilities that a recording needs until its end, if it has them: it reads the names of functions from the
/// target's memory, and code from the files of its mappings, also of later ones.
const TO_THE_END: [Capability; 3] = [Capability::SysPtrace, Capability::CheckpointRestore, Capability::DacReadSearch];

/// The capabilities that are also kept while something is still to be attached.
pub const TO_ATTACH: [Capability; 2] = [Capability::Bpf, Capability::Perfmon];

/// Capabilities that may turn out to be needed after all: some kernels want `CAP_BPF` for maps that are open already.
/// `CAP_SYS_ADMIN` replaces it on kernels without `CAP_BPF`, or where a setting wants it for perf events.
const IF_NEEDED: [Capability; 2] = [Capability::Bpf, Capability::SysAdmin];

/// Gives up the capabilities that are not needed after everything is attached, for this thread and the threads that it
/// starts from now on; they cannot come back. `more` is kept in addition. `works` tells whether the recording can do
/// its remaining work without the others: if not, some of them stay.
///
/// # Errors
/// The errors of capset(2).
pub fn drop_unneeded(more: &[Capability], mut works: impl FnMut() -> bool) -> io::Result<()> {
    let had = permitted()?;
    let mut kept = Capabilities(had.0 & (Capabilities::of(&TO_THE_END).0 | Capabilities::of(more).0));
    // First only the effective set: a capability that is still permitted can be restored.
    set(kept, had)?;
    for needed in IF_NEEDED {
        if works() {
            break;
        }
        kept.0 |= had.0 & Capabilities::of(&[needed]).0;
        set(kept, had)?;
    }
    set(kept, kept)?;
    // SAFETY: prctl(2) with plain integers. It only forbids that a program which this one starts has more.
    unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    Ok(())
}

/// Gives up all capabilities of this thread but these. It allocates nothing.
///
/// # Errors
/// The errors of capget(2) and capset(2).
pub fn keep_only(capabilities: Capabilities) -> io::Result<()> {
    let kept = Capabilities(permitted()?.0 & capabilities.0);
    set(kept, kept)
}

/// Gives up all capabilities of this thread. They cannot come back, unless the thread executes another program.
///
/// # Errors
/// The errors of capset(2).
pub fn give_up_all() -> io::Result<()> {
    set(Capabilities::default(), Capabilities::default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bits() -> u64 {
        permitted().unwrap().0
    }

    #[test]
    fn a_thread_loses_what_it_does_not_need() {
        // Each thread has its own capabilities: the other threads keep theirs.
        let before = bits();
        let in_thread = |works: bool| {
            std::thread::spawn(move || {
                drop_unneeded(&[], || works).unwrap();
                (bits(), Capabilities::effective().0)
            })
        };
        let to_the_end = Capabilities::of(&TO_THE_END).0;
        assert_eq!(in_thread(true).join().unwrap(), (before & to_the_end, before & to_the_end));
        let if_needed = Capabilities::of(&IF_NEEDED).0;
        let all = before & (to_the_end | if_needed);
        assert_eq!(in_thread(false).join().unwrap(), (all, all));
        assert_eq!(bits(), before);
    }

    #[test]
    fn no_more_is_kept_than_it_takes() {
        let before = bits();
        let bpf = Capabilities::of(&[Capability::Bpf]).0;
        let kept = std::thread::spawn(move || {
            drop_unneeded(&[], || Capabilities::effective().has(Capability::Bpf)).unwrap();
            bits()
        });
        // Without the first capability nothing works, so the other one is tried as well.
        let if_needed = if before & bpf == 0 { Capabilities::of(&IF_NEEDED).0 } else { bpf };
        assert_eq!(kept.join().unwrap(), before & (Capabilities::of(&TO_THE_END).0 | if_needed));
    }
}
