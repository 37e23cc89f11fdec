//! Where the walk of the innermost coroutine starts: its BASE and its PC at a sample.
//!
//! In the interpreter they are in registers, and `L->base` is stale; in C code it is the other way round.
//! `vm_x64.dasc` and `vm_x86.dasc` (LuaJIT 2.0 to 2.1 of August 2026, OpenResty, Tarantool) keep BASE in
//! `rdx` and PC, the address of the next bytecode, in `rbx`.

use crate::event::{
    FrameKind, FrameRecord, NO_POSITION, Registers, SAMPLE_BASE_IN_REGISTERS, SAMPLE_BASE_UNCERTAIN, SAMPLE_ON_TRACE,
    reg,
};
use crate::frame::{Coroutine, describe, read_frame_with};
use crate::layout::ABSENT;
use crate::memo::Memo;
use crate::memory::{ReadMemory, Unreadable};
use crate::vm::{VmConfig, VmState, jit_base};

/// The start of a walk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Top {
    /// BASE of the innermost frame.
    pub base: u64,
    /// Address after the bytecode that it executes; 0 if unknown.
    pub pc: u64,
    /// `SAMPLE_*` bits that tell where both came from.
    pub flags: u32,
    /// Raw `vmstate`.
    pub vmstate: i32,
    /// `jit_base`.
    pub jit_base: u64,
    /// `L->base`.
    pub thread_base: u64,
    /// In the state EXIT: the trace that is left, and in the upper half its exit.
    pub trace_exit: u32,
}

/// Finds the start of the walk of `coroutine`, which runs in the C frame at `cframe`, the innermost on the
/// sampled stack. `thread_base` is its `L->base`.
///
/// # Errors
/// [`Unreadable`] if the state of the VM or of the coroutine cannot be read.
#[inline(always)]
pub fn find(
    memory: &impl ReadMemory,
    vm: &VmConfig,
    registers: &Registers,
    (coroutine, thread_base): (&Coroutine, u64),
    cframe: u64,
    scratch: (&mut FrameRecord, &mut Memo),
) -> Result<Top, Unreadable> {
    let layout = &vm.layout;
    let gc64 = layout.is_gc64();
    let vmstate = memory.read::<i32>(vm.global.wrapping_add(u64::from(layout.g_vmstate)))?;
    let mut top = Top { vmstate, jit_base: jit_base(memory, vm)?, thread_base, ..Top::default() };
    top.base = top.thread_base;
    let state = VmState::from_raw(layout.states(), vmstate);
    // The compiler's states come from the interpreter: jit_base is zero there. A trace keeps it set, also
    // while the garbage collector or a C function runs on its behalf.
    if state == VmState::Trace || top.jit_base != 0 {
        top.flags = SAMPLE_ON_TRACE;
        if top.jit_base != 0 {
            top.base = top.jit_base;
        }
        return Ok(top);
    }
    if state == VmState::Exit && layout.g_to_j != ABSENT && layout.j_exitno != ABSENT {
        let jit_state = vm.global.wrapping_add(u64::from(layout.g_to_j));
        let trace = memory.read::<u32>(jit_state.wrapping_add(u64::from(layout.j_parent)))?;
        let exit = memory.read::<u32>(jit_state.wrapping_add(u64::from(layout.j_exitno)))?;
        top.trace_exit = trace & 0xffff | exit << 16;
    }
    let rip = registers[reg::RIP];
    let in_text = vm.text_start <= rip && rip < vm.text_end;
    if state.is_interpreting() && in_text {
        let narrow = |value: u64| if gc64 { value } else { value & 0xffff_ffff };
        let base = narrow(registers[reg::RDX]);
        let pc = narrow(registers[reg::RBX]);
        if let Some((base, pc)) = from_registers(memory, vm, coroutine, top.thread_base, (base, pc), scratch) {
            top.base = base;
            top.pc = pc;
            top.flags = SAMPLE_BASE_IN_REGISTERS;
            return Ok(top);
        }
    }
    if state.is_interpreting() {
        top.flags = SAMPLE_BASE_UNCERTAIN;
    }
    // Accepted later only if it points into the bytecode of the function at BASE.
    top.pc = memory.read_ref(gc64, cframe.wrapping_add(u64::from(layout.cframe_pc)))?;
    Ok(top)
}

/// Checks BASE and PC as found in registers, and sets them right in the few instructions of a call or a
/// return where they belong to different frames. `thread_base` is `L->base`.
#[inline(always)]
fn from_registers(
    memory: &impl ReadMemory,
    vm: &VmConfig,
    coroutine: &Coroutine,
    thread_base: u64,
    (base, pc): (u64, u64),
    (record, memo): (&mut FrameRecord, &mut Memo),
) -> Option<(u64, u64)> {
    let layout = &vm.layout;
    let gc64 = layout.is_gc64();
    if !coroutine.holds(base) {
        return None;
    }
    let mut is_function = false;
    if let Ok((function, link)) = read_frame_with(memory, layout, base, memo)
        && describe(memory, layout, function, pc, (record, memo)).is_ok()
    {
        if record.position != NO_POSITION {
            return Some((base, pc));
        }
        // BC_CALL* fetched the callee's PC, but has not moved it past the function's header yet.
        let header = memory.read_ref(gc64, function.wrapping_add(u64::from(layout.fn_pc))).ok()?;
        if pc == header {
            return Some((base, pc.wrapping_add(4)));
        }
        // BC_RET* or a fast function fetched the link, or BC_CALL* stored it but has not fetched the callee's PC
        // yet: the frame is whole, its position is not known.
        // On its way out of a protected call, `vm_return` has flipped a bit of it to test for C frames.
        if pc == link || pc == link ^ 1 {
            return Some((base, 0));
        }
        is_function = record.kind != FrameKind::Lua as u8;
        if is_function && pc == header.wrapping_add(4) {
            return Some((base, 0));
        }
    }
    // lj_vm_call has not stored the new frame's link yet, which is in PC: still in the C function that calls.
    if matches!(pc & 7, 1 | 5) && base.wrapping_sub(pc & !7) == thread_base {
        return Some((thread_base, 0));
    }
    if let Some(caller) = caller_in_call(memory, vm, coroutine, base, pc, (record, memo)) {
        return Some((caller, pc));
    }
    // Some fast functions use the register for something else.
    is_function.then_some((base, 0))
}

/// BASE of the caller, if BC_CALL* has moved BASE but has not stored the link yet: the caller still executes
/// its call.
#[inline(always)]
fn caller_in_call(
    memory: &impl ReadMemory,
    vm: &VmConfig,
    coroutine: &Coroutine,
    base: u64,
    pc: u64,
    (record, memo): (&mut FrameRecord, &mut Memo),
) -> Option<u64> {
    let layout = &vm.layout;
    if pc & 3 != 0 {
        return None;
    }
    let call = memory.read::<u32>(pc.wrapping_sub(4)).ok()?;
    let slots = u64::from(call >> 8 & 0xff) + if layout.is_gc64() { 2 } else { 1 };
    let caller = base.wrapping_sub(slots * 8);
    if !coroutine.holds(caller) {
        return None;
    }
    let (function, _) = read_frame_with(memory, layout, caller, memo).ok()?;
    describe(memory, layout, function, pc, (record, memo)).ok()?;
    (record.position != NO_POSITION).then_some(caller)
}
