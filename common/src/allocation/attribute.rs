//! Who causes an allocation, in the terms of Tarantool's memprof (`memprof_write_func` and its neighbours,
//! `lj_memprof.c` of the fork).

use super::event::{AllocationEvent, AllocationSource};
use super::known::{KnownObjects, NoFunction, locate};
use super::on_trace;
use crate::event::FrameKind;
use crate::frame::{CFRAME_FLAGS, gct_offset, read_frame};
use crate::head::Head;
use crate::layout::{ABSENT, VmLayout, VmStates, gct};
use crate::memory::{ReadMemory, Unreadable};
use crate::vm::{NO_WORD, VmConfig, VmState, WINDOW};

/// Room to find out in who allocates: the stack of a BPF program is too small for it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Of the `global_State`, and the coroutine where that does not name it ([`crate::vm::NO_WORD`]).
    window: [u64; 32],
    head: Head,
}

impl Room {
    /// Nothing in it.
    pub const EMPTY: Self = Self { window: [0; 32], head: Head::EMPTY };

    /// Says which coroutine allocates, for VMs whose `global_State` does not; 0 if that is not known.
    #[inline(always)]
    pub fn note_thread(&mut self, thread: u64) {
        self.window[NO_WORD as usize] = thread;
    }

    /// Reads what is needed of the `global_State`; returns the raw `vmstate`.
    #[inline(always)]
    fn read_global(&mut self, memory: &impl ReadMemory, vm: &VmConfig) -> Result<i32, Unreadable> {
        let start = vm.layout.g_vmstate & !7;
        memory.read_words(vm.global.wrapping_add(u64::from(start)), &mut self.window[..WINDOW])?;
        Ok((self.window[0] >> (u32::from(vm.layout.g_vmstate & 4) * 8)) as i32)
    }

    /// The coroutine that the `global_State` names.
    #[inline(always)]
    fn thread(&self, vm: &VmConfig) -> u64 {
        let word = self.window[vm.thread_word as usize % 32];
        if vm.layout.is_gc64() { word } else { word >> (vm.thread_shift & 32) & 0xffff_ffff }
    }
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
    room: &mut Room,
    event: &mut AllocationEvent,
) {
    event.source = AllocationSource::Internal as u8;
    event.place = 0;
    event.line = 0;
    let Ok(raw) = room.read_global(memory, vm) else { return };
    let states = vm.layout.states();
    match VmState::from_raw(states, raw) {
        VmState::Trace => trace(memory, vm, room, raw, event),
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
            trace(memory, vm, room, raw, event);
        }
        VmState::Gc | VmState::Exit | VmState::Record | VmState::Opt | VmState::Asm => {}
    }
}

#[inline(always)]
fn trace(memory: &impl ReadMemory, vm: &VmConfig, room: &Room, raw: i32, event: &mut AllocationEvent) {
    event.source = AllocationSource::Trace as u8;
    on_trace::note(memory, vm, room.thread(vm), raw as u32, event);
}

/// There is no function that it could be attributed to.
struct Nobody;

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
/// fast function.
#[inline(always)]
fn function(
    memory: &impl ReadMemory,
    vm: &VmConfig,
    objects: &mut impl KnownObjects,
    room: &mut Room,
    event: &mut AllocationEvent,
) -> Result<AllocationSource, Nobody> {
    let layout = &vm.layout;
    let gc64 = layout.is_gc64();
    let thread = running_thread(memory, vm, room)?;
    let head = &mut room.head;
    let base = head.u64(layout.l_base)?;
    let cframe = head.u64(layout.l_cframe)? & !CFRAME_FLAGS;
    if cframe == 0 && layout.g_mem_l == ABSENT {
        // cur_L is left over: that coroutine has yielded, and what runs is not known.
        return Err(Nobody);
    }
    let (function, link) = read_frame(memory, layout, base)?;
    if function == thread {
        return Err(Nobody);
    }
    let known = objects.function(function).ok_or(Nobody)?;
    known.become_function(memory, layout, function, head)?;
    let code = known.code;
    if known.is(FrameKind::Lua) {
        // Whatever allocates has its PC saved, since it may throw an error with a line in it.
        let pc = if cframe == 0 {
            0
        } else {
            memory.read_ref(gc64, cframe.wrapping_add(u64::from(layout.cframe_pc))).unwrap_or(0)
        };
        return lua(memory, layout, objects, head, (code, pc), event);
    }
    if known.is(FrameKind::Fast)
        && let Ok((function, pc)) = caller(memory, layout, base, link)
        && let Some(known) = objects.function(function)
        && known.become_function(memory, layout, function, head).is_ok()
        && known.is(FrameKind::Lua)
    {
        let code = known.code;
        return lua(memory, layout, objects, head, (code, pc), event);
    }
    event.place = code;
    Ok(AllocationSource::C)
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

/// The coroutine that allocates, whose `lua_State` it leaves in the room: Tarantool's VM notes it, in others it is
/// the one that runs.
#[inline(always)]
fn running_thread(memory: &impl ReadMemory, vm: &VmConfig, room: &mut Room) -> Result<u64, Nobody> {
    let layout = &vm.layout;
    let gc64 = layout.is_gc64();
    let thread = room.thread(vm);
    if thread == 0 {
        return Err(Nobody);
    }
    let head = &mut room.head;
    head.read::<11, 7>(memory, gc64, thread)?;
    if head.reference(gc64, layout.l_glref)? != vm.global || head.u8(gct_offset(gc64) as u16)? != gct::THREAD {
        return Err(Nobody);
    }
    Ok(thread)
}

/// The function that called the one with `base`, if it called as Lua functions do, and the PC after its call.
#[inline(always)]
fn caller(memory: &impl ReadMemory, layout: &VmLayout, base: u64, link: u64) -> Result<(u64, u64), Nobody> {
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
