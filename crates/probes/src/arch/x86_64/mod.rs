//! x86-64.

mod emulated;
mod instruction;
mod machine;
mod measured;

pub use emulated::is_emulated;
pub use instruction::MachineInstruction;
pub use machine::{is_virtual, next_instruction};
pub use measured::{copy_in_bulk, count_down, emulated, stepped};

/// The prefix of the kernel's functions for system calls.
pub const SYSTEM_CALL: &str = "__x64_sys_";
