//! Finds LuaJIT's C frames on the copied stack of a sample, and walks the Lua stack of each: a state machine that
//! `bpf_loop` drives, so that the verifier checks a single step of each kind, once.

use core::ffi::c_void;

use lj_trace_common::arch::{CFRAME_L, CFRAME_L_VARIES};
use lj_trace_common::c_frame::{ADDRESS_MASK, C_FRAME_HEAD, CFrameShape, RESULTS_MASK};
use lj_trace_common::config::{Config, MAX_FRAMES, MAX_SAMPLED_VMS, MAX_STACK, VmKey};
use lj_trace_common::ends::{self, INNERMOST, MAX_LEFT_OUT};
use lj_trace_common::event::{FrameRecord, NO_VM, RecordKind, SampledRegisters, reg};
use lj_trace_common::frame::{self, GC64_ADDRESS_MASK, WalkEnd, WalkStep};
use lj_trace_common::memory::ReadMemory as _;
use lj_trace_common::thread::LuaThread;
use lj_trace_common::top;
use lj_trace_common::vm::{self, VmConfig};

use crate::count::lowest_bit;
use crate::label;
use crate::maps::{CONFIG, GLOBALS, SCRATCH, VMS};
use crate::memory::{SampledMemory, UserMemory};
use crate::scratch::{FRAME_SIZE, MachineState, PAYLOAD, Scratch};

/// The lowest address that can hold an object: nothing below it is ever mapped (`vm.mmap_min_addr`).
const LOWEST_ADDRESS: u64 = 0x1_0000;

/// What the next call of [`step`] does.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Look for a C frame at `scan`.
    Scan = 0,
    /// Start to walk the coroutine that was found.
    Start = 1,
    /// Walk one more frame.
    Walk = 2,
}

/// The steps that one sample may take: enough to scan a full C stack in steps of 16 bytes, and to walk all frames. One
/// step skips many of the left-out frames.
pub const MAX_STEPS: u32 = MAX_STACK / 16 + 2 * MAX_FRAMES + MAX_LEFT_OUT;

/// Sets the state machine to the start of the search for Lua stacks.
#[inline(always)]
pub fn prepare(scratch: &mut Scratch, config: &Config) {
    let start = scratch.header.registers[reg::SP];
    scratch.machine.memo.forget();
    scratch.machine.mode = Mode::Scan as u32;
    // C frames are 16-byte aligned: the VM calls C functions from there.
    scratch.machine.scan = (start + 15) & !15;
    scratch.machine.guess = 0;
    if config.vms == 1
        && let Some(vm) = VMS.get(config.first_vm)
        && let Some(cframe) = vm::current_cframe(&UserMemory, vm)
        && cframe >= start
        && cframe < scratch.machine.stack_end
    {
        // The usual case needs no search: the VM names the innermost C frame.
        scratch.machine.guess = scratch.machine.scan;
        scratch.machine.scan = cframe;
    }
}

/// One step of the state machine: 0 to continue, 1 to stop.
///
/// What it does is in global functions, which the verifier checks by themselves, each once. What a callback does itself belongs to
/// a loop, and there Linux 7 takes two states for the same only if all their numbers agree, even those on which nothing
/// depends: it gives up.
pub extern "C" fn step(_index: u64, area: *mut c_void) -> i64 {
    // SAFETY: `take` passes the number of its working area.
    let area = unsafe { *area.cast::<u32>() };
    let Some(scratch) = SCRATCH.get_ptr(area) else { return 1 };
    // SAFETY: a field. Whoever samples has the area to itself.
    let mode = unsafe { (*scratch).machine.mode };
    lowest_bit(if mode == Mode::Walk as u32 {
        walk_frame(area)
    } else if mode == Mode::Start as u32 {
        start_walk(area)
    } else {
        find_frame(area)
    })
}

/// The candidates that one step may skip.
const PASSED_OVER: u32 = 8;

