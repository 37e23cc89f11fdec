//! Which function or trace causes an allocation, in the terms of Tarantool's memprof ([`memprof_write_func`] and its
//! neighbours, `lj_memprof.c` of the fork).
//!
//! LuaJIT's sources: [`memprof_write_caller`], [`frame_prevl`].
//!
//! [`memprof_write_func`]: https://github.com/tarantool/luajit/blob/b52fe9795db249e7803aeef22c2ed6129a97aaeb/src/lj_memprof.c#L133-L148
//! [`memprof_write_caller`]: https://github.com/tarantool/luajit/blob/b52fe9795db249e7803aeef22c2ed6129a97aaeb/src/lj_memprof.c#L202-L209
//! [`frame_prevl`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_frame.h#L108

use core::mem::MaybeUninit;

use super::call_site::CallingPlace;
use super::event::{AllocationEvent, AllocationSource};
use super::known::{KnownObjects, NoFunction, locate};
use super::on_trace::{self, TraceRoom};
use crate::arch::{STATE_NAMES_KIND, STATE_NAMES_TRACE};
use crate::event::RecordKind;
use crate::frame::{CFRAME_FLAGS, gct_offset, read_frame};
use crate::head::Head;
use crate::layout::{ABSENT, VmLayout, VmStates, gct};
use crate::memory::{Pod, ReadMemory, Unreadable, zeroed};
use crate::vm::{VmConfig, VmState, WINDOW, jit_base};

/// Working memory to find out who allocates: the stack of a BPF program is too small for it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttributionRoom {
    /// The coroutine that allocates; 0 if it is not known.
    thread: u64,
    /// Its `L->base`.
    base: u64,
    /// Its innermost C frame.
    cframe: u64,
    /// The raw `vmstate`.
    vmstate: i64,
    /// The call of the allocator; set only where the VM's state does not name the running trace.
    call: CallingPlace,
    /// Room to read the heads of functions, prototypes and traces that were not known.
    head: Head,
    trace: TraceRoom,
}

// SAFETY: the fields are integers laid out without padding, as the assertion below proves.
unsafe impl Pod for AttributionRoom {}

const _: () = assert!(
    size_of::<AttributionRoom>() == 4 * 8 + size_of::<CallingPlace>() + size_of::<Head>() + size_of::<TraceRoom>()
);

impl AttributionRoom {
    /// Empty working memory.
    pub const EMPTY: Self = Self {
        thread: 0,
        base: 0,
        cframe: 0,
        vmstate: 0,
        call: CallingPlace::NONE,
        head: Head::EMPTY,
        trace: TraceRoom::EMPTY,
    };

    /// Sets the coroutine that allocates, for VMs whose `global_State` does not name it; 0 if it is not known.
    #[inline(always)]
    pub fn note_thread(&mut self, thread: u64) {
        self.thread = thread;
    }

    /// Sets the place that calls the allocator, where the VM's state does not name the running trace.
    #[inline(always)]
    pub fn note_call(&mut self, call: CallingPlace) {
        if !STATE_NAMES_TRACE {
            self.call = call;
        }
    }

    /// The coroutine that allocates, once [`attribute`] has looked; 0 if it is not known.
    #[inline(always)]
    pub const fn thread(&self) -> u64 {
        self.thread
    }
}

/// Reads what is needed of the `global_State`: the raw `vmstate`, and the coroutine that allocates if the
/// `global_State` names it. Returns whether it could be read.
///
/// It is a separate function in the kernel, because a program's stack has no room for the window and everything else.
#[inline(never)]
fn read_state(memory: &impl ReadMemory, vm: &VmConfig, room: &mut AttributionRoom) -> bool {
    let start = vm.layout.g_vmstate & !7;
    let mut window = MaybeUninit::uninit();
    let Ok(window) = memory.read_array::<WINDOW>(vm.global.wrapping_add(u64::from(start)), &mut window) else {
        return false;
    };
    room.vmstate = i64::from((window[0] >> (u32::from(vm.layout.g_vmstate & 4) * 8)) as i32);
    let word = vm.thread_word as usize;
    if word < WINDOW {
        let word = window[word];
        room.thread = if vm.layout.is_gc64() { word } else { word >> (vm.thread_shift & 32) & 0xffff_ffff };
    }
    true
}

/// Checks that the coroutine that allocates belongs to the VM, and reads its base and C frame. It is a separate
/// function for the same reason as [`read_state`].
#[inline(never)]
fn read_thread(memory: &impl ReadMemory, vm: &VmConfig, room: &mut AttributionRoom) -> bool {
    place_of(memory, vm, room.thread).map(|(base, cframe)| (room.base, room.cframe) = (base, cframe)).is_ok()
}

