//! x86-64.

use aya_ebpf::bindings::pt_regs;
use lj_trace_common::event::SampledRegisters;
use lj_trace_common::memory::ReadMemory as _;
use lj_trace_common::turn::LoopCall;

use crate::memory::UserMemory;

/// The registers of a sample.
#[inline(always)]
pub const fn registers(r: &pt_regs) -> SampledRegisters {
    [
        r.rax, r.rdx, r.rcx, r.rbx, r.rsi, r.rdi, r.rbp, r.rsp, r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15,
        r.rip,
    ]
}

/// The stack pointer.
#[inline(always)]
pub const fn stack_pointer(r: &pt_regs) -> u64 {
    r.rsp
}

/// The instruction pointer.
#[inline(always)]
pub const fn program_counter(r: &pt_regs) -> u64 {
    r.rip
}

/// The first four arguments of a function, at its entry (System V psABI, 3.2.3).
#[inline(always)]
pub const fn arguments(r: &pt_regs) -> [u64; 4] {
    [r.rdi, r.rsi, r.rdx, r.rcx]
}

/// What a function has returned.
#[inline(always)]
pub const fn result(r: &pt_regs) -> u64 {
    r.rax
}

/// The general register with this number, or `otherwise` if there is none. It does not return an option: for options,
/// the compiler's code is longer by a twentieth.
#[inline(always)]
pub fn numbered(r: &pt_regs, number: u8, otherwise: impl FnOnce() -> u64) -> u64 {
    match number {
        0 => r.rax,
        1 => r.rdx,
        2 => r.rcx,
        3 => r.rbx,
        4 => r.rsi,
        5 => r.rdi,
        6 => r.rbp,
        7 => r.rsp,
        8 => r.r8,
        9 => r.r9,
        10 => r.r10,
        11 => r.r11,
        12 => r.r12,
        13 => r.r13,
        14 => r.r14,
        15 => r.r15,
        _ => otherwise(),
    }
}

/// The callee-saved registers (System V psABI, 3.2.1).
#[inline(always)]
pub const fn kept(r: &pt_regs) -> [u64; 6] {
    [r.rbx, r.rbp, r.r12, r.r13, r.r14, r.r15]
}

/// The return address, at every point with a return probe: it is on top of the stack. 0 if it cannot be read.
#[inline(always)]
pub fn return_address(r: &pt_regs) -> u64 {
    UserMemory.read::<u64>(r.rsp).unwrap_or(0)
}

/// Whether these are registers of the kernel's code: the kernel runs in ring 0.
#[inline(always)]
pub const fn is_kernel(r: &pt_regs) -> bool {
    r.cs & 3 == 0
}

/// The number of the thread's current system call, by the registers with which the thread entered the kernel.
#[inline(always)]
pub const fn call_number(r: &pt_regs) -> u64 {
    r.orig_rax
}

/// Whether the system call with this number waits for events (arch/x86/entry/syscalls/syscall_64.tbl).
#[inline(always)]
pub const fn loop_wait(number: u64) -> LoopCall {
    match number {
        // epoll_wait, epoll_pwait, epoll_pwait2
        232 | 281 | 441 => LoopCall::Epoll,
        // poll, select, pselect6, ppoll
        7 | 23 | 270 | 271 => LoopCall::Other,
        // restart_syscall
        219 => LoopCall::Restart,
        _ => LoopCall::None,
    }
}