/// Looks for a C frame from `scan` on, and for the coroutine that runs in it.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn find_frame(area: u32) -> u32 {
    let Some(scratch) = SCRATCH.get_ptr_mut(area) else { return 1 };
    // SAFETY: whoever samples has the area to itself, and its own reference is not used while this runs.
    let scratch = unsafe { &mut *scratch };
    let Some(config) = CONFIG.get(scratch.header.process) else { return 1 };
    let (start, end) = (scratch.header.registers[reg::SP], scratch.machine.stack_end);
    let first = scratch.machine.scan;
    let mut cframe = first;
    for _ in 0..PASSED_OVER {
        // SAFETY: a field. Were the value in a register, the compiler would add it to the payload's address before its
        // offset is checked, in the eyes of the verifier.
        cframe = unsafe { (&raw const scratch.machine.scan).read_volatile() };
        let offset = cframe.wrapping_sub(start) as usize;
        if cframe + C_FRAME_HEAD > end || offset > MAX_STACK as usize - C_FRAME_HEAD as usize || offset % 8 != 0 {
            return 1;
        }
        // SAFETY: `offset + C_FRAME_HEAD` lies within the payload.
        let head = unsafe { scratch.payload.as_ptr().add(offset) };
        if may_begin(&config.wide_c_frames, head) || may_begin(&config.narrow_c_frames, head) {
            break;
        }
        scratch.machine.scan = cframe + 16;
    }
    let guess = scratch.machine.guess;
    let is_guess = guess != 0;
    let is_wrong = is_guess && cframe != first;
    scratch.machine.guess = 0;
    scratch.machine.scan = if is_guess { guess } else { cframe + 16 };
    if is_wrong {
        return 0;
    }
    let Some(index) = find_thread(scratch, config, cframe) else { return 0 };
    scratch.machine.scan = cframe + 16;
    scratch.machine.vm = index;
    scratch.machine.mode = Mode::Start as u32;
    0
}

/// Reads the coroutine that runs in the C frame at `cframe`, and returns the index of its VM. [`None`] unless frame and
/// coroutine point at each other.
#[inline(always)]
fn find_thread(scratch: &mut Scratch, config: &Config, cframe: u64) -> Option<u32> {
    let start = scratch.header.registers[reg::SP];
    let offset = cframe.wrapping_sub(start) as usize;
    if offset > MAX_STACK as usize - C_FRAME_HEAD as usize || offset % 8 != 0 {
        return None;
    }
    let wide_at = if CFRAME_L_VARIES { (config.wide_c_frames.thread & ADDRESS_MASK) as usize } else { CFRAME_L[1] };
    // SAFETY: `offset + C_FRAME_HEAD` lies within the payload, behind which there is more, and so do the words.
    let (head, wide, narrow) = unsafe {
        let head = scratch.payload.as_ptr().add(offset);
        (head, head.add(wide_at).cast::<u64>().read(), head.add(CFRAME_L[0]).cast::<u32>().read())
    };
    let mut thread = 0;
    let mut index = NO_VM;
    if may_begin(&config.wide_c_frames, head) && plausible(wide, start, cframe) {
        thread = wide;
        index = vm_of(scratch.header.process, wide + 16, true);
    }
    if index == NO_VM && may_begin(&config.narrow_c_frames, head) && plausible(u64::from(narrow), start, cframe) {
        thread = u64::from(narrow);
        index = vm_of(scratch.header.process, thread + 8, false);
    }
    let vm = VMS.get(index)?;
    let thread = LuaThread::read(&UserMemory, &vm.layout, thread, &mut scratch.machine.memo.head).ok()?;
    let is_one = thread.is_thread && thread.global == vm.global && thread.cframe == cframe;
    scratch.machine.thread = thread;
    is_one.then_some(index)
}

/// Whether a C frame of this shape may begin at `head` in the copy of the stack. This reads nothing else of the
/// target's memory, because such reads are what makes a search expensive.
#[inline(always)]
fn may_begin(shape: &CFrameShape, head: *const u8) -> bool {
    // The verifier does not know what the agent has written there, hence the masks.
    let (results, previous) = ((shape.results & RESULTS_MASK) as usize, (shape.previous & ADDRESS_MASK) as usize);
    // Offsets that are the same in all VMs. In some builds a frame begins with the address of the frame around it.
    let is_known = if CFRAME_L_VARIES { results != 0 } else { previous != 0 };
    // SAFETY: the callers have checked that `C_FRAME_HEAD` bytes are there.
    let (results, outer) = unsafe { (head.add(results).cast::<i32>().read(), head.add(previous).cast::<u64>().read()) };
    shape.exists != 0 && (!is_known || CFrameShape::allows(results, outer))
}

/// Whether a word in a possible C frame at `cframe` may be the address of a coroutine: a coroutine is not on the stack
/// below the frame. It may be above, because the VM's own memory can directly follow a thread's stack.
#[inline(always)]
fn plausible(word: u64, stack: u64, cframe: u64) -> bool {
    word & 7 == 0 && word >= LOWEST_ADDRESS && word <= GC64_ADDRESS_MASK && !(word >= stack && word < cframe)
}

