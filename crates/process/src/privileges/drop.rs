//! Gives up privileges that a running recording no longer needs.

use std::io;

use super::{Capabilities, Capability, permitted, set};

/// What a recording needs to its end, as far as it has it: names of functions are read from the target's memory, code
/// from the files of its mappings, also of those that come later.
const TO_THE_END: [Capability; 3] = [Capability::SysPtrace, Capability::CheckpointRestore, Capability::DacReadSearch];

/// What is kept beside that where something is still to be attached.
pub const TO_ATTACH: [Capability; 2] = [Capability::Bpf, Capability::Perfmon];

/// What may turn out to be needed all the same: some kernels want `CAP_BPF` for maps that are open already, and
/// `CAP_SYS_ADMIN` does where there is no `CAP_BPF`, or where a setting wants it for perf events.
const IF_NEEDED: [Capability; 2] = [Capability::Bpf, Capability::SysAdmin];

/// Gives up what is not needed once everything is attached, for this thread and those that it starts from here on; what
/// is gone cannot come back. `more` is kept in addition. `works` says whether the recording can do what it still has to
/// without the rest: otherwise some of that stays.
///
/// # Errors
/// What capset(2) says.
pub fn drop_unneeded(more: &[Capability], mut works: impl FnMut() -> bool) -> io::Result<()> {
    let had = permitted()?;
    let mut kept = Capabilities(had.0 & (Capabilities::of(&TO_THE_END).0 | Capabilities::of(more).0));
    // In effect first: what is still permitted can be taken back.
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

/// Gives up all that this thread has but these. It allocates nothing.
///
/// # Errors
/// What capget(2) and capset(2) say.
pub fn keep_only(capabilities: Capabilities) -> io::Result<()> {
    let kept = Capabilities(permitted()?.0 & capabilities.0);
    set(kept, kept)
}

/// Gives up all that this thread has. What is gone cannot come back, unless the thread executes another program.
///
/// # Errors
/// What capset(2) says.
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
        // Threads have capabilities of their own: the others keep theirs.
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
        // Without it nothing works, and the other one is tried as well.
        let if_needed = if before & bpf == 0 { Capabilities::of(&IF_NEEDED).0 } else { bpf };
        assert_eq!(kept.join().unwrap(), before & (Capabilities::of(&TO_THE_END).0 | if_needed));
    }
}
