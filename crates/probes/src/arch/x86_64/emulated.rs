//! Which probed instructions the x86-64 kernel emulates, instead of single-stepping them.
//!
//! After a probe's handler has run, the kernel must still execute the instruction that the breakpoint
//! replaced. Most are copied to another page and single-stepped there, which costs a second trap: some ten
//! times the probe itself in a virtual machine. A few are emulated on the spot
//! (`arch/x86/kernel/uprobes.c`: `branch_setup_xol_ops`, `push_setup_xol_ops`).

/// Whether every kernel that lj-trace runs on (5.17 and later) emulates the instruction with these bytes.
///
/// Only what is certain counts:
/// - `nop` (90), `jmp` (eb, e9), `call rel32` (e8), and all `jcc` (70..7f, 0f 80..8f): since 3.16;
/// - `push` of a general register (50..57, 41 50..57): since 4.16.
///
/// Prefixes are never accepted: `66` on a branch and segment prefixes (among them `notrack` and branch
/// hints) make the kernel refuse the probe, and `66 90` was refused before 6.1. Longer nops (`0f 1f`) are
/// emulated by newer kernels only. `endbr64`, `mov`, `test`, `sub rsp`, `pop`, and `ret` are single-stepped
/// (measured on 6.18).
pub fn is_emulated(instruction: &[u8]) -> bool {
    matches!(
        instruction,
        [0x90 | 0x50..=0x57]
            | [0x41, 0x50..=0x57]
            | [0xeb | 0x70..=0x7f, _]
            | [0xe8 | 0xe9, _, _, _, _]
            | [0x0f, 0x80..=0x8f, _, _, _, _]
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emulates_branches_pushes_and_the_short_nop() {
        for bytes in [
            &[0x90][..],
            &[0x53],                         // push rbx
            &[0x41, 0x57],                   // push r15
            &[0x74, 0x1b],                   // je
            &[0x0f, 0x84, 0, 1, 0, 0],       // je near
            &[0xeb, 0x10],                   // jmp
            &[0xe9, 0x4e, 0xfc, 0xff, 0xff], // jmp near
            &[0xe8, 0, 0, 0, 0],             // call
        ] {
            assert!(is_emulated(bytes), "{bytes:02x?}");
        }
    }

    #[test]
    fn takes_nothing_for_emulated_that_some_kernel_steps_or_refuses() {
        for bytes in [
            &[0xf3, 0x0f, 0x1e, 0xfa][..], // endbr64
            &[0x0f, 0x1f, 0x40, 0x00],     // nopl
            &[0x66, 0x90],                 // xchg ax, ax
            &[0xf3, 0x90],                 // pause
            &[0x41, 0x90],                 // xchg r8, rax
            &[0x48, 0x85, 0xc9],           // test rcx, rcx
            &[0x66, 0xe9, 0, 0, 0, 0],     // jmp with a size prefix
            &[0x2e, 0x74, 0x10],           // je with a hint
            &[0x48, 0x53],                 // push rbx with REX.W
            &[0xff, 0x25, 0, 0, 0, 0],     // jmp [rip]
            &[0xff, 0x75, 0xf8],           // push [rbp-8]
            &[0xe3, 0x02],                 // jrcxz
            &[0x5b],                       // pop rbx
            &[0xc3],                       // ret
            &[0x6a, 0x00],                 // push 0
            &[],
        ] {
            assert!(!is_emulated(bytes), "{bytes:02x?}");
        }
    }
}
