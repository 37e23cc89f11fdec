//! AArch64 (arm64). Tests record CPU time on it; allocations are not recorded yet.

mod instruction;
mod machine;
mod measured;

pub use instruction::{MachineInstruction, is_emulated};
pub use machine::{is_virtual, next_instruction};
pub use measured::{copy_in_bulk, count_down, emulated, stepped};

/// Whether all BPF programs work on this processor. The probes on allocators, and the programs for waits, need return
/// addresses on the stack.
pub const HAS_ALL_PROGRAMS: bool = false;

/// The prefix of the kernel's functions for system calls.
pub const SYSTEM_CALL: &str = "__arm64_sys_";