/// The VM of this process whose `global_State` the word at `glref` points to.
#[inline(always)]
fn vm_of(process: u32, glref: u64, gc64: bool) -> u32 {
    let Ok(global) = UserMemory.read_ref(gc64, glref) else { return NO_VM };
    // SAFETY: the agent fills the map before the programs are attached; an entry is copied at once.
    unsafe { GLOBALS.get(&VmKey::new(process, global)) }
        .copied()
        .filter(|&index| index < MAX_SAMPLED_VMS)
        .unwrap_or(NO_VM)
}

/// Starts to walk the coroutine that [`find_frame`] has found in the C frame before `scan`.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn start_walk(area: u32) -> u32 {
    let Some(scratch) = SCRATCH.get_ptr_mut(area) else { return 1 };
    // SAFETY: as in `find_frame`.
    let scratch = unsafe { &mut *scratch };
    let index = scratch.machine.vm;
    let Some(vm) = VMS.get(index) else { return 1 };
    let cframe = scratch.machine.scan.wrapping_sub(16);
    let layout = &vm.layout;
    label::see_thread(area, scratch.machine.thread.coroutine.thread);
    let inner = scratch.header.vm == NO_VM;
    if inner {
        scratch.header.vm = index;
        scratch.header.thread = scratch.machine.thread.coroutine.thread;
        scratch.header.cframe = cframe;
    }
    let mut crosses = false;
    let (base, pc) = if inner {
        let MachineState { memo, record, thread, top, .. } = &mut scratch.machine;
        let coroutine = &thread.coroutine;
        scratch.header.lua_stack = coroutine.stack;
        scratch.header.lua_stack_end = coroutine.stack_end;
        scratch.header.thread_base = thread.base;
        let registers: &SampledRegisters = &scratch.header.registers;
        memo.look_at(coroutine);
        let thread = (coroutine, thread.base);
        let Ok(found) = top::find(&SampledMemory { area }, vm, registers, thread, cframe, (record, memo)) else {
            return end_walk(scratch, WalkEnd::Unreadable);
        };
        // Merges all paths through `find` into one state for the verifier.
        let place = &raw mut *top;
        // SAFETY: a field.
        let top = unsafe {
            place.write_volatile(found);
            place.read_volatile()
        };
        scratch.header.vmstate = top.vmstate;
        scratch.header.jit_base = top.jit_base;
        scratch.header.flags |= top.flags;
        scratch.header.trace_exit = top.trace_exit;
        crosses = top.crosses != 0;
        (top.base, top.pc)
    } else {
        // An outer coroutine: it called C code (or resume), so its L->base is current.
        (
            scratch.machine.thread.base,
            UserMemory.read_ref(layout.is_gc64(), cframe + u64::from(layout.cframe_pc)).unwrap_or(0),
        )
    };
    let MachineState { walk, memo, thread, .. } = &mut scratch.machine;
    match walk.start(&UserMemory, layout, &thread.coroutine, cframe, (base, pc), memo) {
        Ok(()) => {
            if crosses {
                walk.cross_first();
            }
            scratch.machine.mode = Mode::Walk as u32;
            0
        }
        Err(end) => end_walk(scratch, end),
    }
}

/// Walks one frame down.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn walk_frame(area: u32) -> u32 {
    let Some(scratch) = SCRATCH.get_ptr_mut(area) else { return 1 };
    // SAFETY: as in `find_frame`.
    let scratch = unsafe { &mut *scratch };
    let index = scratch.machine.vm;
    let Some(vm) = VMS.get(index) else { return 1 };
    if pass_by(scratch, vm, index) {
        return 0;
    }
    if scratch.header.left_out >= MAX_LEFT_OUT {
        return end_walk(scratch, WalkEnd::TooDeep);
    }
    // Only the outermost frames need their kind, and which frames those are is not known yet.
    let look = scratch.header.frame_count < INNERMOST;
    let MachineState { walk, memo, record, .. } = &mut scratch.machine;
    match walk.advance(&UserMemory, &vm.layout, (record, memo), look) {
        Ok(WalkStep::Emitted) => {
            record.vm = index as u16;
            if record.kind == RecordKind::CFrame as u8 {
                // The C code that resumed this coroutine lies above all of its C frames.
                scratch.machine.scan = (record.code & !15) + 16;
                scratch.header.crossings += 1;
            }
            keep(scratch)
        }
        Ok(WalkStep::Skipped) => 0,
        Err(end) => end_walk(scratch, end),
    }
}

