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
