//! AArch64 (arm64).

mod callbacks;
mod frame_pointer;
mod moved;
mod plt;
mod references;
mod results;
mod stubs;
mod trace_edges;
mod vm_edges;
mod vm_frame;
mod vm_text;

pub use callbacks::callback_code;
pub use plt::{PLT_SECTIONS, plt_stubs};
pub use references::{references, returns_of_calls};
pub use stubs::{CODE_LENGTH, ffi_call_row, is_by_frame_pointer, is_ffi_call, row_by_code};
pub use vm_edges::edges;
pub use vm_frame::{leave_cframe, unwind_interpreter, unwind_trace};
pub use vm_text::{VmText, code_frame};

/// The signatures of LuaJIT's functions: none are known for this processor.
pub const SIGNATURES: &str = "";
