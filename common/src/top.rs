//! Where the walk of the innermost coroutine starts: its BASE and its PC at a sample.
//!
//! In the interpreter they are in registers ([`reg::BASE`] and [`reg::BYTECODE_PC`]), and `L->base` is stale; in C code it
//! is the other way round. PC is the address of the next bytecode.
//!
//! LuaJIT's sources: [`vm_return`], [`LJ_TNUMX`], [`trace_exit_cp`], [`ffh_resume`], [`BC_LEN`], [`lj_tab_len`],
//! [`FRAME_*`].
//!
//! [`vm_return`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_x64.dasc#L417-L448
//! [`LJ_TNUMX`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_obj.h#L274
//! [`trace_exit_cp`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_trace.c#L835-L844
//! [`ffh_resume`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lib_base.c#L619-L634
//! [`BC_LEN`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_x64.dasc#L3334-L3361
//! [`lj_tab_len`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_tab.c#L655-L671
//! [`FRAME_*`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_frame.h#L14-L27

use crate::arch::return_address_below;
use crate::event::{
    FrameRecord, NO_POSITION, RecordKind, SAMPLE_BASE_IN_REGISTERS, SAMPLE_BASE_OF_CALLER, SAMPLE_BASE_UNCERTAIN,
    SAMPLE_ON_TRACE, SampledRegisters, reg,
};
use crate::frame::{CONT_FFI_CALLBACK, Coroutine, GC64_ADDRESS_MASK, ReadFrames, read_code, read_frame_with};
use crate::layout::{ABSENT, VmLayout};
use crate::memo::Memo;
use crate::memory::{ReadMemory, Unreadable};
use crate::vm::{NOWHERE, VmConfig, VmState, is_in, jit_base};

/// Type of the link of a frame that C has called (`FRAME_C`, and `FRAME_CP` without its third bit).
const FRAME_C: u64 = 1;

/// Without GC64, a link from here on is the type of a value (`LJ_TNUMX`, `lj_obj.h`).
const LOWEST_TYPE: u64 = 0xfffe_0000;

/// No object's address is that high: a word from here on is a value.
const LOWEST_NUMBER: u64 = GC64_ADDRESS_MASK + 1;

