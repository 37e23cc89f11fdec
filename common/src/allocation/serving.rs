//! Which request the coroutine serves that allocates: for nginx with Lua.
//!
//! A sample looks at all coroutines of its stack. A call of the allocator has no time for that, so it is proven otherwise that
//! the coroutine's word for its embedder is right: lua-nginx-module writes it before it resumes a coroutine itself. So the
//! address is told to which the C frame returns that the coroutine was resumed in ([`CFRAME_RESUME`], `lj_frame.h`): user space
//! knows whose code is there. The main coroutine gets its word anew before each run.

use crate::arch::resume_return_slot;
use crate::frame::{CFRAME_FLAGS, gct_offset};
use crate::head::Head;
use crate::layout::gct;
use crate::memory::{Pod, ReadMemory, Unreadable, clear};
use crate::request::{RequestLayout, RequestMarks, RequestState, embedder_word};
use crate::vm::VmConfig;

/// The first byte of a [`RequestSeen`].
pub const REQUEST_SEEN: u8 = 5;

/// C frames of one coroutine that are looked at: more than calls of Lua from C are nested.
const MOST_C_FRAMES: usize = 8;

/// Words of a C frame up to its return address: there are 12 in Tarantool's builds, and fewer in others.
const C_FRAME: usize = 12;

/// The flag in the address of a C frame that a coroutine was resumed in.
const CFRAME_RESUME: u64 = 1;

/// Which coroutine later events of a VM are in, and which request it serves.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestSeen {
    /// [`REQUEST_SEEN`].
    pub kind: u8,
    /// Always 0.
    pub reserved: u8,
    /// Index of the VM.
    pub vm: u16,
    /// How many VMs have had this index before.
    pub generation: u32,
    /// The address of the coroutine; 0 if none is known to run.
    pub thread: u64,
    /// Where the call returns to by which it was resumed; 0 for the main coroutine, and where that is not known.
    pub resumed_from: u64,
    /// The request.
    pub marks: RequestMarks,
}

// SAFETY: the fields are integers laid out without padding, as the assertion below proves.
unsafe impl Pod for RequestSeen {}

/// What is known of the requests of a VM, and room to find it out.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServingRoom {
    head: Head,
    /// What is so now.
    pub now: RequestSeen,
    /// What user space was told.
    pub told: RequestSeen,
}

const _: () = {
    assert!(size_of::<RequestSeen>() == 8 + 2 * 8 + size_of::<RequestMarks>());
    assert!(size_of::<ServingRoom>() == size_of::<Head>() + 2 * size_of::<RequestSeen>());
};

/// There is none that is known to run.
struct NotRunning;

impl From<Unreadable> for NotRunning {
    #[inline(always)]
    fn from(Unreadable: Unreadable) -> Self {
        Self
    }
}

impl ServingRoom {
    /// Looks which request `thread` serves, which allocates while the native stack pointer is `stack_pointer`: from now on,
    /// [`Self::now`] tells. Its `vm` and `generation` are left as they are.
    #[inline(always)]
    pub fn look(
        &mut self,
        memory: &impl ReadMemory,
        vm: &VmConfig,
        layout: &RequestLayout,
        (thread, stack_pointer): (u64, u64),
    ) {
        let Self { head, now, .. } = self;
        let (vm_index, generation) = (now.vm, now.generation);
        clear(now);
        (now.kind, now.vm, now.generation) = (REQUEST_SEEN, vm_index, generation);
        if find(memory, vm, head, (thread, stack_pointer), now).is_ok() {
            now.thread = thread;
            now.marks.state = RequestState::Open as u32;
            now.marks.follow(memory, layout);
        }
    }
}

/// Finds the coroutine's word, and where it was resumed from.
#[inline(always)]
fn find(
    memory: &impl ReadMemory,
    vm: &VmConfig,
    head: &mut Head,
    (thread, stack_pointer): (u64, u64),
    now: &mut RequestSeen,
) -> Result<(), NotRunning> {
    let layout = &vm.layout;
    let gc64 = layout.is_gc64();
    let Some(word) = embedder_word(layout).filter(|_| thread != 0) else { return Err(NotRunning) };
    // As far as the word.
    head.read::<13, 9>(memory, gc64, thread)?;
    if head.reference(gc64, layout.l_glref)? != vm.global || head.u8(gct_offset(gc64) as u16)? != gct::THREAD {
        return Err(NotRunning);
    }
    now.marks.request = head.u64(word as u16)?;
    let mut raw = head.u64(layout.l_cframe)?;
    let is_main = thread == vm.global.wrapping_sub(vm.global_offset);
    for _ in 0..MOST_C_FRAMES {
        let cframe = raw & !CFRAME_FLAGS;
        // One that has been left lies below what runs.
        if cframe < stack_pointer {
            return Err(NotRunning);
        }
        head.read::<C_FRAME, C_FRAME>(memory, gc64, cframe)?;
        if head.reference(gc64, layout.cframe_l)? != thread {
            return Err(NotRunning);
        }
        if is_main {
            return Ok(());
        }
        if raw & CFRAME_RESUME != 0 {
            if let Some(slot) = resume_return_slot(layout.cframe_size) {
                now.resumed_from = head.u64(slot)?;
            }
            return Ok(());
        }
        raw = head.u64(layout.cframe_prev)?;
    }
    // Nobody knows who has resumed it.
    Ok(())
}
