//! What a VM allocates: one record for each call of its allocator, and who caused it, in the terms of
//! Tarantool's memprof (`memprof_write_func` and its neighbours, `lj_memprof.c` of the fork).

use crate::event::{FrameKind, FrameRecord, NO_POSITION};
use crate::frame::{describe, gct_offset, read_frame};
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
    /// As in [`FrameRecord`].
    pub chunkname: u64,
    /// As in [`FrameRecord`].
    pub first_line: u32,
    /// As in [`FrameRecord`].
    pub size_bc: u32,
    /// Index of the bytecode that is being executed, or [`NO_POSITION`].
    pub position: u32,
    /// Index of the VM.
    pub vm: u16,
    /// An [`AllocationKind`].
    pub kind: u8,
    /// An [`AllocationSource`].
    pub source: u8,
}

// SAFETY: the fields are integers laid out without padding, as the assertion below proves.
unsafe impl Plain for AllocationEvent {}

/// The last call of the allocator on a thread.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PendingAllocation {
    /// What it will have done.
    pub event: AllocationEvent,
    /// Where its return address lies on the stack: the kernel has put the address of a trampoline there.
    pub return_slot: u64,
    /// The address that was there.
    pub return_address: u64,
    /// Whether it has returned.
    pub returned: u64,
}

// SAFETY: as above.
unsafe impl Plain for PendingAllocation {}

const _: () = assert!(size_of::<AllocationEvent>() == 64 && size_of::<PendingAllocation>() == 88);

/// Fills in who causes an allocation that `vm` is making.
///
/// What cannot be read counts as the VM's own doing, as it does in the process itself.
#[inline(always)]
pub fn attribute(memory: &impl ReadMemory, vm: &VmConfig, record: &mut FrameRecord, event: &mut AllocationEvent) {
    event.source = AllocationSource::Internal as u8;
    event.place = 0;
    event.chunkname = 0;
    event.first_line = 0;
    event.size_bc = 0;
    event.position = NO_POSITION;
    let Ok(raw) = memory.read::<i32>(vm.global + u64::from(vm.layout.g_vmstate)) else { return };
    let states = vm.layout.states();
    match VmState::from_raw(states, raw) {
        VmState::Trace => {
            event.source = AllocationSource::Trace as u8;
            event.place = raw as u64;
        }
        // Upstream builds are in this state in all Lua code, Tarantool's only between functions.
        VmState::Interp if states == VmStates::Tarantool => {}
        VmState::Interp | VmState::Lfunc | VmState::Ffunc | VmState::Cfunc => {
            if function(memory, vm, record).is_ok() {
                let lua = record.kind == FrameKind::Lua as u8;
                event.source = if lua { AllocationSource::Lua } else { AllocationSource::C } as u8;
                event.place = record.code;
                event.chunkname = record.chunkname;
                event.first_line = record.first_line;
                event.size_bc = record.size_bc;
                event.position = record.position;
            }
        }
        VmState::Gc | VmState::Exit | VmState::Record | VmState::Opt | VmState::Asm => {}
    }
}

/// There is no function that it could be attributed to.
struct Nobody;

impl From<Unreadable> for Nobody {
    #[inline(always)]
    fn from(Unreadable: Unreadable) -> Self {
        Self
    }
}

/// Describes the function that is running: the innermost one, or the Lua function that called it if it is a
/// fast function.
#[inline(always)]
fn function(memory: &impl ReadMemory, vm: &VmConfig, record: &mut FrameRecord) -> Result<(), Nobody> {
    let layout = &vm.layout;
    let gc64 = layout.is_gc64();
    let thread = running_thread(memory, vm)?;
    let base = memory.read::<u64>(thread + u64::from(layout.l_base))?;
    let (function, link) = read_frame(memory, layout, base)?;
    if function == thread {
        return Err(Nobody);
    }
    // Whatever allocates has its PC saved, since it may throw an error with a line in it.
    let cframe = memory.read::<u64>(thread + u64::from(layout.l_cframe))? & !crate::frame::CFRAME_FLAGS;
    let pc = if cframe == 0 { 0 } else { memory.read_ref(gc64, cframe + u64::from(layout.cframe_pc)).unwrap_or(0) };
    describe(memory, layout, function, pc, record).map_err(|_| Nobody)?;
    if record.kind != FrameKind::Fast as u8 {
        return Ok(());
    }
    let code = record.code;
    if lua_caller(memory, layout, base, link, record).is_err() || record.kind != FrameKind::Lua as u8 {
        record.kind = FrameKind::C as u8;
        record.code = code;
        record.position = NO_POSITION;
    }
    Ok(())
}

/// The coroutine that allocates: Tarantool's VM notes it, in others it is the one that runs.
#[inline(always)]
fn running_thread(memory: &impl ReadMemory, vm: &VmConfig) -> Result<u64, Nobody> {
    let layout = &vm.layout;
    let gc64 = layout.is_gc64();
    let field = if layout.g_mem_l == ABSENT { layout.g_cur_l } else { layout.g_mem_l };
    if field == ABSENT {
        return Err(Nobody);
    }
    let thread = memory.read_ref(gc64, vm.global + u64::from(field))?;
    if thread == 0
        || memory.read_ref(gc64, thread + u64::from(layout.l_glref))? != vm.global
        || memory.read::<u8>(thread + gct_offset(gc64))? != gct::THREAD
    {
        return Err(Nobody);
    }
    Ok(thread)
}

/// Describes the function that called the one with `base`, if it called it as Lua code does.
#[inline(always)]
fn lua_caller(
    memory: &impl ReadMemory,
    layout: &VmLayout,
    base: u64,
    link: u64,
    record: &mut FrameRecord,
) -> Result<(), Nobody> {
    let gc64 = layout.is_gc64();
    let (caller, pc) = match link & 7 {
        // FRAME_LUA: frame_prevl, lj_frame.h.
        0 | 4 if link != 0 => {
            let call = memory.read::<u32>(link - 4)?;
            let slots = u64::from(call >> 8 & 0xff) + if gc64 { 2 } else { 1 };
            (base - slots * 8, link)
        }
        // FRAME_CONT: frame_contpc.
        2 => {
            let pc = if gc64 { memory.read_ref(true, base - 24)? } else { memory.read_ref(false, base - 12)? };
            (base.wrapping_sub(link & !7), pc)
        }
        _ => return Err(Nobody),
    };
    let (function, _) = read_frame(memory, layout, caller)?;
    describe(memory, layout, function, pc, record).map_err(|_| Nobody)
}