/// No frame is that far above another: a function has 250 slots, and a call as many arguments.
const MAX_DELTA: u64 = 8 * 1024;

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
    /// Whether the C frame has no Lua frame: the walk begins with crossing it ([`Walk::cross_first`]).
    ///
    /// [`Walk::cross_first`]: crate::frame::Walk::cross_first
    pub crosses: u32,
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
    memory: &impl ReadFrames,
    vm: &VmConfig,
    registers: &SampledRegisters,
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
        // `trace_exit_cp` (`lj_trace.c`) runs in a C frame without a Lua frame. `L->top`, which tells that of other such C
        // frames, is not set in traces, and the frames that it is putting onto the stack are not called by it.
        let results = memory.read::<u32>(cframe.wrapping_add(u64::from(layout.cframe_nres)))?;
        if results as i32 <= -1 {
            top.crosses = 1;
            return Ok(top);
        }
    }
    let at_pc = registers[reg::PC];
    let in_text = vm.text_start <= at_pc && at_pc < vm.text_end;
    let narrow = |value: u64| if gc64 { value } else { value & 0xffff_ffff };
    if in_text && registers[reg::SP] == cframe {
        let at = at_pc.wrapping_sub(vm.text_start) as u32;
        // The last instructions of entering are those of `pcall` and of metamethods, too, whose frames have other links.
        let by_c = registers[reg::BYTECODE_PC] & 3 == FRAME_C;
        if (is_in(&vm.edges.entering, at) && by_c) || is_in(&vm.edges.leaving, at) {
            top.crosses = 1;
            return Ok(top);
        }
        if is_in(&vm.edges.returning, at) {
            top.crosses = 1;
            top.base = base_of_caller(coroutine, narrow, registers);
            return Ok(top);
        }
        if is_in(&vm.edges.callback_left, at) {
            top.crosses = 1;
            top.base = narrow(registers[reg::BASE]);
            return Ok(top);
        }
        if is_in(&vm.edges.continuing, at) {
            let (id, pc) = continuation(memory, gc64, narrow(registers[reg::CONTINUED]));
            top.base = narrow(registers[reg::BASE]);
            // The C frame of a callback has no other Lua frame, and a callback no PC.
            top.crosses = u32::from(id == CONT_FFI_CALLBACK);
            top.pc = if id > CONT_FFI_CALLBACK { pc } else { 0 };
            top.flags = SAMPLE_BASE_IN_REGISTERS;
            return Ok(top);
        }
    }
    if !in_text && vm.edges.callback_calls[0] != NOWHERE {
        let return_address = return_address_below(memory, cframe)?;
        if vm.edges.callback_calls.contains(&(return_address.wrapping_sub(vm.text_start) as u32)) {
            // The C code of callbacks makes and drops their Lua frame and their C frame one after the other.
            let link = memory.read_ref(gc64, top.base.wrapping_sub(if gc64 { 8 } else { 4 }))?;
            top.crosses = u32::from(!is_callback(memory, gc64, top.base, link));
            return Ok(top);
        }
    }
    if state.is_interpreting() && in_text {
        let at = at_pc.wrapping_sub(vm.text_start) as u32;
        let base = if is_in(&vm.edges.base_in_state, at) {
            thread_base
        } else if is_in(&vm.edges.base_kept, at) {
            narrow(registers[reg::KEPT_BASE])
        } else {
            narrow(registers[reg::BASE])
        };
        let pc = narrow(registers[reg::BYTECODE_PC]);
        if let Some(place) =
            from_registers(memory, vm, coroutine, (top.thread_base, cframe), (at_pc, base, pc), (scratch.0, scratch.1))
        {
            (top.base, top.pc, top.crosses) = (place.base, place.pc, u32::from(place.crosses));
            top.flags = SAMPLE_BASE_IN_REGISTERS;
            return Ok(top);
        }
    }
    if state.is_interpreting() {
        top.flags = SAMPLE_BASE_UNCERTAIN;
    }
    // Accepted later only if it points into the bytecode of the function at BASE.
    top.pc = memory.read_ref(gc64, cframe.wrapping_add(u64::from(layout.cframe_pc)))?;
    // A fast function whose C part has put results where its function and its link were (`ffh_resume`, `lib_base.c`).
    let (record, memo) = scratch;
    if top.flags == SAMPLE_BASE_UNCERTAIN
        && let Ok((function, link)) = read_frame_with(memory, layout, top.base, memo)
        && (!gc64 && link >= LOWEST_TYPE || read_code(memory, layout, function, &mut memo.head).is_err())
        && let Some(place) = caller(memory, vm, coroutine, (top.base, top.pc), (record, memo))
    {
        // Anything may stand where the interpreter has not set `L->base` for a call: `BC_LEN` does not for `lj_tab_len`.
        (top.base, top.pc, top.crosses) = (place.base, place.pc, u32::from(place.crosses));
        top.flags |= SAMPLE_BASE_OF_CALLER;
    }
    Ok(top)
}

/// BASE of the C function that the interpreter is returning to: its own minus what the link in PC's register says, or what of
/// that is there already (`vm_return`). Each of its instructions leaves only one of these within the stack.
#[inline(always)]
fn base_of_caller(coroutine: &Coroutine, narrow: impl Fn(u64) -> u64, registers: &SampledRegisters) -> u64 {
    let (base, link) = (registers[reg::BASE], registers[reg::BYTECODE_PC]);
    let (done, negative) = (narrow(link), narrow(link.wrapping_neg()));
    if coroutine.holds_bottom(done) {
        done
    } else if coroutine.holds_bottom(negative) {
        negative
    } else {
        narrow(base.wrapping_sub(link & !7))
    }
}

/// A frame that a walk may begin at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct WalkStart {
    base: u64,
    pc: u64,
    /// It belongs to the next C frame.
    crosses: bool,
}

impl WalkStart {
    #[inline(always)]
    const fn at(base: u64, pc: u64) -> Option<Self> {
        Some(Self { base, pc, crosses: false })
    }
}

