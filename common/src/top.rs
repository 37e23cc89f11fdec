//! Where the walk of the innermost coroutine starts: its BASE and its PC at the time of the sample.
//!
//! In the interpreter both are in registers ([`reg::BASE`] and [`reg::BYTECODE_PC`]), and `L->base` is stale. In C
//! code, `L->base` is current, and the registers hold something else. PC is the address of the next bytecode.
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

use crate::arch::{LEFT_BASE_OFFSET, STACK_AT_FRAME, STATE_NAMES_TRACE, return_address_below};
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

/// Without GC64, a link of at least this value is the type tag of a value (`LJ_TNUMX`, `lj_obj.h`).
const LOWEST_TYPE: u64 = 0xfffe_0000;

/// No object has an address this high: a word of at least this value is a value, not a reference.
const LOWEST_NUMBER: u64 = GC64_ADDRESS_MASK + 1;

/// The most bytes between two frames: a function has at most 250 slots, and a call as many arguments.
const MAX_DELTA: u64 = 8 * 1024;

/// The start of a walk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Top {
    /// BASE of the innermost frame.
    pub base: u64,
    /// Address after the bytecode that it executes; 0 if unknown.
    pub pc: u64,
    /// `SAMPLE_*` bits that tell where BASE and PC come from.
    pub flags: u32,
    /// Raw `vmstate`.
    pub vmstate: i32,
    /// `jit_base`.
    pub jit_base: u64,
    /// Whether the C frame has no Lua frame: the walk must first cross it ([`Walk::cross_first`]).
    ///
    /// [`Walk::cross_first`]: crate::frame::Walk::cross_first
    pub crosses: u32,
    /// In state EXIT: the number of the trace that the VM is leaving, and in the upper half the number of the exit.
    pub trace_exit: u32,
}

