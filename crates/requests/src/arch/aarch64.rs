//! AArch64 (arm64).

use lj_trace_common::memory::ReadMemory;

use crate::arch::{Accessor, FiberSelf};

/// Code of this processor cannot be read yet, so requests have no phase.
pub fn read_accessor(_memory: &impl ReadMemory, _code: &[u8], _address: u64) -> Option<Accessor> {
    None
}

/// Neither can this, so requests have no routes.
pub fn read_reference(_memory: &impl ReadMemory, _code: &[u8], _address: u64) -> Option<Accessor> {
    None
}

/// Neither can this, so fibers have no labels.
pub fn read_fiber_self(_memory: &impl ReadMemory, _code: &[u8], _address: u64) -> Option<FiberSelf> {
    None
}