/// Checks BASE and PC as found in registers, and sets them right in the few instructions of a call or a
/// return where they belong to different frames. `thread_base` is `L->base`.
#[inline(always)]
fn from_registers(
    memory: &impl ReadFrames,
    vm: &VmConfig,
    coroutine: &Coroutine,
    (thread_base, cframe): (u64, u64),
    (at_pc, base, pc): (u64, u64, u64),
    (record, memo): (&mut FrameRecord, &mut Memo),
) -> Option<WalkStart> {
    let layout = &vm.layout;
    let gc64 = layout.is_gc64();
    if !coroutine.holds(base) {
        return None;
    }
    // What would be found in the new frame's place is old.
    if vm.edges.links.contains(&(at_pc.wrapping_sub(vm.text_start) as u32)) {
        return caller(memory, vm, coroutine, (base, pc), (record, memo));
    }
    let (mut is_native, mut own_link) = (false, 0);
    if let Some((function, link)) = frame_at(memory, layout, (base, pc), (record, memo)) {
        if record.position != NO_POSITION {
            return WalkStart::at(base, pc);
        }
        // BC_CALL* fetched the callee's PC, but has not moved it past the function's header yet.
        let header = memory.read_ref(gc64, function.wrapping_add(u64::from(layout.fn_pc))).ok()?;
        if pc == header {
            return WalkStart::at(base, pc.wrapping_add(4));
        }
        // BC_RET* or a fast function fetched the link, or BC_CALL* stored it but has not fetched the callee's PC
        // yet: the frame is whole, its position is not known.
        // On its way out of a protected call, `vm_return` has flipped a bit of it to test for C frames, and cleared its
        // type.
        if pc == link || pc == link ^ 1 || (pc == link & !7 && pc != 0) {
            return WalkStart::at(base, 0);
        }
        is_native = record.kind != RecordKind::Lua as u8;
        if let Some(place) = in_transition(memory, gc64, coroutine, (thread_base, is_native), (base, pc), link) {
            return Some(place);
        }
        own_link = link;
    }
    // Moving BASE on, BC_CALL* still executes the call that PC is behind. A fast function returns to there: its results
    // take the place of its function, and of its link.
    if let Some(place) = caller(memory, vm, coroutine, (base, pc), (record, memo)) {
        return Some(place);
    }
    // A C function has returned, and left something else in the register.
    if frame_at(memory, layout, (thread_base, pc), (record, memo)).is_some() && record.position != NO_POSITION {
        return WalkStart::at(thread_base, pc);
    }
    // Some fast functions use the register for something else, but their frame is whole.
    if is_native && caller(memory, vm, coroutine, (base, own_link), (record, memo)).is_some() {
        return WalkStart::at(base, 0);
    }
    let saved = memory.read_ref(gc64, cframe.wrapping_add(u64::from(layout.cframe_pc))).ok()?;
    caller(memory, vm, coroutine, (base, saved), (record, memo))
}

/// The function and the link of the frame at `base`, if there is one: then `record` has been filled in.
#[inline(always)]
fn frame_at(
    memory: &impl ReadFrames,
    layout: &VmLayout,
    (base, pc): (u64, u64),
    (record, memo): (&mut FrameRecord, &mut Memo),
) -> Option<(u64, u64)> {
    (record.base, record.code) = (base, pc);
    memory.is_frame(layout, record, memo).then_some((record.function, record.base))
}

/// Types of links (`FRAME_*`, `lj_frame.h`).
const FRAME_CONT: u64 = 2;
const FRAME_VARG: u64 = 3;

/// Where the frame at `base` is whole, but `pc` is on its way from or to a frame above it. `is_native` says whether it is
/// that of a fast function or a C function.
#[inline(always)]
fn in_transition(
    memory: &impl ReadMemory,
    gc64: bool,
    coroutine: &Coroutine,
    (thread_base, is_native): (u64, bool),
    (base, pc): (u64, u64),
    link: u64,
) -> Option<WalkStart> {
    let (delta, kind) = (pc & !7, pc & 7);
    let above = if delta < MAX_DELTA { base.wrapping_add(delta) } else { delta };
    if coroutine.holds(above) && above > base {
        let link_above = memory.read_ref(gc64, above.wrapping_sub(if gc64 { 8 } else { 4 })).ok()?;
        let link_expected = above.wrapping_sub(base);
        // The upper half of a vararg function's frame was left.
        if kind == FRAME_VARG && link_above == pc {
            return WalkStart::at(base, 0);
        }
        // A metamethod has returned, or is about to be called, since the interpreter has set L->base for that: where it
        // came from stands below its frame. (Of a fast function, which calls none, PC is the link of its own frame: a trace
        // that is stitched to the next one has called `coroutine.resume` with a continuation, and its first result has taken
        // the link's place.)
        if (kind == 0 && link_above == link_expected | FRAME_CONT)
            || (kind == FRAME_CONT && base == thread_base && !is_native)
        {
            return WalkStart::at(base, continuation(memory, gc64, above).1);
        }
    }
    // A callback of the FFI that was entered, whose function is not fetched yet.
    if base == thread_base && is_callback(memory, gc64, base, link) {
        return WalkStart::at(base, 0);
    }
    None
}

