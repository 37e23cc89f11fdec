//! The CPU sampler: a perf event's program that runs at every tick of every thread of the target.
//!
//! It copies the C stack, finds LuaJIT's C frames on it, and walks the Lua stack of each. Both loops are one state
//! machine that `bpf_loop` drives, so the verifier checks a single step, once.

use core::ffi::c_void;

use aya_ebpf::EbpfContext as _;
use aya_ebpf::bindings::{BPF_NOEXIST, bpf_perf_event_data, pt_regs};
use aya_ebpf::helpers::generated::{
    bpf_get_attach_cookie, bpf_get_current_task_btf, bpf_ktime_get_ns, bpf_loop, bpf_probe_read_kernel,
    bpf_probe_read_user, bpf_ringbuf_output, bpf_task_pt_regs,
};
use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_get_smp_processor_id};
use aya_ebpf::macros::perf_event;
use aya_ebpf::programs::PerfEventContext;
use lj_trace_common::arch::{CFRAME_L, CFRAME_L_VARIES};
use lj_trace_common::c_frame::{ADDRESS_MASK, C_FRAME_HEAD, CFrameShape, RESULTS_MASK};
use lj_trace_common::config::{
    Config, Counter, LATE_EVENT, MAX_FRAMES, MAX_KERNEL_STACK, MAX_LUA_COPY, MAX_SAMPLED_VMS, MAX_STACK, VmKey,
};
use lj_trace_common::ends::{self, INNERMOST, MAX_LEFT_OUT, OUTERMOST};
use lj_trace_common::event::{
    FrameRecord, NO_VM, RecordKind, SAMPLE_ALLOCATION, SAMPLE_BASE_UNCERTAIN, SAMPLE_IN_KERNEL, SAMPLE_WAIT,
    SampleHeader, SampledRegisters, reg,
};
use lj_trace_common::frame::{self, GC64_ADDRESS_MASK, WalkEnd, WalkStep};
use lj_trace_common::memory::{ReadMemory as _, clear};
use lj_trace_common::thread::LuaThread;
use lj_trace_common::top;
use lj_trace_common::vm::{self, VmConfig};

use crate::clock::Timer;
use crate::count::{add_of, count};
use crate::kernel_stack;
use crate::maps::{BUSY, CONFIG, GLOBALS, INHERITED, SAMPLES, SCRATCH, VMS};
use crate::memory::{SampledMemory, UserMemory};
use crate::scratch::{FRAME_SIZE, MachineState, PAYLOAD, Scratch};
use crate::wakeup;
use crate::{arch, label, pending, stack_copy, traces, turns};

/// The lowest address that can hold an object: nothing below it is ever mapped (`vm.mmap_min_addr`).
const LOWEST_ADDRESS: u64 = 0x1_0000;

/// What the next call of [`step`] does.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Look for a C frame at `scan`.
    Scan = 0,
    /// Walk one more frame.
    Walk = 1,
}

/// The steps that one sample may take: enough to scan a full C stack in steps of 16 bytes, and to walk all frames. One
/// step skips many of the left-out frames.
const MAX_STEPS: u32 = MAX_STACK / 16 + 2 * MAX_FRAMES + MAX_LEFT_OUT;

/// The sampler of a set with only one process.
#[perf_event]
pub fn sample_cpu(context: PerfEventContext) -> u32 {
    let timer = Timer::start();
    let Some(config) = CONFIG.get(0) else { return 0 };
    if config.late_events != 0 && is_duplicate(&context, bpf_get_current_pid_tgid() as u32) {
        return 0;
    }
    sample(&context, 0, timer);
    0
}