/// Finds the start of the walk of `coroutine`, which runs in the C frame at `cframe`, the innermost C frame on the
/// sampled stack. `thread_base` is `L->base` of the coroutine.
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
    let mut top = Top { vmstate, jit_base: jit_base(memory, vm)?, base: thread_base, ..Top::default() };
    let state = VmState::from_raw(layout.states(), vmstate);
    // The interpreter calls the JIT compiler, so jit_base is zero in the compiler's states. A running trace keeps
    // jit_base set, also while the garbage collector or a C function runs on its behalf.
    if state == VmState::Trace || top.jit_base != 0 {
        // Where the state names no trace, the interpreter sets it before it enters one.
        if !STATE_NAMES_TRACE
            && state == VmState::Trace
            && let Some(pc) = beside_trace(vm, registers, cframe)
            && coroutine.holds(registers[reg::BASE])
            && let base = registers[reg::BASE]
            && let Some((function, _)) = frame_at(memory, layout, (base, pc), (&mut *scratch.0, &mut *scratch.1))
        {
            // PC is in the function at BASE, or past the header of a C function that the trace does not call itself.
            let is_known = scratch.0.position != NO_POSITION;
            // Comparing with `Ok(_)` would compare a value that an error does not set, which the verifier refuses.
            let header = memory.read_ref(gc64, function.wrapping_add(u64::from(layout.fn_pc))).unwrap_or(pc);
            if is_known || header == pc.wrapping_sub(4) {
                (top.base, top.pc, top.flags) = (base, if is_known { pc } else { 0 }, SAMPLE_BASE_IN_REGISTERS);
                return Ok(top);
            }
        }
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
        // `trace_exit_cp` (`lj_trace.c`) runs in a C frame without a Lua frame. For other such C frames, `L->top` tells
        // this; but traces do not set it. The Lua frames that `trace_exit_cp` restores onto the stack are not called by
        // its C frame.
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
        // `pcall` and metamethods share the last instructions of entering, but their frames have other kinds of links.
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
            // After a callback, its C frame has no other Lua frame, and the frame around it has no PC.
            top.crosses = u32::from(id == CONT_FFI_CALLBACK);
            top.pc = if id > CONT_FFI_CALLBACK { pc } else { 0 };
            top.flags = SAMPLE_BASE_IN_REGISTERS;
            return Ok(top);
        }
    }
    if let Some(link) = reg::LINK
        && !in_text
        && (is_callback_code(vm, at_pc) || is_callback_code(vm, registers[link]))
    {
        // A function that this code has called may have made the Lua frame, or its return address be left in the register.
        let link = link_below(memory, gc64, top.base)?;
        top.crosses = u32::from(!is_callback(memory, gc64, top.base, link));
        return Ok(top);
    }
    if !in_text && vm.edges.callback_calls[0] != NOWHERE {
        let return_address = return_address_below(memory, cframe)?;
        if vm.edges.callback_calls.contains(&(return_address.wrapping_sub(vm.text_start) as u32)) {
            // The C code of callbacks creates and drops the Lua frame and the C frame one after the other.
            let link = link_below(memory, gc64, top.base)?;
            top.crosses = u32::from(!is_callback(memory, gc64, top.base, link));
            return Ok(top);
        }
    }
    if state.is_interpreting() && in_text && (!STACK_AT_FRAME || registers[reg::SP] == cframe) {
        let at = at_pc.wrapping_sub(vm.text_start) as u32;
        let moves = is_in(&vm.edges.frame_left, at);
        let base = if moves {
            narrow(registers[reg::LEFT_BASE].wrapping_add(LEFT_BASE_OFFSET))
        } else if is_in(&vm.edges.base_in_state, at) {
            thread_base
        } else if is_in(&vm.edges.base_kept, at) {
            narrow(registers[reg::KEPT_BASE])
        } else {
            narrow(registers[reg::BASE])
        };
        let pc = narrow(registers[reg::BYTECODE_PC]);
        let outer = (thread_base, cframe);
        let is_left = moves || is_in(&vm.edges.results_stored, at);
        let registers = (at, base, pc, is_left);
        if let Some(place) = from_registers(memory, vm, coroutine, outer, registers, (scratch.0, scratch.1)) {
            (top.base, top.pc, top.crosses) = (place.base, place.pc, u32::from(place.crosses));
            top.flags = SAMPLE_BASE_IN_REGISTERS;
            return Ok(top);
        }
    }
    if state.is_interpreting() {
        top.flags = SAMPLE_BASE_UNCERTAIN;
    }
    // The walk accepts this PC only if it points into the bytecode of the function at BASE.
    top.pc = memory.read_ref(gc64, cframe.wrapping_add(u64::from(layout.cframe_pc)))?;
    // The C part of a fast function may have stored results over its function and link (`ffh_resume`, `lib_base.c`).
    let (record, memo) = scratch;
    if top.flags == SAMPLE_BASE_UNCERTAIN
        && let Ok((function, link)) = read_frame_with(memory, layout, top.base, memo)
        && (!gc64 && link >= LOWEST_TYPE || read_code(memory, layout, function, &mut memo.head).is_err())
        && let Some(place) = caller(memory, vm, coroutine, (top.base, top.pc), (record, memo))
    {
        // Where the interpreter calls C without setting `L->base`, anything may stand there: `BC_LEN` calls
        // `lj_tab_len` so.
        (top.base, top.pc, top.crosses) = (place.base, place.pc, u32::from(place.crosses));
        top.flags |= SAMPLE_BASE_OF_CALLER;
    }
    Ok(top)
}

/// The PC of the innermost frame, if the interpreter runs right before or after a trace, with its BASE in its register.
#[inline(always)]
fn beside_trace(vm: &VmConfig, registers: &SampledRegisters, cframe: u64) -> Option<u64> {
    /// What is reserved for a trace on the native stack right before it runs.
    const ROOM: u64 = 16;
    let at_pc = registers[reg::PC];
    let is_in_frame = cframe.wrapping_sub(registers[reg::SP]) <= ROOM;
    if !is_in_frame || at_pc < vm.text_start || vm.text_end <= at_pc {
        return None;
    }
    let at = at_pc.wrapping_sub(vm.text_start) as u32;
    let pc = registers[reg::BYTECODE_PC];
    if is_in(&vm.edges.beside_traces, at) {
        Some(pc)
    } else if is_in(&vm.edges.before_fetch, at) {
        Some(pc.wrapping_add(4))
    } else {
        None
    }
}

/// BASE of the C function that the interpreter is returning to: the current BASE minus the distance in the link, which
/// PC's register holds. The register may also hold the finished result, or its negative (`vm_return`). After each
/// instruction, only one of these values lies within the stack.
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
    /// Whether the frame belongs to the next C frame.
    crosses: bool,
}

impl WalkStart {
    #[inline(always)]
    const fn at(base: u64, pc: u64) -> Option<Self> {
        Some(Self { base, pc, crosses: false })
    }
}

