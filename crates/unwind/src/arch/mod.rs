//! Everything about unwinding that depends on the processor. The rest of this crate calls it by role, and names no
//! register.
//!
//! Registers and their roles are in [`lj_trace_common::arch`]; here is what LuaJIT's own code looks like, and code without
//! unwind information.
//!
//! # What a processor's module supplies
//!
//! | item | what it is |
//! |---|---|
//! | `VmText` | an interpreter's code, analyzed once: `new`, `may_return_to`, `base_after_call`, `is_at_edge` |
//! | `unwind_interpreter`, `unwind_trace` | how to leave a frame of the interpreter, and of a trace, as a [`VmStep`](crate::vm_frame::VmStep) |
//! | `leave_cframe` | the row of a C frame of which nothing but its address is known |
//! | `code_frame` | what an interpreter's code tells of its C frames ([`CodeFrame`](crate::vm_frame::CodeFrame)) |
//! | `edges` | the places in an interpreter's code where a C frame has no Lua frame ([`Edges`](crate::vm_edges::Edges)) |
//! | `is_ffi_call` | whether the row of an address near the interpreter's end is that of `vm_ffi_call` |
//! | `is_by_frame_pointer`, `ffi_call_row` | whether a row is that of a function with a frame pointer; the right row where that of `vm_ffi_call` is wrong |
//! | `CODE_LENGTH`, `row_by_code` | the row of code without unwind information, and how much of it is needed to tell |
//! | `PLT_SECTIONS`, `plt_stubs` | the stubs by which functions of libraries are called, and the slots that they jump through |
//! | `references` | what a compiled function calls, and loads the addresses of ([`References`](crate::references::References)) |
//! | `SIGNATURES` | the table of signatures of LuaJIT's functions ([`signatures`](crate::signatures)) |
//! | `Unwinder::find_frame_pointer` | the frame pointer of a function, where it was lost and can be told from its code |

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "aarch64")]
pub use aarch64::*;

// What of it knows no registers of its own is tested on every processor.
#[cfg(all(test, not(target_arch = "aarch64")))]
#[allow(dead_code, reason = "only its tests are wanted")]
mod aarch64 {
    mod code;
    mod plt;
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
     is_ffi_call, is_by_frame_pointer, ffi_call_row, CODE_LENGTH, row_by_code, PLT_SECTIONS, plt_stubs, references, SIGNATURES, \
     Unwinder::find_frame_pointer. See docs/architectures.md"
);