/// Takes a sample of the process with this number at a tick of the clock.
#[inline(always)]
pub fn sample(context: &PerfEventContext, process: u32, timer: Timer) {
    let Some(config) = CONFIG.get(process) else { return };
    let before = add_of(process, Counter::Sampled as u32, 1);
    if config.leaves_out != 0 && config.weight != 0 && before % u64::from(config.weight) != 0 {
        add_of(process, Counter::LeftOut as u32, 1);
        return;
    }
    if config.turn_after != 0 && turns::under_way(config.turn_after) == 0 {
        add_of(process, Counter::LeftOut as u32, 1);
        return;
    }
    // SAFETY: the helper has no preconditions.
    let area = unsafe { bpf_get_smp_processor_id() };
    // Perf programs do not nest on a CPU (`bpf_prog_active`), so the area is this run's own.
    take((config, process, timer), area, (0, 0), context.ctx.cast(), |scratch| {
        if config.turn_after != 0 {
            scratch.header.turn = turns::under_way(config.turn_after);
        }
    });
    stop(area, Counter::SampleTime as u32);
    #[cfg(feature = "log")]
    crate::log::sample(context, area);
}

/// Sends the stack of the current allocation.
#[inline(always)]
pub fn sample_allocation(config: &Config, size: u64) {
    // SAFETY: the helper has no preconditions.
    let area = config.cpus + unsafe { bpf_get_smp_processor_id() };
    // Another thread may take over the CPU in the middle of the program, and allocate too.
    if BUSY.insert(&area, &1, BPF_NOEXIST.into()).is_err() {
        count(Counter::ScratchBusy);
        return;
    }
    let timer = Timer::start();
    take((config, 0, timer), area, (SAMPLE_ALLOCATION, size), core::ptr::null_mut(), |_| {});
    stop(area, Counter::StackTime as u32);
    // This run inserted the entry a moment ago, and nobody else removes it.
    let _ = BUSY.remove(&area);
}

/// Sends the stack of this thread, which was off the CPU and returns to its program. The sample stands for `weight`
/// nanoseconds. `finish` adds what is known of the wait. The caller must own the working area.
#[inline(always)]
pub fn take_wait(known: (&Config, u32, Timer), area: u32, weight: u64, finish: impl FnOnce(&mut Scratch)) {
    take(known, area, (SAMPLE_WAIT, weight), core::ptr::null_mut(), finish);
}

/// Adds the time that the sample in this working area took to the counter with this number. This is a function of its
/// own, and reads what it needs from the area, because samples need all of the program's stack.
#[inline(never)]
pub fn stop(area: u32, time: u32) -> u32 {
    let Some(scratch) = SCRATCH.get_ptr_mut(area) else { return 0 };
    // SAFETY: the caller has the area to itself, and no reference to it meanwhile.
    let scratch = unsafe { &*scratch };
    scratch.machine.timer.stop_of(scratch.header.process, time);
    0
}

/// Takes a sample of this thread's user code in a working area. If `program` is the context of a program that may ask
/// for the kernel's stack, and the tick hit the kernel, the sample has that stack as well. `finish` adds what else is
/// known.
///
/// What differs between samples stays in memory until it is needed: the verifier follows the walk again for every
/// combination of values in registers.
#[inline(always)]
fn take(
    (config, process, timer): (&Config, u32, Timer),
    area: u32,
    (flags, size): (u32, u64),
    program: *mut c_void,
    finish: impl FnOnce(&mut Scratch),
) {
    let Some(scratch) = SCRATCH.get_ptr_mut(area) else {
        add_of(process, Counter::NoScratch as u32, 1);
        return;
    };
    // No reference to the area may live across `bpf_loop`, whose callback makes its own. So every phase borrows the
    // area anew.
    // SAFETY: the callers make sure that nobody else uses the area.
    let borrow = || unsafe { &mut *scratch };
    borrow().machine.timer = timer;
    if !read_registers(borrow(), (config.allocators, process), flags, size) {
        add_of(process, Counter::NoRegisters as u32, 1);
        return;
    }
    if !program.is_null() {
        borrow().header.weight = config.weight;
        note_mode(borrow(), program);
    }
    let mut area = area;
    let context = (&raw mut area).cast();
    if !stack_copy::at_once(borrow(), config) {
        // SAFETY: the callback has the signature that the helper wants, and the context outlives the call.
        unsafe { bpf_loop(stack_copy::PAGES, stack_copy::next_page as *mut c_void, context, 0) };
        stack_copy::finish(borrow(), config);
    }
    if config.vms != 0 {
        prepare_walk(borrow(), config);
        // SAFETY: the callback has the signature that the helper wants, and the context outlives the call.
        unsafe { bpf_loop(MAX_STEPS, step as *mut c_void, context, 0) };
        finish_walk(borrow());
        // SAFETY: as above.
        unsafe { bpf_loop(OUTERMOST, look_at as *mut c_void, context, 0) };
        copy_lua_stack(borrow());
        traces::note(area);
        label::note_request(area);
        label::note_route(area);
        label::note_trace_id(area);
    }
    if !program.is_null() && config.kernel_frames != 0 && borrow().header.flags & SAMPLE_IN_KERNEL != 0 {
        copy_kernel_stack(borrow(), program);
    }
    finish(borrow());
    send(borrow());
}