/// Checks the BASE and PC found in registers. In a few instructions of a call or a return, they belong to different
/// frames; then it corrects them. `thread_base` is `L->base`. `is_left` says whether the frame at BASE is left.
#[inline(always)]
fn from_registers(
    memory: &impl ReadFrames,
    vm: &VmConfig,
    coroutine: &Coroutine,
    (thread_base, cframe): (u64, u64),
    (at, base, pc, is_left): (u32, u64, u64, bool),
    (record, memo): (&mut FrameRecord, &mut Memo),
) -> Option<WalkStart> {
    let layout = &vm.layout;
    let gc64 = layout.is_gc64();
    if !coroutine.holds(base) {
        return None;
    }
    // Results are copied over the header of the frame that is left.
    if is_left {
        let below = link_below(memory, gc64, base).ok()?;
        // `vm_return` flips a bit of the link to test for C frames, and clears its type.
        let is_changed = pc == below ^ FRAME_C || (pc == below & !7 && pc != 0);
        return caller(memory, vm, coroutine, (base, if is_changed { below } else { pc }), (record, memo));
    }
    // The link in the new frame's header is still an old one, so the new frame does not count.
    if vm.edges.links.contains(&at) {
        return caller(memory, vm, coroutine, (base, pc), (record, memo));
    }
    if is_in(&vm.edges.pc_elsewhere, at) {
        frame_at(memory, layout, (base, 0), (record, memo))?;
        return WalkStart::at(base, 0);
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
        // BC_RET* or a fast function fetched the link, or BC_CALL* stored it but has not fetched the callee's PC yet:
        // the frame is whole, but its position is not known. When `vm_return` leaves a protected call, it has flipped a
        // bit of the link to test for C frames, and cleared the link's type.
        // `BC_RET` has subtracted the type of a vararg frame to test for it.
        if pc == link || pc == link ^ 1 || (pc == link & !7 && pc != 0) || pc == link.wrapping_sub(FRAME_VARG) {
            return WalkStart::at(base, 0);
        }
        is_native = record.kind != RecordKind::Lua as u8;
        // `pcall` and `xpcall` make the link of the frame that they are about to call.
        if is_native && pc & FRAME_PCALL == FRAME_PCALL && pc < MAX_DELTA {
            return WalkStart::at(base, 0);
        }
        if let Some(place) = in_transition(memory, gc64, coroutine, (thread_base, is_native), (base, pc), link) {
            return Some(place);
        }
        own_link = link;
    }
    // BC_CALL* has moved BASE, but still executes the call right before PC. A returning fast function leaves the same
    // state: its results overwrite its function and its link.
    if let Some(place) = caller(memory, vm, coroutine, (base, pc), (record, memo)) {
        return Some(place);
    }
    // A C function has returned and left another value in BASE's register.
    if frame_at(memory, layout, (thread_base, pc), (record, memo)).is_some() && record.position != NO_POSITION {
        return WalkStart::at(thread_base, pc);
    }
    // Some fast functions use PC's register for something else, but their frame is whole.
    if is_native && caller(memory, vm, coroutine, (base, own_link), (record, memo)).is_some() {
        return WalkStart::at(base, 0);
    }
    let saved = memory.read_ref(gc64, cframe.wrapping_add(u64::from(layout.cframe_pc))).ok()?;
    caller(memory, vm, coroutine, (base, saved), (record, memo))
}

/// The link of the frame at `base`.
#[inline(always)]
fn link_below(memory: &impl ReadMemory, gc64: bool, base: u64) -> Result<u64, Unreadable> {
    memory.read_ref(gc64, base.wrapping_sub(if gc64 { 8 } else { 4 }))
}

/// The function and the link of the frame at `base`, if there is one; then `record` describes it.
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
/// The bits that `FRAME_PCALL` and `FRAME_PCALLH` share, and no other type has.
const FRAME_PCALL: u64 = 6;

/// Handles a whole frame at `base` while `pc` is on its way to or from a frame above it. `is_native` says whether the
/// frame belongs to a fast function or a C function.
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
        let link_above = link_below(memory, gc64, above).ok()?;
        let link_expected = above.wrapping_sub(base);
        // The upper half of a vararg function's frame was just left.
        if link_above == link_expected | FRAME_VARG && (kind == FRAME_VARG || kind == 0) {
            return WalkStart::at(base, 0);
        }
        // A metamethod has returned; or it is about to be called, and PC's register has the link of its frame. The
        // place that it was called from is stored below its frame. (A fast function calls no metamethods, so there PC
        // is the link of its own frame: a trace that is stitched to the next one has called `coroutine.resume` with a
        // continuation, and the first result has overwritten the link.) On arm64, BASE moves before PC's register has
        // the link, and `L->base` is the caller's.
        let is_moved = base.wrapping_sub(delta) == thread_base;
        if (kind == 0 && link_above == link_expected | FRAME_CONT)
            || (kind == FRAME_CONT && (base == thread_base || delta < MAX_DELTA && !is_moved) && !is_native)
        {
            return WalkStart::at(base, continuation(memory, gc64, above).1);
        }
    }
    // An FFI callback was entered, but its function is not fetched yet.
    if base == thread_base && is_callback(memory, gc64, base, link) {
        return WalkStart::at(base, 0);
    }
    None
}

