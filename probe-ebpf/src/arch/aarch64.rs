//! AArch64 (arm64).
//!
//! The kernel passes `struct user_pt_regs` (`arch/arm64/include/uapi/asm/ptrace.h`), which its own `struct pt_regs`
//! begins with.

use aya_ebpf::bindings::pt_regs;
use lj_trace_common::arch::{code_address, reg};
use lj_trace_common::event::SampledRegisters;
use lj_trace_common::turn::LoopCall;

/// The exception level and stack in `pstate` (`PSR_MODE_MASK`): 0 in user code (`PSR_MODE_EL0t`).
const MODE: u64 = 0xf;

/// The registers of a sample.
#[inline(always)]
pub const fn registers(r: &pt_regs) -> SampledRegisters {
    const { assert!(size_of::<pt_regs>() == size_of::<SampledRegisters>() + 8) };
    // The kernel has the registers in the same order, followed by `pstate`. Copied one by one, they would go through
    // the program's stack, which has no room for them.
    // SAFETY: as many words as the registers have, aligned as they are, of plain data.
    unsafe { (&raw const *r).cast::<SampledRegisters>().read() }
}

/// The stack pointer.
#[inline(always)]
pub const fn stack_pointer(r: &pt_regs) -> u64 {
    r.sp
}

/// The program counter.
#[inline(always)]
pub const fn program_counter(r: &pt_regs) -> u64 {
    r.pc
}

/// The first four arguments of a function, at its entry (AAPCS64, 6.8.2).
#[inline(always)]
pub const fn arguments(r: &pt_regs) -> [u64; 4] {
    [r.regs[0], r.regs[1], r.regs[2], r.regs[3]]
}

/// What a function has returned.
#[inline(always)]
pub const fn result(r: &pt_regs) -> u64 {
    r.regs[0]
}

/// The general register with this number, or `otherwise` if there is none.
#[inline(always)]
pub fn numbered(r: &pt_regs, number: u8, otherwise: impl FnOnce() -> u64) -> u64 {
    // With a variable index, the verifier would see a variable offset from the context, which it refuses.
    match number {
        0 => r.regs[0],
        1 => r.regs[1],
        2 => r.regs[2],
        3 => r.regs[3],
        4 => r.regs[4],
        5 => r.regs[5],
        6 => r.regs[6],
        7 => r.regs[7],
        8 => r.regs[8],
        9 => r.regs[9],
        10 => r.regs[10],
        11 => r.regs[11],
        12 => r.regs[12],
        13 => r.regs[13],
        14 => r.regs[14],
        15 => r.regs[15],
        16 => r.regs[16],
        17 => r.regs[17],
        18 => r.regs[18],
        19 => r.regs[19],
        20 => r.regs[20],
        21 => r.regs[21],
        22 => r.regs[22],
        23 => r.regs[23],
        24 => r.regs[24],
        25 => r.regs[25],
        26 => r.regs[26],
        27 => r.regs[27],
        28 => r.regs[28],
        29 => r.regs[29],
        30 => r.regs[30],
        31 => r.sp,
        _ => otherwise(),
    }
}

/// The callee-saved registers (AAPCS64, 6.1.1).
#[inline(always)]
pub const fn kept(r: &pt_regs) -> [u64; 11] {
    let x = &r.regs;
    [x[19], x[20], x[21], x[22], x[23], x[24], x[25], x[26], x[27], x[28], x[reg::FP]]
}

/// The return address, at every point with a return probe: it is in `x30`. The kernel replaces it after all programs at this
/// point have run (`handler_chain`, `kernel/events/uprobes.c`).
#[inline(always)]
pub const fn return_address(r: &pt_regs) -> u64 {
    code_address(r.regs[30])
}

/// Whether these are registers of the kernel's code: the kernel runs at another exception level than user code.
#[inline(always)]
pub const fn is_kernel(r: &pt_regs) -> bool {
    r.pstate & MODE != 0
}

/// The number of the thread's current system call, by the registers with which the thread entered the kernel: `x8`
/// holds it, and the kernel keeps that. (For `restart_syscall`, the kernel writes it there itself:
/// `setup_restart_syscall`, `arch/arm64/include/asm/syscall.h`.)
#[inline(always)]
pub const fn call_number(r: &pt_regs) -> u64 {
    r.regs[8]
}

/// Whether the system call with this number waits for events (`include/uapi/asm-generic/unistd.h`).
#[inline(always)]
pub const fn loop_wait(number: u64) -> LoopCall {
    match number {
        // epoll_pwait, epoll_pwait2
        22 | 441 => LoopCall::Epoll,
        // pselect6, ppoll
        72 | 73 => LoopCall::Other,
        // restart_syscall
        128 => LoopCall::Restart,
        _ => LoopCall::None,
    }
}
