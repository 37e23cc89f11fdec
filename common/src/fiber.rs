//! Which fiber of Tarantool a thread runs at the time of a sample, as memory shows it.
//!
//! Each thread that has fibers has a `cord`, which points to the fiber that runs. A fiber has a C stack of its own, an id,
//! and a pointer to its name. The program sets the pointer in the cord a few instructions before it changes stacks. So the
//! pointer alone does not prove which fiber the thread runs: the thread's stack pointer has to be within that fiber's stack.
//! Everything is read while the thread is interrupted, and only the thread itself changes its fiber.
//!
//! Sources: [`struct fiber`], [`struct cord`] and [`fiber_call_impl`].
//!
//! [`struct fiber`]: https://github.com/tarantool/tarantool/blob/67428d092e91665dcff3b3108b8423e9f1e09176/src/lib/core/fiber.h#L625
//! [`struct cord`]: https://github.com/tarantool/tarantool/blob/67428d092e91665dcff3b3108b8423e9f1e09176/src/lib/core/fiber.h#L793
//! [`fiber_call_impl`]: https://github.com/tarantool/tarantool/blob/67428d092e91665dcff3b3108b8423e9f1e09176/src/lib/core/fiber.c#L479

use crate::memory::{Pod, ReadMemory};

/// Words of a name that are read: as many bytes as a fiber has room for in itself (`FIBER_NAME_INLINE`). Longer names are
/// elsewhere, in at least as many bytes.
pub const NAME_WORDS: usize = 5;

/// Where a process keeps the fiber that its main thread runs, as the agent tells the BPF programs.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FiberLayout {
    /// Address of the pointer to the fiber that runs, in the main thread's cord; 0 if nothing is to be read.
    pub current: u64,
    /// Offset in a fiber of its id, in bytes.
    pub id: u32,
    /// Mask of the upper half of the eight bytes there: 0 if ids have four bytes.
    pub id_mask: u32,
    /// Offset of the pointer to its name.
    pub name: u32,
    /// Offset of the pointer to the lowest byte of its stack.
    pub stack: u32,
    /// Offset of the size of that stack.
    pub stack_size: u32,
    /// Always 0: keeps the size a multiple of 8.
    pub reserved: u32,
}

/// What was found of the fiber of a sample, as a number in [`FiberMarks::state`].
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FiberState {
    /// Nobody has looked.
    None = 0,
    /// Something could not be read.
    Unreadable = 1,
    /// The thread runs its scheduler, which has no stack of its own.
    Scheduler = 2,
    /// The stack pointer is not within the fiber's stack.
    OtherStack = 3,
    /// The fiber was found.
    Found = 4,
}

impl FiberState {
    /// The state with this number, if there is one.
    pub const fn from_u32(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::None,
            1 => Self::Unreadable,
            2 => Self::Scheduler,
            3 => Self::OtherStack,
            4 => Self::Found,
            _ => return None,
        })
    }
}

/// What a sample says about its fiber.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FiberMarks {
    /// The fiber's id; 0 if it has ended.
    pub id: u64,
    /// The first bytes of its name, with whatever follows the zero at its end.
    pub name: [u64; NAME_WORDS],
    /// A [`FiberState`].
    pub state: u32,
    /// Always 0: keeps the size a multiple of 8.
    pub reserved: u32,
}

impl FiberMarks {
    /// Reads the fiber that the thread runs, whose stack pointer is `sp`.
    #[inline(always)]
    pub fn read(&mut self, memory: &impl ReadMemory, layout: &FiberLayout, sp: u64) {
        self.state = match memory.read::<u64>(layout.current) {
            Ok(fiber) => self.outcome(memory, layout, fiber, sp),
            Err(_) => FiberState::Unreadable,
        } as u32;
    }

    /// Reads this fiber, if `sp` is within its stack.
    #[inline(always)]
    pub fn read_of(&mut self, memory: &impl ReadMemory, layout: &FiberLayout, fiber: u64, sp: u64) {
        self.state = self.outcome(memory, layout, fiber, sp) as u32;
    }

    #[inline(always)]
    fn outcome(&mut self, memory: &impl ReadMemory, layout: &FiberLayout, fiber: u64, sp: u64) -> FiberState {
        let word = |offset: u32| memory.read::<u64>(fiber.wrapping_add(u64::from(offset)));
        let (Ok(stack), Ok(size)) = (word(layout.stack), word(layout.stack_size)) else {
            return FiberState::Unreadable;
        };
        if size == 0 {
            return FiberState::Scheduler;
        }
        if sp.wrapping_sub(stack) >= size {
            return FiberState::OtherStack;
        }
        let (Ok(id), Ok(name)) = (word(layout.id), word(layout.name)) else { return FiberState::Unreadable };
        self.id = id & (u64::from(layout.id_mask) << 32 | 0xffff_ffff);
        if memory.read_over(name, &mut self.name).is_err() {
            return FiberState::Unreadable;
        }
        FiberState::Found
    }
}

// SAFETY: integers without padding, as the assertions below prove.
unsafe impl Pod for FiberMarks {}

const _: () = assert!(size_of::<FiberLayout>() == 8 + 6 * 4);
const _: () = assert!(size_of::<FiberMarks>() == 8 + NAME_WORDS * 8 + 2 * 4);
