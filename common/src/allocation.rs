//! What a VM allocates: one record for each call of its allocator, and who caused it, in the terms of
//! Tarantool's memprof (`memprof_write_func` and its neighbours, `lj_memprof.c` of the fork).

use crate::event::{FrameKind, FrameRecord};
use crate::frame::{CFRAME_FLAGS, gct_offset, read_frame};
use crate::head::Head;
use crate::known::{KnownFunction, KnownFunctions, NoFunction};
use crate::layout::{ABSENT, VmLayout, VmStates, gct};
use crate::memory::{Plain, ReadMemory, Unreadable};
use crate::vm::{VmConfig, VmState};

/// What the allocator was asked to do.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocationKind {
    /// New memory.
    Alloc = 0,
    /// Another size for memory that there is.
    Realloc = 1,
    /// Memory given back.
    Free = 2,
}

impl AllocationKind {
    /// What `allocf(ud, pointer, old_size, size)` means (`lua_Alloc`, `lua.h`).
    #[inline(always)]
    pub const fn of_call(pointer: u64, size: u64) -> Self {
        if size == 0 {
            Self::Free
        } else if pointer == 0 {
            Self::Alloc
        } else {
            Self::Realloc
        }
    }

    /// The kind with this number.
    pub const fn from_u8(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Alloc,
            1 => Self::Realloc,
            2 => Self::Free,
            _ => return None,
        })
    }
}

/// Who caused it.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocationSource {
    /// The VM itself.
    Internal = 0,
    /// A Lua function: `place` is its prototype.
    Lua = 1,
    /// A C function: `place` is its address.
    C = 2,
    /// A trace: `place` is its number.
    Trace = 3,
}

impl AllocationSource {
    /// The source with this number.
    pub const fn from_u8(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Internal,
            1 => Self::Lua,
            2 => Self::C,
            3 => Self::Trace,
            _ => return None,
        })
    }
}

/// One call of a VM's allocator. Sizes are in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllocationEvent {
    /// The memory that was freed or given another size; 0 for a new allocation.
    pub pointer: u64,
    /// Where the memory lies now; 0 for a free.
    pub result: u64,
    /// The size that it had.
    pub old_size: u64,
    /// The size that it has now.
    pub size: u64,
    /// Who: see [`AllocationSource`].
    pub place: u64,
    /// Address of the prototype's chunkname: until the prototype is freed, which is an event too, it stays the same.
    pub chunkname: u64,
    /// Line where the prototype is defined.
    pub first_line: u32,
    /// Number of its bytecodes.
    pub size_bc: u32,
    /// The line that is being executed; 0 if the prototype has no line numbers.
    pub line: u32,
    /// Index of the VM.
    pub vm: u16,
    /// An [`AllocationKind`].
    pub kind: u8,
    /// An [`AllocationSource`].
    pub source: u8,
}

// SAFETY: the fields are integers laid out without padding, as the assertion below proves.
unsafe impl Plain for AllocationEvent {}

/// Room to find out in who allocates: the stack of a BPF program is too small for it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    record: FrameRecord,
    head: Head,
}

impl Room {
    /// Nothing in it.
    pub const EMPTY: Self = Self { record: FrameRecord::EMPTY, head: Head::EMPTY };
}

/// The last call of the allocator on a thread.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingAllocation {
    /// What it has done, or will have done.
    pub event: AllocationEvent,
    /// Where that was found out.
    pub room: Room,
    /// Where its return address lies on the stack: the kernel has put the address of a trampoline there.
    pub return_slot: u64,
    /// The address that was there.
    pub return_address: u64,
    /// Whether it has returned.
    pub returned: u64,
}

impl PendingAllocation {
    /// Nothing yet.
    pub const EMPTY: Self = Self {
        event: AllocationEvent {
            pointer: 0,
            result: 0,
            old_size: 0,
            size: 0,
            place: 0,
            chunkname: 0,
            first_line: 0,
            size_bc: 0,
            line: 0,
            vm: 0,
            kind: 0,
            source: 0,
        },
        room: Room::EMPTY,
        return_slot: 0,
        return_address: 0,
        returned: 0,
    };
}

// SAFETY: as above.
unsafe impl Plain for PendingAllocation {}

const _: () = assert!(size_of::<AllocationEvent>() == 64 && size_of::<PendingAllocation>() == 64 + 48 + 96 + 24);

