//! Samples in a few words: they only have to tell one activity of a program from another.

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
    /// Time of the sample, in nanoseconds of `CLOCK_MONOTONIC`.
    pub time: u64,
    /// Address of what is executed: a `GCproto`, or a C function that no Lua function has called; 0 for anything else.
    /// Without a running VM, the address of the instruction.
    pub function: u64,
    /// Thread id.
    pub tid: u32,
    /// Index of the VM that the thread runs; [`NO_VM`] for none.
    pub vm: u32,
}

impl ActivitySample {
    /// A sample without a running VM.
    pub const EMPTY: Self = Self { time: 0, function: 0, tid: 0, vm: NO_VM };
}

// SAFETY: the fields are integers laid out without padding, as the assertion below proves.
unsafe impl Pod for ActivitySample {}

const _: () = assert!(size_of::<ActivitySample>() == 24);

/// The most bytes between the stack pointer and the innermost C frame of a VM. C functions that the VM has called have
/// their own frames in between.
const C_STACK: u64 = 1 << 20;

/// Working memory to find out what runs.
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

/// Address of the prototype of the innermost Lua function of `thread`, a result of [`running`]. In a trace it is the
/// function that entered the trace. If the innermost function is a fast function or C function, it is the Lua function
/// that called it; without such a caller, the address of the function itself.
///
/// # Errors
/// If the state of the VM cannot be read, or holds no function.
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
    // The thread has run on since the last sample, so what was read for that may no longer be true.
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
