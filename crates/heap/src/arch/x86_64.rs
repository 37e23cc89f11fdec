//! x86-64.

use lj_trace_common::event::SampledRegisters;

/// The registers of a stopped thread, in DWARF's order.
pub fn sampled(user: &libc::user_regs_struct) -> SampledRegisters {
    [
        user.rax, user.rdx, user.rcx, user.rbx, user.rsi, user.rdi, user.rbp, user.rsp, user.r8, user.r9, user.r10,
        user.r11, user.r12, user.r13, user.r14, user.r15, user.rip,
    ]
}