/// The base and the innermost C frame of a coroutine of `vm`.
#[inline(always)]
fn place_of(memory: &impl ReadMemory, vm: &VmConfig, thread: u64) -> Result<(u64, u64), Nobody> {
    let layout = &vm.layout;
    let gc64 = layout.is_gc64();
    let mut place = MaybeUninit::uninit();
    let head = zeroed::<Head>(&mut place);
    head.read::<11, 7>(memory, gc64, thread)?;
    if head.reference(gc64, layout.l_glref)? != vm.global || head.u8(gct_offset(gc64) as u16)? != gct::THREAD {
        return Err(Nobody);
    }
    Ok((head.u64(layout.l_base)?, head.u64(layout.l_cframe)? & !CFRAME_FLAGS))
}

/// Fills in who causes an allocation that `vm` is making.
///
/// `objects` remembers what is known of the VM's objects; the caller must make it forget the objects that are freed.
/// `room` is working memory. If something cannot be read, the allocation counts as the VM's own, as in memprof itself.
#[inline(always)]
pub fn attribute(
    memory: &impl ReadMemory,
    vm: &VmConfig,
    objects: &mut impl KnownObjects,
    room: &mut AttributionRoom,
    event: &mut AllocationEvent,
) {
    event.source = AllocationSource::Internal as u8;
    event.place = 0;
    event.line = 0;
    event.caller = 0;
    if !read_state(memory, vm, room) {
        return;
    }
    let raw = room.vmstate as i32;
    let states = vm.layout.states();
    match VmState::from_raw(states, raw) {
        // While `lua_newstate` makes a VM, its state is 0, too.
        VmState::Trace if raw == 0 && (STATE_NAMES_TRACE || jit_base(memory, vm) == Ok(0)) => {}
        VmState::Trace => trace(memory, vm, objects, room, event),
        // Upstream builds use this state for all Lua code, Tarantool's builds for x86-64 only between functions.
        VmState::Interp
            if states == VmStates::Tarantool
                && (STATE_NAMES_KIND || moves_stack(memory, vm, room.thread, event.pointer)) => {}
        VmState::Interp | VmState::Lfunc | VmState::Ffunc | VmState::Cfunc => {
            // A lookup that fails halfway leaves the source unset.
            if let Ok(source) = function(memory, vm, objects, room, event) {
                event.source = source as u8;
            }
        }
        // A value that is no state at all counts as a trace, too: an FFI callback of Tarantool's VM restores a state
        // that it has not saved (`memprof_write_caller` has the same condition).
        VmState::Asm if states == VmStates::Tarantool && !raw != VmState::Asm as i32 => {
            trace(memory, vm, objects, room, event);
        }
        VmState::Gc | VmState::Exit | VmState::Record | VmState::Opt | VmState::Asm => {}
    }
}

/// Whether a block is the stack of the coroutine that allocates. Tarantool's VM sets INTERP while it gives a stack another
/// size ([`resizestack`]), where its memprof must not look at the stack; the allocation is then the VM's own.
///
/// [`resizestack`]: https://github.com/tarantool/luajit/blob/b52fe9795db249e7803aeef22c2ed6129a97aaeb/src/lj_state.c#L76-L84
#[inline(never)]
fn moves_stack(memory: &impl ReadMemory, vm: &VmConfig, thread: u64, block: u64) -> bool {
    let stack = thread.wrapping_add(u64::from(vm.layout.l_stack));
    block != 0 && thread != 0 && memory.read_ref(vm.layout.is_gc64(), stack) == Ok(block)
}

/// The trace that runs.
#[inline(always)]
fn trace(
    memory: &impl ReadMemory,
    vm: &VmConfig,
    objects: &mut impl KnownObjects,
    room: &mut AttributionRoom,
    event: &mut AllocationEvent,
) {
    if !STATE_NAMES_TRACE {
        leave_c(memory, objects, room);
        // The number is at first that of the last search for this place in a trace.
        find_number(memory, vm, objects, room, false);
        if trace_with_number(memory, vm, objects, room, event) {
            return;
        }
        find_number(memory, vm, objects, room, true);
    }
    trace_with_number(memory, vm, objects, room, event);
}

/// Finds the place in a trace from which the allocator is called. A separate function for the same reason as
/// [`read_state`], as are the following ones.
#[inline(never)]
fn leave_c(memory: &impl ReadMemory, objects: &impl KnownObjects, room: &mut AttributionRoom) {
    room.call = room.call.leave_c(memory, objects);
}

/// Finds the number of the trace that has this place.
#[inline(never)]
fn find_number(
    memory: &impl ReadMemory,
    vm: &VmConfig,
    objects: &mut impl KnownObjects,
    room: &mut AttributionRoom,
    searches: bool,
) {
    room.vmstate = i64::from(objects.trace_around(memory, vm, room.call.return_address, searches));
}

/// Notes the trace with the number in the VM's state. Returns whether its place is known.
#[inline(never)]
fn trace_with_number(
    memory: &impl ReadMemory,
    vm: &VmConfig,
    objects: &mut impl KnownObjects,
    room: &mut AttributionRoom,
    event: &mut AllocationEvent,
) -> bool {
    let AttributionRoom { thread, vmstate, call, head, trace, .. } = room;
    on_trace::note(memory, vm, objects, (trace, head), (*thread, *vmstate as u32, *call), event)
}

