//! The fiber of Tarantool that allocates.

use crate::fiber::{FiberLayout, FiberMarks};
use crate::memory::{Pod, ReadMemory, clear};

/// The first byte of a [`FiberSeen`].
pub const FIBER_SEEN: u8 = 6;

/// The fiber of the events of a VM that follow this record.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FiberSeen {
    /// [`FIBER_SEEN`].
    pub kind: u8,
    /// Always 0.
    pub reserved: u8,
    /// Index of the VM.
    pub vm: u16,
    /// The number of VMs that had this index before.
    pub generation: u32,
    /// The fiber; nothing is known of it if another thread than the main one allocates.
    pub marks: FiberMarks,
}

/// The fiber of the main thread, with the last record that user space got.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FiberRoom {
    /// The current fiber.
    pub now: FiberSeen,
    /// The last record that user space got.
    pub told: FiberSeen,
}

impl FiberRoom {
    /// Puts the fiber into [`Self::now`] that allocates in this VM while the native stack pointer is `stack_pointer`; nothing if it
    /// is not the main thread that does.
    #[inline(always)]
    pub fn look(
        &mut self,
        memory: &impl ReadMemory,
        layout: &FiberLayout,
        (vm, generation): (u16, u32),
        (is_main_thread, stack_pointer): (bool, u64),
    ) {
        let Self { now, .. } = self;
        clear(now);
        (now.kind, now.vm, now.generation) = (FIBER_SEEN, vm, generation);
        if is_main_thread {
            now.marks.read(memory, layout, stack_pointer);
        }
    }

    /// Whether user space knows the current fiber. It is written without branches: the verifier would follow each of them.
    #[inline(always)]
    pub fn is_told(&self) -> bool {
        let Self { now, told } = self;
        let mut differences = (now.marks.id ^ told.marks.id)
            | u64::from(now.marks.state ^ told.marks.state)
            | u64::from(now.generation ^ told.generation)
            | u64::from(now.kind ^ told.kind)
            | u64::from(now.vm ^ told.vm);
        for (own, other) in now.marks.name.iter().zip(&told.marks.name) {
            differences |= own ^ other;
        }
        differences == 0
    }
}

// SAFETY: the fields are integers laid out without padding, as the assertion below proves.
unsafe impl Pod for FiberSeen {}

const _: () = assert!(size_of::<FiberSeen>() == 8 + size_of::<FiberMarks>());
const _: () = assert!(size_of::<FiberRoom>() == 2 * size_of::<FiberSeen>());