/// The frames that one step may skip.
const PASSED_BY: u32 = 16;

/// Skips frames without reading them, once the record is full and other frames have to make room. False if it skipped
/// none.
#[inline(always)]
fn pass_by(scratch: &mut Scratch, vm: &VmConfig, index: u32) -> bool {
    if scratch.header.frame_count < MAX_FRAMES {
        return false;
    }
    for count in 0..PASSED_BY {
        let left_out = scratch.header.left_out;
        let Some(place) = record(scratch, ends::place(MAX_FRAMES, left_out)) else { return count != 0 };
        // SAFETY: an aligned place within the payload.
        let record = unsafe { &mut *place };
        let MachineState { walk, memo, .. } = &mut scratch.machine;
        if left_out >= MAX_LEFT_OUT || !walk.pass(&vm.layout, (record, memo)) {
            return count != 0;
        }
        record.vm = index as u16;
        scratch.header.left_out = left_out + 1;
    }
    true
}

/// Notes how the walk of a coroutine ended, and continues with the search for the coroutine, or the VM, whose C code
/// started it.
#[inline(always)]
fn end_walk(scratch: &mut Scratch, end: WalkEnd) -> u32 {
    let header = &mut scratch.header;
    if header.walk_end == WalkEnd::NoLua as u32 {
        header.walk_end = end as u32;
        header.inner_frames = header.frame_count + header.left_out;
    } else if header.outer_end == WalkEnd::NoLua as u32 || header.outer_end == WalkEnd::Complete as u32 {
        header.outer_end = end as u32;
    }
    scratch.machine.mode = Mode::Scan as u32;
    u32::from(end == WalkEnd::TooDeep)
}

/// Stores the current frame of the walk: 0 to continue, 1 to stop.
#[inline(always)]
fn keep(scratch: &mut Scratch) -> u32 {
    let Scratch { header, machine, .. } = scratch;
    let (kept, left_out) = (header.frame_count, header.left_out);
    if kept < MAX_FRAMES {
        header.frame_count = kept + 1;
    } else {
        header.left_out = left_out + 1;
    }
    let frame = machine.record;
    let Some(place) = record(scratch, ends::place(kept, left_out)) else { return 1 };
    // SAFETY: an aligned place within the payload.
    unsafe { place.write(frame) };
    0
}

/// Ends a walk that has used up all of its steps, so that nothing else has ended it.
#[inline(always)]
pub fn finish(scratch: &mut Scratch) {
    if scratch.machine.mode == Mode::Walk as u32 {
        end_walk(scratch, WalkEnd::TooDeep);
    }
}

/// Finds out the kind of the outermost frame with this number, if the walk has only skipped it: 0 to continue, 1 to
/// stop.
pub extern "C" fn look_at(index: u64, area: *mut c_void) -> i64 {
    // SAFETY: `take` passes the number of its working area.
    let area = unsafe { *area.cast::<u32>() };
    let Some(scratch) = SCRATCH.get_ptr_mut(area) else { return 1 };
    // SAFETY: as in `take`, whose own reference is not used while this runs.
    let scratch = unsafe { &mut *scratch };
    let index = INNERMOST + index as u32;
    if index >= scratch.header.frame_count {
        return 1;
    }
    let Some(place) = record(scratch, index) else { return 1 };
    // SAFETY: an aligned place within the payload.
    let record = unsafe { &mut *place };
    let Some(vm) = VMS.get(u32::from(record.vm)) else { return 1 };
    frame::look_at(&UserMemory, &vm.layout, (record, &mut scratch.machine.memo));
    0
}

/// The record with this index.
#[inline(always)]
fn record(scratch: &mut Scratch, index: u32) -> Option<*mut FrameRecord> {
    let offset = &raw mut scratch.machine.offset;
    // Read back from memory, so that the value that is checked is the value that is added: the compiler knows more
    // about an index than the verifier does.
    // SAFETY: a field.
    let offset = unsafe {
        offset.write_volatile(scratch.machine.stack_size + index * FRAME_SIZE as u32);
        offset.read_volatile() as usize
    };
    if offset > PAYLOAD - FRAME_SIZE || offset % 8 != 0 {
        return None;
    }
    // SAFETY: checked to be within the payload; 8-aligned, as is the payload itself.
    Some(unsafe { scratch.payload.as_mut_ptr().add(offset).cast() })
}
