//! Which machine code calls the allocator, on processors where calls leave the return address in a register.
//!
//! Between a trace and the allocator there are only functions of LuaJIT's own C code. Each of them has saved its return
//! address somewhere in its frame. User space has read the unwind tables and tells, for each call in that code, where.

use super::known::KnownObjects;
use crate::arch::code_address;
use crate::memory::{Pod, ReadMemory};

/// What the unwind table says about a call in C code.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallSite {
    /// Distance from the stack pointer up to the canonical frame address, in bytes.
    pub frame: u32,
    /// Distance from the canonical frame address down to the saved return address, in bytes.
    pub saved: u32,
}

/// The most call sites of a process that are known. LuaJIT has some 6,000.
pub const MAX_CALL_SITES: u32 = 1 << 16;

/// A place that has called another function.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallingPlace {
    /// The address after the call.
    pub return_address: u64,
    /// The stack pointer at the call.
    pub stack_pointer: u64,
}

// SAFETY: the fields are integers laid out without padding, as the assertions below prove.
unsafe impl Pod for CallSite {}
// SAFETY: as above.
unsafe impl Pod for CallingPlace {}

const _: () = {
    assert!(size_of::<CallSite>() == 2 * 4);
    assert!(size_of::<CallingPlace>() == 2 * 8);
};

/// The most functions between a trace and the allocator: there are five if a trace's call makes a buffer grow.
const MAX_FUNCTIONS: usize = 12;

impl CallingPlace {
    /// No place.
    pub const NONE: Self = Self { return_address: 0, stack_pointer: 0 };

    /// Leaves all functions whose calls are known: from the allocator's caller to the first place that is not in
    /// LuaJIT's C code. Where the stack cannot be read, the result is [`Self::NONE`].
    #[inline(always)]
    pub fn leave_c(self, memory: &impl ReadMemory, objects: &impl KnownObjects) -> Self {
        let mut place = self;
        for _ in 0..MAX_FUNCTIONS {
            let Some(site) = objects.call_site(place.return_address) else { return place };
            let end = place.stack_pointer.wrapping_add(u64::from(site.frame));
            let Ok(saved) = memory.read::<u64>(end.wrapping_sub(u64::from(site.saved))) else { return Self::NONE };
            place = Self { return_address: code_address(saved), stack_pointer: end };
        }
        Self::NONE
    }
}
