//! Everything about probes that depends on the processor: what can be probed, and what it costs. The rest of this crate
//! uses these names on every processor.
//!
//! # What a processor's module supplies
//!
//! | item | what it is |
//! |---|---|
//! | `MachineInstruction` | a decoded instruction: `decode`, `size`, `name`, `control`, `effects`, `taken_if_zero` |
//! | `is_emulated` | whether every kernel that is supported emulates an instruction under a probe, rather than stepping through it |
//! | `emulated`, `stepped` | functions to measure probes on, which begin with an instruction of either kind |
//! | `count_down`, `copy_in_bulk` | code that clock ticks and watchpoints slow down, for measurements |
//! | `next_instruction` | where a thread continues that a signal has interrupted |
//! | `SYSTEM_CALL` | the prefix of the kernel's functions for system calls |
//! | `is_virtual` | whether `/proc/cpuinfo` says that this is a virtual machine |
//!
//! Registers, also those that pass arguments, and the kernel's breakpoint are in [`lj_trace_common::arch`].

mod effects;

pub use effects::{Control, Effects};

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "aarch64")]
pub use aarch64::*;

// Every processor tests the part of it that needs no registers of its own.
#[cfg(all(test, not(target_arch = "aarch64")))]
#[allow(dead_code, reason = "only its tests are wanted")]
mod aarch64 {
    mod instruction;
}

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!(
    "lj-trace-probes does not support this processor yet. crates/probes/src/arch has to supply for it: MachineInstruction (decode, \
     size, name, control, effects, taken_if_zero), is_emulated, emulated, stepped, count_down, copy_in_bulk, \
     next_instruction, is_virtual, SYSTEM_CALL. See docs/architectures.md"
);
