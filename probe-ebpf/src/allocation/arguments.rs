//! The allocator's arguments.

use aya_ebpf::EbpfContext;
use aya_ebpf::bindings::pt_regs;
use aya_ebpf::helpers::generated::bpf_get_attach_cookie;
use aya_ebpf::programs::ProbeContext;
use lj_trace_common::config::{ARGUMENT_ZERO, ARGUMENTS_ELSEWHERE, UNKNOWN_USER_DATA, WINDOW_SHIFT};

/// `ud`, `pointer`, `old_size` and `size`, from wherever the probe's cookie says they are.
#[inline(always)]
pub fn arguments(context: &ProbeContext, cookie: u64) -> [u64; 4] {
    let registers = registers(context);
    if cookie & ARGUMENTS_ELSEWHERE == 0 {
        return [registers.rdi, registers.rsi, registers.rdx, registers.rcx];
    }
    let codes = (cookie as u32).to_le_bytes();
    [
        argument(registers, codes[0]),
        argument(registers, codes[1]),
        argument(registers, codes[2]),
        argument(registers, codes[3]),
    ]
}

/// The probe's cookie.
#[inline(always)]
pub fn cookie(context: &impl EbpfContext) -> u64 {
    // SAFETY: the context is valid for the whole program.
    unsafe { bpf_get_attach_cookie(context.as_ptr()) }
}

/// Which window the probe belongs to.
#[inline(always)]
pub const fn window(cookie: u64) -> u32 {
    (cookie >> WINDOW_SHIFT) as u32
}

/// Where the return address lies, wherever a return probe is put.
#[inline(always)]
pub fn stack_pointer(context: &ProbeContext) -> u64 {
    registers(context).rsp
}

/// The registers that the program is called with.
#[inline(always)]
pub fn registers(context: &ProbeContext) -> &pt_regs {
    // SAFETY: the context is this program's registers.
    unsafe { &*context.regs }
}

/// One argument, by the code that the agent gave it.
#[inline(always)]
fn argument(registers: &pt_regs, code: u8) -> u64 {
    match code {
        0 => registers.rax,
        1 => registers.rdx,
        2 => registers.rcx,
        3 => registers.rbx,
        4 => registers.rsi,
        5 => registers.rdi,
        6 => registers.rbp,
        7 => registers.rsp,
        8 => registers.r8,
        9 => registers.r9,
        10 => registers.r10,
        11 => registers.r11,
        12 => registers.r12,
        13 => registers.r13,
        14 => registers.r14,
        15 => registers.r15,
        ARGUMENT_ZERO => 0,
        _ => UNKNOWN_USER_DATA,
    }
}