/// Notes whether the tick hit the kernel. `program` is the context of a perf event's program.
#[inline(always)]
fn note_mode(scratch: &mut Scratch, program: *mut c_void) {
    // SAFETY: the context is valid for the whole program.
    let in_kernel = arch::is_kernel(unsafe { &(*program.cast::<bpf_perf_event_data>()).regs });
    let flags = &raw mut scratch.header.flags;
    // SAFETY: a field. It is kept in memory alone.
    unsafe { flags.write_volatile(flags.read_volatile() | u32::from(in_kernel) * SAMPLE_IN_KERNEL) };
}

/// Whether this tick is one too many. The agent attached its event to the thread, but the thread had also inherited an
/// event from the thread that started it; only the inherited event's ticks count. `thread` is the thread's number,
/// which each sampler marks with a bit of its own.
#[inline(always)]
pub fn is_duplicate(context: &PerfEventContext, thread: u32) -> bool {
    // SAFETY: the context is valid for the whole program.
    let cookie = unsafe { bpf_get_attach_cookie(context.as_ptr()) };
    if cookie == LATE_EVENT {
        // SAFETY: only whether there is an entry matters.
        return unsafe { INHERITED.get(&thread) }.is_some();
    }
    // If the map is full, the oldest entry goes; at worst, a thread counts twice again.
    let _ = INHERITED.insert(&thread, &1, 0);
    false
}

/// Fills in which thread was sampled, and the registers of its user code, also if the tick hit the kernel. If
/// `allocators` are probed, a call of an allocator may not have returned yet.
#[inline(always)]
fn read_registers(scratch: &mut Scratch, (allocators, process): (u32, u32), flags: u32, allocation_size: u64) -> bool {
    let Scratch { header, payload, .. } = scratch;
    clear(header);
    header.vm = NO_VM;
    (header.walk_end, header.outer_end) = (WalkEnd::NoLua as u32, WalkEnd::NoLua as u32);
    let id = bpf_get_current_pid_tgid();
    header.tid = id as u32;
    header.pid = (id >> 32) as u32;
    header.process = process;
    // The registers are too large for the program's stack, so they go into the payload, which is still empty.
    let registers = payload.as_mut_ptr().cast::<pt_regs>();
    // SAFETY: plain helpers, and a task's registers may be read while it runs. The payload has room for them.
    let outcome = unsafe {
        header.time = bpf_ktime_get_ns();
        let source = bpf_task_pt_regs(bpf_get_current_task_btf()) as *const c_void;
        bpf_probe_read_kernel(registers.cast(), size_of::<pt_regs>() as u32, source)
    };
    if outcome != 0 {
        return false;
    }
    // SAFETY: the payload is aligned for them, and holds them now.
    let r = unsafe { &*registers };
    if allocators != 0
        && let Some(pending) = pending::of_id(id)
    {
        header.return_slot = pending.return_slot;
        header.return_address = pending.return_address;
    }
    if arch::stack_pointer(r) == 0 {
        return false;
    }
    header.flags = flags;
    header.allocation_size = allocation_size;
    header.registers = arch::registers(r);
    true
}

