//! Everything about the JIT compiler's machine code that depends on the processor. The rest of this crate calls it by
//! role.
//!
//! # What a processor's module supplies
//!
//! | item | what it is |
//! |---|---|
//! | `decode` | the machine code of a trace, as [`Machine`] instructions |
//! | `base_stores` | the instructions after those that store `global_State.jit_base` |
//! | `MCODE_UNIT` | what `SnapShot.mcofs` counts, in bytes ([`MCode`]) |
//! | `exit_at` | the exit that the stub at an address leads to, from the code and what it has pushed |
//! | `exit_byte_at` | the lowest byte of the exit whose stub begins at an address |
//! | `exit_in_handler` | the exit that the trace exit handler works on |
//! | `left_by` | the trace and the exit that it is being left by, where the state does not name the trace |
//! | `called_at` | where in a trace a function of the VM's own code was called, if a register tells |
//! | `has_left_its_frame` | whether a trace's own part of the stack is gone, by how far the stack pointer is from the C frame |
//! | `cframe_return_slot` | where a C frame has its return address |
//! | `MODE` | what layouts of this processor are called, with GC64 and without |
//!
//! [`MCode`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_jit.h#L170
//!
//! The interpreter's code is told apart in [`lj_trace_unwind::arch`], registers are in [`lj_trace_common::arch`].

mod instruction;

pub use instruction::{ExitStub, Machine, MachineAction, MachineOperation};

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "aarch64")]
pub use aarch64::*;

// What of it knows no registers of its own is tested on every processor.
#[cfg(all(test, not(target_arch = "aarch64")))]
#[allow(dead_code, reason = "only its tests are wanted")]
mod aarch64 {
    mod exit_stub;
    mod machine;
}

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!(
    "lj-trace-luajit does not support this processor yet. crates/luajit/src/arch has to supply for it: decode, base_stores, \
     MCODE_UNIT, exit_at, exit_byte_at, exit_in_handler, left_by, called_at, has_left_its_frame, cframe_return_slot, MODE. See docs/architectures.md"
);