/// Fills in who causes an allocation that `vm` is making.
///
/// `functions` is what is known of the VM's functions; whoever calls makes it forget those that are freed, and
/// `room` is to work in. What cannot be read counts as the VM's own doing, as it does in the process itself.
#[inline(always)]
pub fn attribute(
    memory: &impl ReadMemory,
    vm: &VmConfig,
    functions: &mut impl KnownFunctions,
    room: &mut Room,
    event: &mut AllocationEvent,
) {
    event.source = AllocationSource::Internal as u8;
    event.place = 0;
    event.chunkname = 0;
    event.first_line = 0;
    event.size_bc = 0;
    event.line = 0;
    let Ok(raw) = memory.read::<i32>(vm.global + u64::from(vm.layout.g_vmstate)) else { return };
    let states = vm.layout.states();
    match VmState::from_raw(states, raw) {
        VmState::Trace => trace(raw, event),
        // Upstream builds are in this state in all Lua code, Tarantool's only between functions.
        VmState::Interp if states == VmStates::Tarantool => {}
        VmState::Interp | VmState::Lfunc | VmState::Ffunc | VmState::Cfunc => {
            // What has failed halfway leaves nothing behind.
            if let Ok(source) = function(memory, vm, functions, room, event) {
                event.source = source as u8;
            }
        }
        // What is no state at all is a trace, too: an FFI callback of Tarantool's VM restores a state that it has
        // not saved (`memprof_write_caller` has the same condition).
        VmState::Asm if states == VmStates::Tarantool && !raw != VmState::Asm as i32 => trace(raw, event),
        VmState::Gc | VmState::Exit | VmState::Record | VmState::Opt | VmState::Asm => {}
    }
}

#[inline(always)]
fn trace(raw: i32, event: &mut AllocationEvent) {
    event.source = AllocationSource::Trace as u8;
    event.place = u64::from(raw as u32);
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
    functions: &mut impl KnownFunctions,
    room: &mut Room,
    event: &mut AllocationEvent,
) -> Result<AllocationSource, Nobody> {
    let layout = &vm.layout;
    let gc64 = layout.is_gc64();
    let Room { record, head } = room;
    let thread = running_thread(memory, vm, head)?;
    let base = head.u64(layout.l_base)?;
    let cframe = head.u64(layout.l_cframe)? & !CFRAME_FLAGS;
    let (function, link) = read_frame(memory, layout, base)?;
    if function == thread {
        return Err(Nobody);
    }
    let known = functions.place(function).ok_or(Nobody)?;
    known.become_function(memory, layout, function, head, record)?;
    let code = known.code;
    if known.is(FrameKind::Lua) {
        // Whatever allocates has its PC saved, since it may throw an error with a line in it.
        let pc = if cframe == 0 {
            0
        } else {
            memory.read_ref(gc64, cframe.wrapping_add(u64::from(layout.cframe_pc))).unwrap_or(0)
        };
        return lua(memory, layout, known, pc, event);
    }
    if known.is(FrameKind::Fast)
        && let Ok((function, pc)) = caller(memory, layout, base, link)
        && let Some(known) = functions.place(function)
        && known.become_function(memory, layout, function, head, record).is_ok()
        && known.is(FrameKind::Lua)
    {
        return lua(memory, layout, known, pc, event);
    }
    event.place = code;
    Ok(AllocationSource::C)
}

/// Fills in a Lua function and the line of `pc` in it. Without a position there is no function: so it is in the
/// process itself (`memprof_write_lfunc`, `lj_memprof.c`).
#[inline(always)]
fn lua(
    memory: &impl ReadMemory,
    layout: &VmLayout,
    known: &mut KnownFunction,
    pc: u64,
    event: &mut AllocationEvent,
) -> Result<AllocationSource, Nobody> {
    let Some(line) = known.line_at(memory, layout, pc)? else { return Ok(AllocationSource::Internal) };
    event.line = line;
    event.place = known.code;
    event.chunkname = known.chunkname;
    event.first_line = known.first_line;
    event.size_bc = known.size_bc;
    Ok(AllocationSource::Lua)
}

/// The coroutine that allocates, whose `lua_State` it leaves in `head`: Tarantool's VM notes it, in others it is
/// the one that runs.
#[inline(always)]
fn running_thread(memory: &impl ReadMemory, vm: &VmConfig, head: &mut Head) -> Result<u64, Nobody> {
    let layout = &vm.layout;
    let gc64 = layout.is_gc64();
    let field = if layout.g_mem_l == ABSENT { layout.g_cur_l } else { layout.g_mem_l };
    if field == ABSENT {
        return Err(Nobody);
    }
    let thread = memory.read_ref(gc64, vm.global + u64::from(field))?;
    if thread == 0 {
        return Err(Nobody);
    }
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
            let call = memory.read::<u32>(link - 4)?;
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
