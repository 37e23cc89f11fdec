//! The CPU sampler: a perf event's program that runs at every tick of every thread of the target.
//!
//! It copies the C stack, and [walks](crate::walk) the Lua stacks.

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
use lj_trace_common::config::{Config, Counter, LATE_EVENT, MAX_KERNEL_STACK, MAX_LUA_COPY};
use lj_trace_common::ends::OUTERMOST;
use lj_trace_common::event::{
    NO_VM, SAMPLE_ALLOCATION, SAMPLE_BASE_UNCERTAIN, SAMPLE_IN_KERNEL, SAMPLE_WAIT, SampleHeader,
};
use lj_trace_common::frame::WalkEnd;
use lj_trace_common::memory::clear;

use crate::clock::Timer;
use crate::count::{add_of, count};
use crate::kernel_stack;
use crate::maps::{BUSY, CONFIG, INHERITED, SAMPLES, SCRATCH};
use crate::scratch::{FRAME_SIZE, PAYLOAD, Scratch};
use crate::wakeup;
use crate::{arch, label, pending, stack_copy, traces, turns, walk};

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
        walk::prepare(borrow(), config);
        // SAFETY: the callback has the signature that the helper wants, and the context outlives the call.
        unsafe { bpf_loop(walk::MAX_STEPS, walk::step as *mut c_void, context, 0) };
        walk::finish(borrow());
        // SAFETY: as above.
        unsafe { bpf_loop(OUTERMOST, walk::look_at as *mut c_void, context, 0) };
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
        header.call_stack = pending.stack_pointer;
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
