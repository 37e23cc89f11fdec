//! x86-64.

mod frame_pointer;
mod plt;
mod references;
mod results;
mod stubs;
mod tail;
mod vm_edges;
mod vm_frame;
mod vm_text;

pub use plt::{PLT_SECTIONS, plt_stubs};
pub use references::references;
pub use stubs::{CODE_LENGTH, ffi_call_row, is_by_frame_pointer, is_ffi_call, row_by_code};
pub use vm_edges::edges;
pub use vm_frame::{leave_cframe, unwind_interpreter, unwind_trace};
pub use vm_text::{VmText, code_frame};

/// The signatures of LuaJIT's functions.
pub const SIGNATURES: &str = include_str!("../../../signatures/x86_64.tsv");

/// None: calls push their return addresses, and the VM's state names the running trace.
pub fn returns_of_calls(_code: &[u8]) -> impl Iterator<Item = usize> + use<> {
    std::iter::empty()
}

/// None: the return addresses of the C code of FFI callbacks show where it is
/// ([`Edges::callback_calls`](crate::vm_edges::Edges::callback_calls)).
pub fn callback_code(
    _code: &[u8],
    _start: u64,
    _drops: Option<u64>,
    _layout: &lj_trace_common::layout::VmLayout,
    _read: impl Fn(u64, usize) -> Vec<u8>,
) -> Vec<std::ops::Range<u64>> {
    Vec::new()
}
