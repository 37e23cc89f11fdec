//! Processor facts that both halves of lj-trace must agree on. All other code asks here, by role, and names no register.
//!
//! The processor of the traced machine counts. The BPF programs run on it, too, but their own target (`bpf`) does not
//! tell which it is: they are built for x86-64, unless a feature of this crate says otherwise.
//!
//! # What a processor's module supplies
//!
//! | item | what it is |
//! |---|---|
//! | `REGISTERS` | number of registers in a sample, with the program counter |
//! | `Register` | these registers by their own names, numbered as in DWARF; `Register::ALL`, `Register::is_callee_saved` |
//! | `reg::PC`, `reg::SP`, `reg::FP` | program counter, stack pointer, frame pointer, as numbers of `Register`, which are indices into [`SampledRegisters`](crate::event::SampledRegisters) |
//! | `reg::LINK` | the register with the return address at a function's entry, if it is in a register |
//! | `reg::BASE`, `reg::BYTECODE_PC`, `reg::GLOBAL_STATE` | the interpreter's registers (`vm_*.dasc`): BASE, PC, and a register from which the `global_State` follows |
//! | `reg::KEPT_BASE`, `reg::CONTINUED` | the register that keeps BASE during some calls of C functions; the register in which `cont_dispatch` keeps BASE of the frame that has returned |
//! | `reg::LEFT_BASE`, `LEFT_BASE_OFFSET` | the register that has BASE until a return has moved the results, and the distance of its value from BASE |
//! | `STACK_AT_FRAME` | whether the stack pointer is at the C frame wherever BASE and PC are in their registers |
//! | `reg::ARGUMENTS` | the registers of a C function's first four arguments |
//! | `reg::EXIT_NUMBER` | the register in which the trace exit handler keeps the number of the exit |
//! | `reg::HANDLER_DATA` | the register of the first argument of an exception's handler: unwind tables name it only in functions that throw |
//! | `ADDRESS_END` | first address that no program has. Addresses of the VM's objects are below 2^47 on all processors |
//! | `BREAKPOINT` | the instruction that the kernel puts where a probe is |
//! | `C_FRAME_WORDS` | number of words at the beginning of a C frame that contain every field that is read |
//! | `CFRAME_L` | offsets of the coroutine in a C frame, without GC64 and with it, in all builds |
//! | `CFRAME_L_VARIES` | whether builds differ in that offset |
//! | `STATE_NAMES_TRACE` | whether `vmstate` is the number of the running trace |
//! | `STATE_NAMES_KIND` | whether Tarantool's `vmstate` tells Lua functions from fast functions, and has INTERP between functions alone |
//! | `SIGNS_RETURNS` | whether return addresses may be signed; unwind tables have instructions of their own for that |
//! | `code_address` | a return address without its signature |
//! | `return_address_below` | return address of a C function that the interpreter or a trace called, if the call has pushed it below their part of the stack |
//! | `trace_stack_pointer` | the stack pointer of a trace, from its C frame and `spadjust` |
//! | `resume_return_slot` | offset in a C frame of the return address of the call that resumed a coroutine |
//! | `exit_stubs` | address and size of the exit stubs of a trace |
//!
//! `docs/architectures.md` lists the remaining steps to support a new processor.

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
     is_callee_saved), reg (PC, SP, FP, LINK, BASE, BYTECODE_PC, GLOBAL_STATE, KEPT_BASE, LEFT_BASE, CONTINUED, ARGUMENTS, EXIT_NUMBER, \
     HANDLER_DATA), LEFT_BASE_OFFSET, STACK_AT_FRAME, ADDRESS_END, BREAKPOINT, C_FRAME_WORDS, CFRAME_L, CFRAME_L_VARIES, STATE_NAMES_TRACE, STATE_NAMES_KIND, return_address_below, \
     trace_stack_pointer, resume_return_slot, exit_stubs, SIGNS_RETURNS, code_address. See docs/architectures.md"
);
