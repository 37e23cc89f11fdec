//! The results of a VM's allocator calls, counted in the kernel where the calls are made.

use crate::memory::Pod;

/// The calls of one VM, one entry a VM. A VM runs on one thread at a time, so nothing else counts in its entry, and
/// each number is exact.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VmTally {
    /// Calls that a probe has seen, counted before anything else is done with them.
    pub calls: u64,
    /// Calls whose event was handed to user space.
    pub written: u64,
    /// Calls whose event was lost because the ring buffer was full.
    pub ring_full: u64,
    /// Calls that returned no memory.
    pub failed: u64,
    /// Frees of a null pointer.
    pub nothing_freed: u64,
    /// How many VMs have had this entry's index before: what is known of their objects does not apply to this VM.
    pub generation: u32,
    /// Always 0: keeps the size a multiple of 8.
    pub reserved: u32,
}

// SAFETY: the fields are integers laid out without padding, as the assertion below proves.
unsafe impl Pod for VmTally {}

const _: () = assert!(size_of::<VmTally>() == 5 * 8 + 2 * 4);

impl VmTally {
    /// Calls that were seen but have no result yet: they have not returned.
    pub const fn unfinished(&self) -> u64 {
        self.calls.wrapping_sub(self.written + self.ring_full + self.failed + self.nothing_freed)
    }
}
