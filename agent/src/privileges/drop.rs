//! Giving up what a running recording does not need any more.

use std::io;

use super::{Capabilities, Capability, permitted, set};

/// What a recording needs to its end, as far as it has it: names of functions are read from the target's memory, code
/// from the files of its mappings, also of those that come later; and outputs may be in anybody's folder.
const TO_THE_END: [Capability; 4] =
    [Capability::SysPtrace, Capability::CheckpointRestore, Capability::DacReadSearch, Capability::DacOverride];

/// Gives up what is not needed once everything is attached, for this thread and those that it starts from here on; what
/// is gone cannot come back. `more` is kept in addition. `works` says whether the recording can still do what it has to
/// without `CAP_BPF` (some kernels want that for maps that are open already): otherwise that stays.
///
/// # Errors
/// What capset(2) says.
pub fn drop_unneeded(more: &[Capability], works: impl FnOnce() -> bool) -> io::Result<()> {
    let had = permitted()?;
    let kept = Capabilities::of(&TO_THE_END).0 | Capabilities::of(more).0;
    let kept = Capabilities(had.0 & kept);
    // In effect first: what is still permitted could be taken back.
    set(kept, had)?;
    let kept = if works() {
        kept
    } else {
        // `CAP_SYS_ADMIN` does where there is no `CAP_BPF`.
        let bpf = Capabilities::of(&[Capability::Bpf]);
        let needed = if had.0 & bpf.0 == 0 { Capabilities::of(&[Capability::SysAdmin]) } else { bpf };
        Capabilities(kept.0 | had.0 & needed.0)
    };
    set(kept, kept)?;
    // SAFETY: prctl(2) with plain integers. It only forbids that a program which this one starts has more.
    unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    Ok(())
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
        let bpf = Capabilities::of(&[Capability::Bpf]).0;
        assert_eq!(in_thread(false).join().unwrap().0 & !to_the_end & !bpf & before & !(1 << 21), 0);
        assert_eq!(bits(), before);
    }
}