/// Continuation and PC below the frame at `base`, in which a metamethod was called; zeros if they cannot be read. It
/// returns no [`Option`]: compilers would then also compare uninitialized fields, which the verifier rejects.
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

/// Whether C code of FFI callbacks runs at `address` with a C frame that has no Lua frame.
#[inline(always)]
fn is_callback_code(vm: &VmConfig, address: u64) -> bool {
    let offset = address.wrapping_sub(vm.text_start);
    offset as i32 as u64 == offset && is_in(&vm.edges.callback_code, offset as u32)
}

/// Whether the frame at `base` with this link is that of an FFI callback.
#[inline(always)]
fn is_callback(memory: &impl ReadMemory, gc64: bool, base: u64, link: u64) -> bool {
    link & 7 == FRAME_CONT && continuation(memory, gc64, base).0 == CONT_FFI_CALLBACK
}

/// The frame that called the frame at `base`, whose link is `link`.
#[inline(always)]
fn caller(
    memory: &impl ReadFrames,
    vm: &VmConfig,
    coroutine: &Coroutine,
    (base, link): (u64, u64),
    (record, memo): (&mut FrameRecord, &mut Memo),
) -> Option<WalkStart> {
    (record.base, record.code) = (base, link);
    let way = is_called(memory, vm, coroutine, record);
    if way == NOT_CALLED {
        return None;
    }
    let place = WalkStart { base: record.base, pc: record.code, crosses: way == CALLED_BY_C };
    if !place.crosses {
        let (_, below) = frame_at(memory, &vm.layout, (place.base, place.pc), (record, memo))?;
        if link & 3 == 0 && record.position == NO_POSITION {
            return None;
        }
        // If the slot holds a function only as a value, the word after it is a type tag or the next value, not a link.
        if !is_link(vm.layout.is_gc64(), coroutine, place.base, below) {
            return None;
        }
    }
    Some(place)
}

/// Whether `link` can be the link of a frame at `base`: an address in bytecode, or a distance within the stack.
#[inline(always)]
fn is_link(gc64: bool, coroutine: &Coroutine, base: u64, link: u64) -> bool {
    if link & 3 == 0 {
        link < if gc64 { LOWEST_NUMBER } else { LOWEST_TYPE }
    } else {
        coroutine.holds_bottom(base.wrapping_sub(link & !7))
    }
}

/// What [`is_called`] finds: a frame that nothing has called, one that Lua has, and one that C has.
const NOT_CALLED: u32 = 0;
const CALLED_BY_LUA: u32 = 1;
const CALLED_BY_C: u32 = 2;

/// Whether and by what the frame may be called whose BASE is in `record.base` and whose link is in `record.code`. If it is, the
/// caller's BASE and PC replace them.
///
/// It is a function of its own for the same reason as [`is_frame`].
#[inline(never)]
fn is_called(memory: &impl ReadMemory, vm: &VmConfig, coroutine: &Coroutine, record: &mut FrameRecord) -> u32 {
    let (base, link) = (record.base, record.code);
    if link & 3 == 0 {
        // BC_CALL* has moved BASE but has not stored the link yet: the caller still executes its call.
        let Ok(call) = memory.read::<u32>(link.wrapping_sub(4)) else { return NOT_CALLED };
        let slots = u64::from(call >> 8 & 0xff) + if vm.layout.is_gc64() { 2 } else { 1 };
        record.base = base.wrapping_sub(slots * 8);
        return if coroutine.holds(record.base) { CALLED_BY_LUA } else { NOT_CALLED };
    }
    record.base = base.wrapping_sub(link & !7);
    record.code = 0;
    let mut way = if link & 3 == FRAME_C { CALLED_BY_C } else { CALLED_BY_LUA };
    if link & 7 == FRAME_CONT {
        // C code has called an FFI callback. The frame around it has no PC.
        let (id, pc) = continuation(memory, vm.layout.is_gc64(), base);
        if id == CONT_FFI_CALLBACK {
            way = CALLED_BY_C;
        } else {
            record.code = pc;
        }
    }
    if coroutine.holds_bottom(record.base) && record.base < base { way } else { NOT_CALLED }
}
