//! AArch64 (arm64).

mod instruction;
mod machine;
mod measured;

pub use instruction::{MachineInstruction, is_emulated};
pub use machine::{is_virtual, next_instruction};
pub use measured::{copy_in_bulk, count_down, emulated, stepped};

/// The prefix of the kernel's functions for system calls.
pub const SYSTEM_CALL: &str = "__arm64_sys_";
