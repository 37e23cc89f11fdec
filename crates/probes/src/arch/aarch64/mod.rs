//! AArch64 (arm64). Recording is not supported on it yet: what is here lets the rest be built, and measures clocks.

mod instruction;
mod machine;
mod measured;

pub use instruction::{MachineInstruction, is_emulated};
pub use machine::{is_virtual, next_instruction};
pub use measured::{copy_in_bulk, count_down, emulated, stepped};

/// Whether there are BPF programs for this processor.
pub const HAS_BPF_PROGRAMS: bool = false;

/// What the names of the kernel's functions for system calls begin with.
pub const SYSTEM_CALL: &str = "__arm64_sys_";
