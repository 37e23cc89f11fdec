//! What differs between the processors that these programs run on. The rest of the programs uses these names on every
//! processor.
//!
//! # What a processor's module supplies
//!
//! | item | what it is |
//! |---|---|
//! | `registers` | the registers of a sample, in the order of [`reg`](lj_trace_common::arch::reg), out of the kernel's |
//! | `stack_pointer`, `program_counter` | two of these registers |
//! | `arguments`, `result` | the first four arguments of the function that a probe is on, and its return value |
//! | `numbered` | the register with this number ([`reg`](lj_trace_common::arch::reg)), in which a probe finds an argument |
//! | `kept` | the callee-saved registers |
//! | `return_address` | the return address that a return probe replaces |
//! | `call_number` | the number of the system call, by the registers with which a thread entered the kernel |
//! | `loop_wait` | whether the system call with this number waits for events |
//! | `is_kernel` | whether registers belong to the kernel's own code |
//!
//! `REGISTERS` and the roles are in [`lj_trace_common::arch`]; `pt_regs` is the kernel's own, as `aya-ebpf` has it for the
//! processor that `AYA_BPF_TARGET_ARCH` names.

#[cfg(not(feature = "traced-aarch64"))]
mod x86_64;
#[cfg(not(feature = "traced-aarch64"))]
pub use x86_64::*;

#[cfg(feature = "traced-aarch64")]
mod aarch64;
#[cfg(feature = "traced-aarch64")]
pub use aarch64::*;