/// Sets the state machine to the start of the search for Lua stacks.
#[inline(always)]
fn prepare_walk(scratch: &mut Scratch, config: &Config) {
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
extern "C" fn step(_index: u64, area: *mut c_void) -> i64 {
    // SAFETY: `take` passes the number of its working area.
    let area = unsafe { *area.cast::<u32>() };
    let Some(scratch) = SCRATCH.get_ptr_mut(area) else { return 1 };
    // SAFETY: as in `take`, whose own reference is not used while this runs.
    let scratch = unsafe { &mut *scratch };
    if scratch.machine.mode == Mode::Walk as u32 { walk_step(scratch) } else { scan_step(scratch, area) }
}

/// The candidates that one step may skip.
const PASSED_OVER: u32 = 8;

/// Looks for a C frame from `scan` on, and starts to walk where one begins.
#[inline(always)]
fn scan_step(scratch: &mut Scratch, area: u32) -> i64 {
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
    let Some((index, thread)) = find_thread(scratch, config, cframe) else { return 0 };
    scratch.machine.scan = cframe + 16;
    let Some(vm) = VMS.get(index) else { return 0 };
    start_walk(scratch, area, (vm, index), &thread, cframe)
}

/// The coroutine that runs in the C frame at `cframe`, and the index of its VM. [`None`] unless frame and coroutine
/// point at each other.
#[inline(always)]
fn find_thread(scratch: &mut Scratch, config: &Config, cframe: u64) -> Option<(u32, LuaThread)> {
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
    (thread.is_thread && thread.global == vm.global && thread.cframe == cframe).then_some((index, thread))
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

/// Starts to walk the coroutine that runs in the C frame at `cframe`.
#[inline(always)]
fn start_walk(scratch: &mut Scratch, area: u32, (vm, index): (&VmConfig, u32), thread: &LuaThread, cframe: u64) -> i64 {
    let layout = &vm.layout;
    scratch.machine.vm = index;
    label::see_thread(area, thread.coroutine.thread);
    let inner = scratch.header.vm == NO_VM;
    if inner {
        scratch.header.vm = index;
        scratch.header.thread = thread.coroutine.thread;
        scratch.header.cframe = cframe;
    }
    let coroutine = &thread.coroutine;
    let mut crosses = false;
    let (base, pc) = if inner {
        scratch.header.lua_stack = coroutine.stack;
        scratch.header.lua_stack_end = coroutine.stack_end;
        let registers: &SampledRegisters = &scratch.header.registers;
        let MachineState { memo, record, .. } = &mut scratch.machine;
        memo.look_at(coroutine);
        let Ok(top) =
            top::find(&SampledMemory { area }, vm, registers, (coroutine, thread.base), cframe, (record, memo))
        else {
            return end_walk(scratch, WalkEnd::Unreadable);
        };
        // Merges all paths through `find` into one state for the verifier.
        let place = &raw mut scratch.machine.top;
        // SAFETY: a field.
        let top = unsafe {
            place.write_volatile(top);
            place.read_volatile()
        };
        scratch.header.vmstate = top.vmstate;
        scratch.header.jit_base = top.jit_base;
        scratch.header.thread_base = top.thread_base;
        scratch.header.flags |= top.flags;
        scratch.header.trace_exit = top.trace_exit;
        crosses = top.crosses != 0;
        (top.base, top.pc)
    } else {
        // An outer coroutine: it called C code (or resume), so its L->base is current.
        (thread.base, UserMemory.read_ref(layout.is_gc64(), cframe + u64::from(layout.cframe_pc)).unwrap_or(0))
    };
    let MachineState { walk, memo, .. } = &mut scratch.machine;
    match walk.start(&UserMemory, layout, coroutine, cframe, (base, pc), memo) {
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
#[inline(always)]
fn walk_step(scratch: &mut Scratch) -> i64 {
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
fn end_walk(scratch: &mut Scratch, end: WalkEnd) -> i64 {
    let header = &mut scratch.header;
    if header.walk_end == WalkEnd::NoLua as u32 {
        header.walk_end = end as u32;
        header.inner_frames = header.frame_count + header.left_out;
    } else if header.outer_end == WalkEnd::NoLua as u32 || header.outer_end == WalkEnd::Complete as u32 {
        header.outer_end = end as u32;
    }
    scratch.machine.mode = Mode::Scan as u32;
    i64::from(end == WalkEnd::TooDeep)
}

/// Stores the current frame of the walk: 0 to continue, 1 to stop.
#[inline(always)]
fn keep(scratch: &mut Scratch) -> i64 {
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
fn finish_walk(scratch: &mut Scratch) {
    if scratch.machine.mode == Mode::Walk as u32 {
        end_walk(scratch, WalkEnd::TooDeep);
    }
}

/// Finds out the kind of the outermost frame with this number, if the walk has only skipped it: 0 to continue, 1 to
/// stop.
extern "C" fn look_at(index: u64, area: *mut c_void) -> i64 {
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

/// Copies the upper part of the Lua stack, if user space must find out which BASE was current.
#[inline(always)]
fn copy_lua_stack(scratch: &mut Scratch) {
    // While a trace exits, its frames are put onto the stack one by one.
    if scratch.header.flags & SAMPLE_BASE_UNCERTAIN == 0 && scratch.header.trace_exit == 0 {
        return;
    }
    let stack = scratch.header.lua_stack;
    let end = scratch.header.lua_stack_end;
    // BASE is near L->base: three quarters of the copy are below it.
    let mut start = scratch.header.thread_base.saturating_sub(u64::from(MAX_LUA_COPY / 4 * 3));
    if start < stack {
        start = stack;
    }
    let mut size = end.saturating_sub(start);
    if size > u64::from(MAX_LUA_COPY) {
        size = u64::from(MAX_LUA_COPY);
    }
    let offset = scratch.machine.stack_size as usize + scratch.header.frame_count as usize * FRAME_SIZE;
    if offset > PAYLOAD - MAX_LUA_COPY as usize {
        return;
    }
    // SAFETY: the place holds MAX_LUA_COPY bytes; the helper checks the source.
    let read = unsafe {
        let place = scratch.payload.as_mut_ptr().add(offset);
        bpf_probe_read_user(place.cast(), (size & 0x7fff) as u32, start as *const c_void)
    };
    if read == 0 {
        scratch.header.lua_copy_start = start;
        scratch.header.lua_copy_size = size as u32;
    }
}

/// Appends the kernel's stack to the payload.
#[inline(always)]
fn copy_kernel_stack(scratch: &mut Scratch, context: *mut c_void) {
    let header = &scratch.header;
    let offset = header.stack_size as usize + header.frame_count as usize * FRAME_SIZE + header.lua_copy_size as usize;
    if offset > PAYLOAD - MAX_KERNEL_STACK as usize {
        return;
    }
    // SAFETY: the place holds MAX_KERNEL_STACK bytes.
    let place = unsafe { scratch.payload.as_mut_ptr().add(offset) };
    scratch.header.kernel_size = kernel_stack::copy(context, place);
}

/// Sends the sample to user space.
#[inline(always)]
fn send(scratch: &mut Scratch) {
    let size = size_of::<SampleHeader>()
        + scratch.header.stack_size as usize
        + scratch.header.frame_count as usize * FRAME_SIZE
        + scratch.header.lua_copy_size as usize
        + scratch.header.kernel_size as usize;
    if size > size_of::<SampleHeader>() + PAYLOAD {
        return;
    }
    let flags = wakeup::flags(&SAMPLES, (size_of::<SampleHeader>() + PAYLOAD) as u64);
    // SAFETY: the header is followed by the payload, so `size` bytes from it lie within the entry.
    let result = unsafe {
        bpf_ringbuf_output((&raw const SAMPLES).cast_mut().cast(), (scratch as *mut Scratch).cast(), size as u64, flags)
    };
    let process = scratch.header.process;
    if result == 0 {
        add_of(process, Counter::Written as u32, 1);
    } else if scratch.header.flags & SAMPLE_ALLOCATION != 0 {
        add_of(process, Counter::StacksLost as u32, 1);
    } else if scratch.header.flags & SAMPLE_WAIT != 0 {
        add_of(process, Counter::WaitTimeUnsent as u32, scratch.header.allocation_size);
    } else {
        add_of(process, Counter::RingBufferFull as u32, u64::from(scratch.header.weight.max(1)));
    }
}
