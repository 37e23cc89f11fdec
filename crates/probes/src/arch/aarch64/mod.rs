//! AArch64 (arm64). CPU time is recorded on it by tests, allocations are not yet.

mod instruction;
mod machine;
mod measured;

pub use instruction::{MachineInstruction, is_emulated};
pub use machine::{is_virtual, next_instruction};
pub use measured::{copy_in_bulk, count_down, emulated, stepped};

/// Whether all BPF programs work on this processor. Probes on allocators and what waits need return addresses on the stack.
pub const HAS_ALL_PROGRAMS: bool = false;

/// What the names of the kernel's functions for system calls begin with.
pub const SYSTEM_CALL: &str = "__arm64_sys_";
