//! Everything about the JIT compiler's machine code that depends on the processor. The rest of this crate uses it by role.
//!
//! # What a processor's module supplies
//!
//! | item | what it is |
//! |---|---|
//! | `decode` | the machine code of a trace, as [`Machine`] instructions |
//! | `base_stores` | the instructions after those that store `global_State.jit_base` |
//! | `MCODE_UNIT` | size of the unit of `SnapShot.mcofs`, in bytes ([`MCode`]) |
//! | `exit_at` | the exit that the stub at an address leads to, from the stub's code and the value it has pushed |
//! | `exit_byte_at` | the lowest byte of the exit whose stub begins at an address |
//! | `exit_in_handler` | the exit that the trace exit handler works on |
//! | `left_by` | the trace that is being left and its exit, where the VM's state does not name the trace |
//! | `called_at` | return address in a trace that called a function of the VM's own code, if a register holds it |
//! | `has_left_its_frame` | whether a trace has released its own part of the stack, from the distance of the stack pointer to the C frame |
//! | `cframe_return_slot` | offset of the return address in a C frame |
//! | `MODE` | names of this processor's layouts, with GC64 and without |
//!
//! [`MCode`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_jit.h#L170
//!
//! [`lj_trace_unwind::arch`] analyzes the interpreter's code, [`lj_trace_common::arch`] has the registers.

mod instruction;

pub use instruction::{ExitStub, Machine, MachineAction, MachineOperation};

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "aarch64")]
pub use aarch64::*;

// The parts of this module that use no registers of the host are tested on every processor.
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
