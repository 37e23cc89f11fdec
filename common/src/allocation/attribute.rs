//! Who causes an allocation, in the terms of Tarantool's memprof ([`memprof_write_func`] and its neighbours,
//! `lj_memprof.c` of the fork).
//!
//! LuaJIT's sources: [`memprof_write_caller`], [`frame_prevl`].
//!
//! [`memprof_write_func`]: https://github.com/tarantool/luajit/blob/b52fe9795db249e7803aeef22c2ed6129a97aaeb/src/lj_memprof.c#L133-L148
//! [`memprof_write_caller`]: https://github.com/tarantool/luajit/blob/b52fe9795db249e7803aeef22c2ed6129a97aaeb/src/lj_memprof.c#L202-L209
//! [`frame_prevl`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_frame.h#L108

use core::mem::MaybeUninit;

use super::event::{AllocationEvent, AllocationSource};
use super::known::{KnownObjects, NoFunction, locate};
use super::on_trace::{self, TraceRoom};
use crate::event::RecordKind;
use crate::frame::{CFRAME_FLAGS, gct_offset, read_frame};
use crate::head::Head;
use crate::layout::{ABSENT, VmLayout, VmStates, gct};
use crate::memory::{Pod, ReadMemory, Unreadable, zeroed};
use crate::vm::{VmConfig, VmState, WINDOW};

/// Room to find out in who allocates: the stack of a BPF program is too small for it.
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
    /// Of functions, prototypes and traces that were not known.
    head: Head,
    trace: TraceRoom,
}

// SAFETY: the fields are integers laid out without padding, as the assertion below proves.
unsafe impl Pod for AttributionRoom {}

const _: () = assert!(size_of::<AttributionRoom>() == 4 * 8 + size_of::<Head>() + size_of::<TraceRoom>());

impl AttributionRoom {
    /// Nothing in it.
    pub const EMPTY: Self =
        Self { thread: 0, base: 0, cframe: 0, vmstate: 0, head: Head::EMPTY, trace: TraceRoom::EMPTY };

    /// Says which coroutine allocates, for VMs whose `global_State` does not; 0 if that is not known.
    #[inline(always)]
    pub fn note_thread(&mut self, thread: u64) {
        self.thread = thread;
    }

    /// The coroutine that allocates, once [`attribute`] has looked; 0 if it is not known.
    #[inline(always)]
    pub const fn thread(&self) -> u64 {
        self.thread
    }
}

/// Reads what is needed of the `global_State`: the raw `vmstate`, and the coroutine that allocates if it names that.
/// Whether it could be read.
///
/// A function of its own in the kernel: a program's stack has no room for its window beside all else.
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

/// Reads where the coroutine that allocates is, after a look whether it is one of the VM's. A function of its own as
/// [`read_state`] is.
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
/// `objects` is what is known of the VM's functions; whoever calls makes it forget those that are freed, and
/// `room` is to work in. What cannot be read counts as the VM's own doing, as it does in the process itself.
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
        VmState::Trace => trace(memory, vm, objects, room, event),
        // Upstream builds are in this state in all Lua code, Tarantool's only between functions.
        VmState::Interp if states == VmStates::Tarantool => {}
        VmState::Interp | VmState::Lfunc | VmState::Ffunc | VmState::Cfunc => {
            // What has failed halfway leaves nothing behind.
            if let Ok(source) = function(memory, vm, objects, room, event) {
                event.source = source as u8;
            }
        }
        // What is no state at all is a trace, too: an FFI callback of Tarantool's VM restores a state that it has
        // not saved (`memprof_write_caller` has the same condition).
        VmState::Asm if states == VmStates::Tarantool && !raw != VmState::Asm as i32 => {
            trace(memory, vm, objects, room, event);
        }
        VmState::Gc | VmState::Exit | VmState::Record | VmState::Opt | VmState::Asm => {}
    }
}

/// A function of its own as [`read_state`] is.
#[inline(never)]
fn trace(
    memory: &impl ReadMemory,
    vm: &VmConfig,
    objects: &mut impl KnownObjects,
    room: &mut AttributionRoom,
    event: &mut AllocationEvent,
) {
    let AttributionRoom { thread, vmstate, head, trace, .. } = room;
    on_trace::note(memory, vm, objects, (trace, head), (*thread, *vmstate as u32), event);
}

/// There is no function that it could be attributed to.
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

/// Describes the function that is running: the innermost one, or the Lua function that called it if it is a
/// fast function. Of a C function, the Lua function that called it is noted as well.
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
        // cur_L is left over: that coroutine has yielded, and what runs is not known.
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
    // The C function, if it is one.
    let mut native = 0;
    if known.is(RecordKind::Lua) {
        // Whatever allocates has its PC saved, since it may throw an error with a line in it.
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
    // All ways meet here.
    (room.base, room.cframe, event.caller) = (code, pc, native);
    let (code, pc) = (reread(&room.base), reread(&room.cframe));
    let found = lua(memory, layout, objects, &mut room.head, (code, pc), event);
    let native = reread(&event.caller);
    event.caller = 0;
    if native == 0 {
        return found;
    }
    // In place of what stands for the caller's name alone. Without its caller, the C function remains.
    match found {
        Ok(AllocationSource::Lua) => event.caller = event.place,
        _ => event.line = 0,
    }
    event.place = native;
    Ok(AllocationSource::C)
}

/// What was just written there, as a number of which nothing is known: else the kernel's verifier follows each way to it
/// on its own up to the end, three times as far in all.
#[inline(always)]
fn reread(place: &u64) -> u64 {
    // SAFETY: a reference is valid for reads.
    unsafe { core::ptr::read_volatile(place) }
}

/// Fills in a Lua function: its prototype, and the PC in it.
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

/// The function that called the one with `base`, if it called as Lua functions do, and the PC after its call.
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
