//! What differs between the processors whose kernels these programs run in. The rest of the programs asks here, by role.
//!
//! # What a processor's module supplies
//!
//! | item | what it is |
//! |---|---|
//! | `registers` | the registers of a sample, in the order of [`reg`](lj_trace_common::arch::reg), out of the kernel's |
//! | `stack_pointer`, `program_counter` | two of them |
//! | `arguments`, `result` | of the function that a probe is on: its first four arguments, what it returns |
//! | `numbered` | the register of this number ([`reg`](lj_trace_common::arch::reg)), in which a probe finds an argument |
//! | `kept` | those that functions hand back as they found them |
//! | `return_slot` | where the return address lies that a return probe replaces |
//! | `call_number` | the number of the system call, by the registers with which a thread entered the kernel |
//! | `loop_wait` | whether the system call of this number waits for events |
//! | `is_kernel` | whether registers are those of the kernel's own code |
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
