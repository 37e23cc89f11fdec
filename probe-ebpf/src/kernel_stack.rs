//! The kernel's own stack, if a tick hit the kernel and its frames were requested.

use core::ffi::c_void;

use aya_ebpf::helpers::generated::bpf_get_stack;
use lj_trace_common::config::MAX_KERNEL_STACK;

/// Copies the addresses of the kernel's frames, innermost first, to `place`, which has room for [`MAX_KERNEL_STACK`]
/// bytes. Returns the number of bytes.
#[inline(always)]
pub fn copy(context: *mut c_void, place: *mut u8) -> u32 {
    // SAFETY: the caller has the room; the helper checks the rest.
    let size = unsafe { bpf_get_stack(context, place.cast(), MAX_KERNEL_STACK, 0) };
    if size > 0 && size <= i64::from(MAX_KERNEL_STACK) { size as u32 } else { 0 }
}
