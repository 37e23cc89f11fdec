//! The request that the allocating coroutine serves, for nginx with Lua.
//!
//! A CPU sample looks at all coroutines of its stack. A call of the allocator has no time for that. The coroutine's word for its
//! embedder is right if lua-nginx-module has resumed the coroutine, because that module writes the word before it resumes one.
//! So the record also has the return address of the C frame in which the coroutine was resumed ([`CFRAME_RESUME`]): user space
//! knows whose code that is. The main coroutine gets a new word before each run.
//!
//! Where somebody asks for routes, the record has that of the request, too: it is read at each call, since a program may choose
//! it, or another one, at any time.
//!
//! [`CFRAME_RESUME`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_frame.h#L275-L277

use crate::arch::{C_FRAME_WORDS, CFRAME_L_VARIES, resume_return_slot};
use crate::frame::{CFRAME_FLAGS, gct_offset};
use crate::head::Head;
use crate::layout::gct;
use crate::memory::{Pod, ReadMemory, Unreadable, clear};
use crate::request::{RequestLayout, RequestMarks, RequestState, embedder_word};
use crate::route::RouteMarks;
use crate::vm::VmConfig;

/// The first byte of a [`RequestSeen`].
pub const REQUEST_SEEN: u8 = 5;

/// The most C frames of one coroutine to read: more than calls from C into Lua are nested in practice.
const MOST_C_FRAMES: usize = 8;

/// The most words of a C frame up to its return address: on x86-64, 12 in Tarantool's builds, and fewer in others.
const C_FRAME: usize = if CFRAME_L_VARIES { C_FRAME_WORDS } else { 12 };

/// The flag in `L->cframe` of a frame in which a coroutine was resumed.
const CFRAME_RESUME: u64 = 1;

/// The coroutine of the events of a VM that follow this record, and its request.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestSeen {
    /// [`REQUEST_SEEN`].
    pub kind: u8,
    /// Always 0.
    pub reserved: u8,
    /// Index of the VM.
    pub vm: u16,
    /// The number of VMs that had this index before.
    pub generation: u32,
    /// The address of the coroutine; 0 if none is known to run.
    pub thread: u64,
    /// The return address of the call that resumed it; 0 for the main coroutine, or if it is not known.
    pub resumed_from: u64,
    /// The request.
    pub marks: RequestMarks,
    /// The name of its route, as [`RouteMarks::name`].
    pub route: u64,
    /// As [`RouteMarks::identity`].
    pub route_identity: u64,
    /// A [`RouteState`](crate::route::RouteState).
    pub route_state: u32,
    /// Always 0: keeps the size a multiple of 8.
    pub reserved_too: u32,
}

impl RequestSeen {
    /// What is known of the route.
    pub fn route(&self) -> RouteMarks {
        let Self { route: name, route_identity: identity, route_state: state, .. } = *self;
        RouteMarks { name, identity, state, ..RouteMarks::default() }
    }
}

// SAFETY: the fields are integers laid out without padding, as the assertion below proves.
unsafe impl Pod for RequestSeen {}

/// The state of one VM's requests, with scratch space for the look.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServingRoom {
    head: Head,
    route: RouteMarks,
    /// The current coroutine and request.
    pub now: RequestSeen,
    /// The last record that user space got.
    pub told: RequestSeen,
}

const _: () = {
    assert!(size_of::<RequestSeen>() == 8 + 2 * 8 + size_of::<RequestMarks>() + 3 * 8);
    assert!(size_of::<ServingRoom>() == size_of::<Head>() + size_of::<RouteMarks>() + 2 * size_of::<RequestSeen>());
};

/// No coroutine is known to run.
struct NotRunning;

impl From<Unreadable> for NotRunning {
    #[inline(always)]
    fn from(Unreadable: Unreadable) -> Self {
        Self
    }
}

impl ServingRoom {
    /// Puts the request into [`Self::now`] that the coroutine `thread` serves, which allocates while the native stack pointer is
    /// `stack_pointer`. Keeps its `vm` and `generation`. The route is read by [`Self::look_for_route`].
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

    /// Puts the route of the request in [`Self::now`] there, if the program's requests have routes.
    #[inline(always)]
    pub fn look_for_route(&mut self, memory: &impl ReadMemory, vm: &VmConfig, layout: &RequestLayout) {
        let Self { route, now, .. } = self;
        let routes = layout.routes.global;
        if routes == 0 || routes != vm.global || now.marks.state != RequestState::Found as u32 {
            return;
        }
        clear(route);
        route.read(memory, layout, &vm.layout, now.marks.request);
        (now.route, now.route_identity, now.route_state) = (route.name, route.identity, route.state);
    }

    /// Marks the route in [`Self::now`], which was looked for, if a table that leads to it may be half changed. `shrunk` is the block that the call makes
    /// smaller or frees; 0 for other calls.
    #[inline(always)]
    pub fn mark_route(&mut self, memory: &impl ReadMemory, shrunk: u64) {
        let Self { route, now, .. } = self;
        route.mark_if_shrinking(memory, shrunk);
        now.route_state = route.state;
    }

    /// Whether user space knows the current request. It is written without branches: the verifier would follow each of them.
    #[inline(always)]
    pub fn is_told(&self) -> bool {
        let Self { now, told, .. } = self;
        let (marks, others) = (&now.marks, &told.marks);
        let differences = (now.thread ^ told.thread)
            | (now.resumed_from ^ told.resumed_from)
            | (marks.request ^ others.request)
            | (marks.locations ^ others.locations)
            | (marks.location ^ others.location)
            | (marks.servers ^ others.servers)
            | (now.route ^ told.route)
            | (now.route_identity ^ told.route_identity)
            | u64::from(now.route_state ^ told.route_state)
            | u64::from(marks.phase ^ others.phase)
            | u64::from(marks.state ^ others.state)
            | u64::from(now.generation ^ told.generation)
            | u64::from(now.kind ^ told.kind)
            | u64::from(now.vm ^ told.vm);
        differences == 0
    }
}

/// Reads the coroutine's word for its embedder, and the return address of the call that resumed it.
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
    // The head up to the word.
    head.read::<13, 9>(memory, gc64, thread)?;
    if head.reference(gc64, layout.l_glref)? != vm.global || head.u8(gct_offset(gc64) as u16)? != gct::THREAD {
        return Err(NotRunning);
    }
    now.marks.request = head.u64(word as u16)?;
    let mut raw = head.u64(layout.l_cframe)?;
    let is_main = thread == vm.global.wrapping_sub(vm.global_offset);
    for _ in 0..MOST_C_FRAMES {
        let cframe = raw & !CFRAME_FLAGS;
        // A C frame that was left lies below the running one.
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
            if let Some(slot) = resume_return_slot(layout.cframe_size, layout.cframe_l) {
                now.resumed_from = head.u64(slot)?;
            }
            return Ok(());
        }
        raw = head.u64(layout.cframe_prev)?;
    }
    // It is not known what has resumed the coroutine.
    Ok(())
}