/// Continuation and PC below the frame at `base`, which a metamethod was called in; zeros where they cannot be read: of an
/// [`Option`], compilers compare what is not there, too, which the verifier does not take.
#[inline(always)]
fn continuation(memory: &impl ReadMemory, gc64: bool, base: u64) -> (u64, u64) {
    if gc64 {
        let [id, pc] = memory.read::<[u64; 2]>(base.wrapping_sub(32)).unwrap_or_default();
        (id, pc)
    } else {
        let [id, pc] = memory.read::<[u32; 2]>(base.wrapping_sub(16)).unwrap_or_default();
        (u64::from(id), u64::from(pc))
    }
}

/// Whether the frame at `base` with this link is that of an FFI callback.
#[inline(always)]
fn is_callback(memory: &impl ReadMemory, gc64: bool, base: u64, link: u64) -> bool {
    link & 7 == FRAME_CONT && continuation(memory, gc64, base).0 == CONT_FFI_CALLBACK
}

/// The frame that has called the one at `base`, whose link is `link`.
#[inline(always)]
fn caller(
    memory: &impl ReadFrames,
    vm: &VmConfig,
    coroutine: &Coroutine,
    (base, link): (u64, u64),
    (record, memo): (&mut FrameRecord, &mut Memo),
) -> Option<WalkStart> {
    (record.base, record.code) = (base, link);
    if !is_called(memory, vm, coroutine, record) {
        return None;
    }
    let place = WalkStart { base: record.base, pc: record.code, crosses: link & 3 == FRAME_C };
    if !place.crosses {
        let (_, below) = frame_at(memory, &vm.layout, (place.base, place.pc), (record, memo))?;
        if link & 3 == 0 && record.position == NO_POSITION {
            return None;
        }
        // A function that is only a value has its type there, or whatever comes next.
        if !is_link(vm.layout.is_gc64(), coroutine, place.base, below) {
            return None;
        }
    }
    Some(place)
}

/// Whether `link` can be that of a frame at `base`: an address in bytecode, or a distance within the stack.
#[inline(always)]
fn is_link(gc64: bool, coroutine: &Coroutine, base: u64, link: u64) -> bool {
    if link & 3 == 0 {
        link < if gc64 { LOWEST_NUMBER } else { LOWEST_TYPE }
    } else {
        coroutine.holds_bottom(base.wrapping_sub(link & !7))
    }
}

/// Whether there may be a caller of the frame whose BASE and link stand in `record` (the link as its code): then its BASE
/// and its PC take their place.
///
/// A function of its own for the same reason as [`is_frame`].
#[inline(never)]
fn is_called(memory: &impl ReadMemory, vm: &VmConfig, coroutine: &Coroutine, record: &mut FrameRecord) -> bool {
    let (base, link) = (record.base, record.code);
    if link & 3 == 0 {
        // BC_CALL* has moved BASE but has not stored the link yet: the caller still executes its call.
        let Ok(call) = memory.read::<u32>(link.wrapping_sub(4)) else { return false };
        let slots = u64::from(call >> 8 & 0xff) + if vm.layout.is_gc64() { 2 } else { 1 };
        record.base = base.wrapping_sub(slots * 8);
        return coroutine.holds(record.base);
    }
    record.base = base.wrapping_sub(link & !7);
    let gc64 = vm.layout.is_gc64();
    record.code = if link & 7 == FRAME_CONT { continuation(memory, gc64, base).1 } else { 0 };
    coroutine.holds_bottom(record.base) && record.base < base
}
