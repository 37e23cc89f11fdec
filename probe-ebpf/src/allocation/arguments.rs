//! The allocator's arguments.

use aya_ebpf::EbpfContext;
use aya_ebpf::bindings::pt_regs;
use aya_ebpf::helpers::generated::bpf_get_attach_cookie;
use aya_ebpf::programs::ProbeContext;
use lj_trace_common::config::{ARGUMENT_ZERO, ARGUMENTS_ELSEWHERE, UNKNOWN_USER_DATA, WINDOW_SHIFT};

use crate::arch;

/// `ud`, `pointer`, `old_size` and `size`, read from where the probe's cookie says they are.
#[inline(always)]
pub fn arguments(context: &ProbeContext, cookie: u64) -> [u64; 4] {
    let registers = registers(context);
    if cookie & ARGUMENTS_ELSEWHERE == 0 {
        return arch::arguments(registers);
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

/// The window that the probe belongs to.
#[inline(always)]
pub const fn window(cookie: u64) -> u32 {
    (cookie >> WINDOW_SHIFT) as u32
}

/// The registers that the program is called with.
#[inline(always)]
pub fn registers(context: &ProbeContext) -> &pt_regs {
    // SAFETY: the context is this program's registers.
    unsafe { &*context.regs }
}

/// One argument, by the code that the agent put into the cookie.
#[inline(always)]
fn argument(registers: &pt_regs, code: u8) -> u64 {
    arch::numbered(registers, code, || if code == ARGUMENT_ZERO { 0 } else { UNKNOWN_USER_DATA })
}