/// No function is known that the allocation could be attributed to.
pub(crate) struct Nobody;

impl From<Unreadable> for Nobody {
    #[inline(always)]
    fn from(Unreadable: Unreadable) -> Self {
        Self
    }
}

impl From<NoFunction> for Nobody {
    #[inline(always)]
    fn from(NoFunction: NoFunction) -> Self {
        Self
    }
}

/// Describes the running function: the innermost one, or the Lua function that called it if it is a fast function. For
/// a C function, it also notes the Lua function that called it.
#[inline(always)]
fn function(
    memory: &impl ReadMemory,
    vm: &VmConfig,
    objects: &mut impl KnownObjects,
    room: &mut AttributionRoom,
    event: &mut AllocationEvent,
) -> Result<AllocationSource, Nobody> {
    let layout = &vm.layout;
    let gc64 = layout.is_gc64();
    if room.thread == 0 || !read_thread(memory, vm, room) {
        return Err(Nobody);
    }
    let AttributionRoom { thread, base, cframe, ref mut head, .. } = *room;
    if cframe == 0 && layout.g_mem_l == ABSENT {
        // cur_L is stale: that coroutine has yielded, and it is not known what runs.
        return Err(Nobody);
    }
    let (function, link) = read_frame(memory, layout, base)?;
    if function == thread {
        return Err(Nobody);
    }
    let window = objects.window();
    let known = objects.function(function).ok_or(Nobody)?;
    known.become_function(memory, layout, function, window, head)?;
    let (mut code, mut pc) = (known.code, 0);
    // Address of the C function, if the running function is one.
    let mut native = 0;
    if known.is(RecordKind::Lua) {
        // Code that allocates has saved its PC, because it may throw an error with a line number in it.
        if cframe != 0 {
            pc = memory.read_ref(gc64, cframe.wrapping_add(u64::from(layout.cframe_pc))).unwrap_or(0);
        }
    } else {
        let is_fast = known.is(RecordKind::Fast);
        native = code;
        if let Ok((function, at)) = caller(memory, layout, base, link)
            && let Some(known) = objects.function(function)
            && known.become_function(memory, layout, function, window, head).is_ok()
            && known.is(RecordKind::Lua)
        {
            (code, pc) = (known.code, at);
            if is_fast {
                native = 0;
            }
        } else {
            event.place = native;
            return Ok(AllocationSource::C);
        }
    }
    // All paths join here.
    (room.base, room.cframe, event.caller) = (code, pc, native);
    let (code, pc) = (reread(&room.base), reread(&room.cframe));
    let found = lua(memory, layout, objects, &mut room.head, (code, pc), event);
    let native = reread(&event.caller);
    event.caller = 0;
    if native == 0 {
        return found;
    }
    // The caller's place replaces its function address. If the caller cannot be described, the C function alone remains.
    match found {
        Ok(AllocationSource::Lua) => event.caller = event.place,
        _ => event.line = 0,
    }
    event.place = native;
    Ok(AllocationSource::C)
}

/// Reads back a value that was just written, as a number about which the verifier knows nothing. Else the kernel's verifier
/// follows every path to this point separately to the end, which takes three times as many instructions in all.
#[inline(always)]
fn reread(place: &u64) -> u64 {
    // SAFETY: a reference is valid for reads.
    unsafe { core::ptr::read_volatile(place) }
}

/// Describes a Lua function, given its prototype and the PC in it.
#[inline(always)]
fn lua(
    memory: &impl ReadMemory,
    layout: &VmLayout,
    objects: &mut impl KnownObjects,
    head: &mut Head,
    (prototype, pc): (u64, u64),
    event: &mut AllocationEvent,
) -> Result<AllocationSource, Nobody> {
    let is_known = locate(memory, layout, objects, head, prototype, pc, event)?;
    Ok(if is_known { AllocationSource::Lua } else { AllocationSource::Internal })
}

/// The Lua function that called the function with `base`, and the PC after its call, if it called as Lua functions do.
#[inline(always)]
pub(crate) fn caller(memory: &impl ReadMemory, layout: &VmLayout, base: u64, link: u64) -> Result<(u64, u64), Nobody> {
    let gc64 = layout.is_gc64();
    let (caller, pc) = match link & 7 {
        // FRAME_LUA: frame_prevl, lj_frame.h.
        0 | 4 if link != 0 => {
            let call = memory.read::<u32>(link.wrapping_sub(4))?;
            let slots = u64::from(call >> 8 & 0xff) + if gc64 { 2 } else { 1 };
            (base.wrapping_sub(slots * 8), link)
        }
        // FRAME_CONT: frame_contpc.
        2 => {
            let pc = memory.read_ref(gc64, base.wrapping_sub(if gc64 { 24 } else { 12 }))?;
            (base.wrapping_sub(link & !7), pc)
        }
        _ => return Err(Nobody),
    };
    let (function, _) = read_frame(memory, layout, caller)?;
    Ok((function, pc))
}
