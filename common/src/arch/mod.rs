//! What differs between processors, of what both halves of lj-trace must agree on. All else asks here, by role; it names no
//! register.
//!
//! The machine that is traced counts. The BPF programs run on it, too, but their own target (`bpf`) does not tell which it is:
//! they are for x86-64, unless a feature of this crate says otherwise.
//!
//! # What a processor's module supplies
//!
//! | item | what it is |
//! |---|---|
//! | `REGISTERS` | how many registers a sample has, the program counter included |
//! | `Register` | the same by their own names, numbered as in DWARF; `Register::ALL`, `Register::is_callee_saved` |
//! | `reg::PC`, `reg::SP`, `reg::FP` | program counter, stack pointer, frame pointer, as numbers of `Register`, which are indices into [`SampledRegisters`](crate::event::SampledRegisters) |
//! | `reg::LINK` | where the return address is at a function's entry, if that is a register |
//! | `reg::BASE`, `reg::BYTECODE_PC`, `reg::GLOBAL_STATE` | what the interpreter keeps in registers (`vm_*.dasc`): BASE, PC, and what leads to the `global_State` |
//! | `reg::KEPT_BASE`, `reg::CONTINUED` | where it keeps BASE during some calls of C functions; where `cont_dispatch` keeps that of the frame that has returned |
//! | `reg::ARGUMENTS` | what passes the first four arguments of a C function |
//! | `reg::EXIT_NUMBER` | where the trace exit handler keeps the number of the exit |
//! | `reg::HANDLER_DATA` | where an exception's handler gets its first argument: unwind tables name it only in functions that throw |
//! | `ADDRESS_END` | first address that no program has. Addresses of the VM's objects are below 2^47 on all processors |
//! | `BREAKPOINT` | the instruction that the kernel puts where a probe is |
//! | `C_FRAME_WORDS` | how many words from the beginning of a C frame all that is looked at lies within |
//! | `CFRAME_L` | where a C frame has its coroutine, without GC64 and with it, in all builds |
//! | `CFRAME_L_VARIES` | whether builds differ in that |
//! | `STATE_NAMES_TRACE` | whether `vmstate` is the number of the trace that runs |
//! | `SIGNS_RETURNS` | whether return addresses may be signed, which unwind tables say by instructions of their own |
//! | `code_address` | a return address without what may sign it |
//! | `return_address_below` | where a C function returns to that the interpreter has called |
//! | `trace_return_slot` | where a C function's return address lies that a trace has called |
//! | `resume_return_slot` | where a C frame has the address that the call returns to by which a coroutine was resumed |
//! | `exit_stubs` | where the exit stubs of a trace are |
//!
//! `docs/architectures.md` has the way from here to a processor that is supported.

mod roles;

#[cfg(any(target_arch = "aarch64", feature = "traced-aarch64"))]
mod aarch64;
#[cfg(any(target_arch = "aarch64", feature = "traced-aarch64"))]
pub use aarch64::*;

#[cfg(all(any(target_arch = "x86_64", target_arch = "bpf"), not(feature = "traced-aarch64")))]
mod x86_64;
#[cfg(all(any(target_arch = "x86_64", target_arch = "bpf"), not(feature = "traced-aarch64")))]
pub use x86_64::*;

#[cfg(not(any(target_arch = "x86_64", target_arch = "bpf", target_arch = "aarch64", feature = "traced-aarch64")))]
compile_error!(
    "lj-trace does not support this processor yet. common/src/arch has to supply for it: REGISTERS, Register (ALL, \
     is_callee_saved), reg (PC, SP, FP, LINK, BASE, BYTECODE_PC, GLOBAL_STATE, KEPT_BASE, CONTINUED, ARGUMENTS, EXIT_NUMBER, \
     HANDLER_DATA), ADDRESS_END, BREAKPOINT, C_FRAME_WORDS, CFRAME_L, CFRAME_L_VARIES, STATE_NAMES_TRACE, return_address_below, \
     trace_return_slot, resume_return_slot, exit_stubs, SIGNS_RETURNS, code_address. See docs/architectures.md"
);
