//! What a thread runs, in a word: for samples that only have to tell one activity of a program from another.

use crate::allocation::caller;
use crate::event::{FrameRecord, NO_VM, SampledRegisters};
use crate::frame::{ReadFrames, read_code, read_frame};
use crate::layout::ABSENT;
use crate::memo::Memo;
use crate::memory::{Pod, ReadMemory, Unreadable};
use crate::thread::LuaThread;
use crate::top;
use crate::vm::VmConfig;

/// A light sample.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActivitySample {
    /// When: nanoseconds of `CLOCK_MONOTONIC`.
    pub time: u64,
    /// What is executed: a `GCproto`, or a C function that no Lua function has called. 0 for anything else. Where no VM runs,
    /// the instruction's address.
    pub function: u64,
    /// The thread.
    pub tid: u32,
    /// Index of the VM that it runs; [`NO_VM`] for none.
    pub vm: u32,
}

impl ActivitySample {
    /// No VM runs.
    pub const EMPTY: Self = Self { time: 0, function: 0, tid: 0, vm: NO_VM };
}

// SAFETY: the fields are integers laid out without padding, as the assertion below proves.
unsafe impl Pod for ActivitySample {}

const _: () = assert!(size_of::<ActivitySample>() == 24);

/// How far above the stack pointer the innermost C frame of a VM may be: C functions that it has called have their own
/// frames below.
const C_STACK: u64 = 1 << 20;

/// Room to find out what runs.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ActivityRoom {
    memo: Memo,
    record: FrameRecord,
}

/// The coroutine of `vm` that runs on the thread whose stack pointer is `stack`; [`None`] if the VM does not run there.
#[inline(always)]
pub fn running(memory: &impl ReadMemory, vm: &VmConfig, stack: u64, room: &mut ActivityRoom) -> Option<LuaThread> {
    let layout = &vm.layout;
    if layout.g_cur_l == ABSENT {
        return None;
    }
    let gc64 = layout.is_gc64();
    let address = memory.read_ref(gc64, vm.global.wrapping_add(u64::from(layout.g_cur_l))).ok()?;
    if address == 0 {
        return None;
    }
    let thread = LuaThread::read(memory, layout, address, &mut room.memo.head).ok()?;
    let is_here = thread.is_thread && thread.global == vm.global && thread.cframe.wrapping_sub(stack) < C_STACK;
    // Both point at each other.
    (is_here && memory.read_ref(gc64, thread.cframe.wrapping_add(u64::from(layout.cframe_l))) == Ok(address))
        .then_some(thread)
}

/// The innermost Lua function of `thread`, which [runs](running): the address of its prototype. Of a trace, the function
/// that it was in when it was entered. Of a fast function or C function, the Lua function that has called it, else its own
/// address.
///
/// # Errors
/// The state of the VM cannot be read, or has no function in it.
#[inline(always)]
pub fn function(
    memory: &impl ReadFrames,
    vm: &VmConfig,
    registers: &SampledRegisters,
    thread: &LuaThread,
    room: &mut ActivityRoom,
) -> Result<u64, Unreadable> {
    let layout = &vm.layout;
    let ActivityRoom { memo, record } = room;
    // What was read for the last sample may not be true any more.
    memo.forget();
    memo.look_at(&thread.coroutine);
    let top = top::find(memory, vm, registers, (&thread.coroutine, thread.base), thread.cframe, (record, memo))?;
    if !thread.coroutine.holds(top.base) {
        return Err(Unreadable);
    }
    let (innermost, link) = read_frame(memory, layout, top.base)?;
    let code = read_code(memory, layout, innermost, &mut memo.head).map_err(|_| Unreadable)?;
    if code.ffid != 0
        && let Ok((function, _)) = caller(memory, layout, top.base, link)
        && let Ok(code) = read_code(memory, layout, function, &mut memo.head)
    {
        return Ok(code.address);
    }
    Ok(code.address)
}
