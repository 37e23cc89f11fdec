//! AArch64 (arm64).

use lj_trace_common::memory::ReadMemory;

use crate::arch::Accessor;

/// The code of this processor is not read yet, so requests have no phase.
pub fn read_accessor(_memory: &impl ReadMemory, _code: &[u8], _address: u64) -> Option<Accessor> {
    None
}
