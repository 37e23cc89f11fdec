//! Everything about unwinding that depends on the processor. The rest of this crate uses it by role, and names no register.
//!
//! Registers and their roles are in [`lj_trace_common::arch`]. This module describes LuaJIT's own code, and code
//! without unwind information.
//!
//! # What a processor's module supplies
//!
//! | item | what it is |
//! |---|---|
//! | `VmText` | an interpreter's code, analyzed once: `new`, `may_return_to`, `base_after_call`, `is_at_edge` |
//! | `unwind_interpreter`, `unwind_trace` | the step from a frame of the interpreter, or of a trace, to its caller, as a [`VmStep`](crate::vm_frame::VmStep) |
//! | `leave_cframe` | the row of a C frame of which only the address is known |
//! | `code_frame` | the shape of the C frames, read from an interpreter's code ([`CodeFrame`](crate::vm_frame::CodeFrame)) |
//! | `edges` | the places in an interpreter's code where a C frame has no Lua frame ([`Edges`](crate::vm_edges::Edges)) |
//! | `callback_code` | the places in the C code of FFI callbacks where a C frame has no Lua frame, if its return addresses show them not |
//! | `is_ffi_call` | whether the row of an address near the interpreter's end belongs to `vm_ffi_call` |
//! | `is_by_frame_pointer`, `ffi_call_row` | whether a row belongs to a function with a frame pointer; the right row where the one of `vm_ffi_call` is wrong |
//! | `CODE_LENGTH`, `row_by_code` | the row of code without unwind information, and how many bytes of code it needs |
//! | `PLT_SECTIONS`, `plt_stubs` | the stubs for calls of library functions, and the slots that they jump through |
//! | `returns_of_calls` | the offsets to which the calls in compiled code return, where these addresses are not on the stack |
//! | `references` | calls and loaded addresses of a compiled function ([`References`](crate::references::References)) |
//! | `SIGNATURES` | the table of signatures of LuaJIT's functions ([`signatures`](crate::signatures)) |
//! | `Unwinder::find_frame_pointer` | the frame pointer of a function, if it was lost and the code shows it |

pub mod a64;

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "aarch64")]
pub use aarch64::*;

// The parts of this module that use no registers of the host are tested on every processor.
#[cfg(all(test, not(target_arch = "aarch64")))]
#[allow(dead_code, reason = "only its tests are wanted")]
mod aarch64 {
    mod callbacks;
    mod moved;
    mod plt;
    mod references;
    mod results;
    mod trace_edges;
    mod vm_edges;
}

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!(
    "lj-trace-unwind does not support this processor yet. crates/unwind/src/arch has to supply for it: VmText (new, \
     may_return_to, base_after_call, is_at_edge), unwind_interpreter, unwind_trace, leave_cframe, code_frame, edges, \
     callback_code, is_ffi_call, is_by_frame_pointer, ffi_call_row, CODE_LENGTH, row_by_code, PLT_SECTIONS, plt_stubs, returns_of_calls, references, SIGNATURES, \
     Unwinder::find_frame_pointer. See docs/architectures.md"
);
