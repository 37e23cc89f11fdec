//! Time off the CPU. At each context switch, the thread that leaves the CPU notes the time. When a thread comes back,
//! the length of its wait decides whether the wait is sampled. A sampled thread walks its own stack before it returns
//! to its program.
//!
//! The time of a thread off the CPU is cut into strata as long as the threshold. Each stratum has one random point. A
//! wait that covers the point is sampled, and stands for the whole stratum. A wait longer than the threshold is always
//! sampled, and stands for itself. So each nanosecond of each wait is equally likely to be sampled, and the sum of the
//! samples equals the sum of the waits, up to one threshold per thread.

use core::arch::asm;
use core::ffi::c_void;

use aya_ebpf::bindings::{BPF_NOEXIST, pt_regs, task_struct};
use aya_ebpf::helpers::bpf_get_smp_processor_id;
use aya_ebpf::helpers::generated::{
    bpf_get_prandom_u32, bpf_get_task_stack, bpf_ktime_get_ns, bpf_probe_read_kernel, bpf_seq_write, bpf_task_pt_regs,
};
use aya_ebpf::macros::btf_tracepoint;
use aya_ebpf::programs::BtfTracePointContext;
use lj_trace_common::config::{Counter, MAX_KERNEL_STACK};
use lj_trace_common::off_cpu::{
    LEAST_WALKS, MAX_WAIT_STACK, OffCpuThread, TASK_DEAD, WAS_PREEMPTED, WaitingTask, walks,
};

use crate::clock::Timer;
use crate::count::add_of;
use crate::maps::{BUSY, CONFIG, ITERATED, OFF_CPU_THREADS, RUN_QUEUE_CLOCK, WAITING_TASK};
use crate::off_cpu_threads::{first_seen, may_be_recorded, recorded, thread_entry};
use crate::running_threads::TaskIteration;
use crate::scratch::{PAYLOAD, Scratch, WaitingRoom};
use crate::{off_cpu_threads, sample, turns};

/// A thread leaves a CPU to another thread.
#[btf_tracepoint(function = "sched_switch")]
pub fn off_cpu_switch(context: BtfTracePointContext) -> i32 {
    let (previous, next): (*const task_struct, *const task_struct) = (context.arg(1), context.arg(2));
    let (before, after): (u32, u32);
    // SAFETY: fields of tasks, whose place the agent puts here (`crates/probes/src/kernel_places.rs`).
    unsafe {
        asm!("{0} = *(u32 *)({1} + 31233)", out(reg) before, in(reg) previous, options(nostack, readonly));
        asm!("{0} = *(u32 *)({1} + 31233)", out(reg) after, in(reg) next, options(nostack, readonly));
    }
    let is_leaving = may_be_recorded(before);
    let is_coming = if after == before { is_leaving } else { may_be_recorded(after) };
    if !is_leaving && !is_coming {
        return 0;
    }
    let now = time(next);
    if is_leaving {
        let is_preempted: bool = context.arg::<u32>(0) as u8 != 0;
        leave(before, previous, if is_preempted { WAS_PREEMPTED } else { context.arg(3) }, now);
    }
    if is_coming {
        come_back(after, next, now);
    }
    0
}

/// The time, at a switch to this thread.
#[inline(always)]
fn time(next: *const task_struct) -> u64 {
    let has_clock: u64;
    // SAFETY: a number that the agent puts here: 0 if it does not know where this kernel has the clock.
    unsafe { asm!("{0} = 2000000002", out(reg) has_clock, options(nomem, nostack, pure)) };
    if has_clock != 0
        && let Some(clock) = RUN_QUEUE_CLOCK.get_ptr_mut(0)
    {
        let scheduler: u64;
        // SAFETY: fields, as in `off_cpu_switch`: of the task, the run queue of its group, that of the CPU, and its clock.
        unsafe {
            asm!(
                "{0} = *(u64 *)({1} + 31238)", "{0} = *(u64 *)({0} + 31239)", "{0} = *(u64 *)({0} + 31240)",
                out(reg) scheduler, in(reg) next, options(nostack, readonly)
            );
        }
        // SAFETY: the entry is this CPU's own, and switches do not nest.
        let clock = unsafe { &mut *clock };
        // A field that cannot be read is 0.
        if scheduler != 0 {
            if clock.is_old(scheduler) {
                // SAFETY: the helper has no preconditions.
                clock.measure(scheduler, unsafe { bpf_ktime_get_ns() });
            }
            return clock.monotonic(scheduler);
        }
    }
    // SAFETY: as above.
    unsafe { bpf_ktime_get_ns() }
}

/// Notes that a thread leaves the CPU in this state.
#[inline(always)]
fn leave(process: u32, task: *const task_struct, state: u32, now: u64) {
    let thread: u32;
    // SAFETY: a field of a task, as in `off_cpu_switch`.
    unsafe { asm!("{0} = *(u32 *)({1} + 31234)", out(reg) thread, in(reg) task, options(nostack, readonly)) };
    let seen = recorded(process, thread);
    if state & TASK_DEAD != 0 {
        if let Some((process, _)) = seen {
            forget(process.number, thread, now);
        }
        return;
    }
    let Some((_, entry)) = seen.or_else(|| first_seen(process, thread)) else { return };
    if entry.since != 0 {
        note_unseen(entry, now);
    }
    entry.state = state;
    entry.since = now;
}

/// The current thread runs, but the programs did not see it come back since it left the CPU: a kernel may run no
/// programs while some process is current. What the thread did meanwhile is unknown.
#[inline(never)]
pub fn note_unseen(entry: &mut OffCpuThread, now: u64) -> u32 {
    let unseen = now.saturating_sub(entry.since);
    entry.since = 0;
    add_of(entry.process, Counter::TimeUnseen as u32, unseen);
    if entry.turn_began != 0 {
        let of_turn = now.saturating_sub(entry.turn_began);
        entry.turn_unseen += if unseen < of_turn { unseen } else { of_turn };
    }
    0
}

/// A thread has ended: its sums are added to those of the process.
#[inline(never)]
pub fn forget(process: u32, thread: u32, now: u64) -> u32 {
    // A thread that the programs never saw has no entry.
    let Some(entry) = thread_entry(thread) else { return 0 };
    let (waits, waited) = (entry.waits, entry.waited);
    if entry.since != 0 {
        note_unseen(entry, now);
    }
    add_of(process, Counter::Waits as u32, waits);
    add_of(process, Counter::WaitTime as u32, waited);
    off_cpu_threads::forget(thread);
    0
}

/// A random point in a stratum.
#[inline(always)]
pub fn point(threshold: u64) -> u64 {
    // SAFETY: the helper has no preconditions.
    (u64::from(unsafe { bpf_get_prandom_u32() }) * (threshold & 0xffff_ffff)) >> 32
}

/// A thread of a process that may be recorded gets a CPU.
#[inline(always)]
fn come_back(process: u32, next: *const task_struct, now: u64) {
    let thread: u32;
    // SAFETY: a field of a task, as in `off_cpu_switch`.
    unsafe { asm!("{0} = *(u32 *)({1} + 31234)", out(reg) thread, in(reg) next, options(nostack, readonly)) };
    let Some((known, entry)) = recorded(process, thread).or_else(|| {
        let (known, entry) = first_seen(process, thread)?;
        // The thread was off the CPU since recording began, or since it was created.
        let started: u64;
        // SAFETY: as above.
        unsafe { asm!("{0} = *(u64 *)({1} + 31235)", out(reg) started, in(reg) next, options(nostack, readonly)) };
        entry.since = if started > known.began { started } else { known.began };
        Some((known, entry))
    }) else {
        return;
    };
    let since = entry.since;
    if since == 0 {
        return;
    }
    // The clocks of two CPUs may differ by a microsecond.
    let wait = now.saturating_sub(since);
    entry.since = 0;
    entry.waited += wait;
    entry.waits += 1;
    if known.over != 0 && !turns::note_wait(entry, wait, now, known.turn_after) {
        return;
    }
    let weight = weight(entry, wait, known.threshold);
    if weight != 0 {
        choose(entry, weight, next);
    }
}

/// The nanoseconds that a wait stands for; 0 if it is not sampled.
#[inline(always)]
fn weight(entry: &mut OffCpuThread, wait: u64, threshold: u64) -> u64 {
    if wait >= threshold {
        return wait;
    }
    let (from, mut to) = (entry.position, entry.position + wait);
    let mut weight = 0;
    if entry.point >= from && entry.point < to {
        weight = threshold;
    }
    if to >= threshold {
        to -= threshold;
        entry.point = point(threshold);
        if entry.point < to {
            weight += threshold;
        }
    }
    entry.position = to;
    weight
}

/// Schedules a walk of a thread's stack before the thread returns to its program. Until then, the thread may wait again
/// with the same stack. One of these waits then stands for all of them, chosen with a probability in proportion to its
/// weight.
#[inline(always)]
fn choose(entry: &mut OffCpuThread, weight: u64, next: *const task_struct) {
    let before = entry.pending;
    entry.pending = before + weight;
    if before == 0 || point(entry.pending >> 10) < weight >> 10 {
        entry.pending_state = entry.state;
        entry.pending_turn = entry.turn;
        // SAFETY: the stack is that of a thread which does not run yet, and the helper writes no more than the place has.
        let size = unsafe {
            bpf_get_task_stack(next.cast_mut(), entry.kernel.as_mut_ptr().cast(), MAX_WAIT_STACK as u32 * 8, 0)
        };
        entry.kernel_size = if size > 0 && size <= MAX_WAIT_STACK as i64 * 8 { size as u32 } else { 0 };
    }
    if before != 0 {
        return;
    }
    let outcome: i64;
    // SAFETY: the arguments of `bpf_task_work_schedule_resume`, whose number the agent puts here; the last one is the verifier's.
    unsafe {
        asm!(
            "call 2000000001",
            in("r1") next,
            in("r2") &raw mut entry.work,
            in("r3") &raw const OFF_CPU_THREADS,
            in("r4") walk_waiting as *const c_void,
            in("r5") 0u64,
            lateout("r0") outcome,
            lateout("r1") _, lateout("r2") _, lateout("r3") _, lateout("r4") _, lateout("r5") _,
        );
    }
    if outcome as i32 != 0 {
        entry.pending = 0;
        add_of(entry.process, Counter::WaitTimeUnscheduled as u32, weight);
    }
}

/// Walks the stack of this thread, which was off the CPU and now returns to its program.
extern "C" fn walk_waiting(_map: *mut c_void, _key: *mut c_void, entry: *mut OffCpuThread) -> i64 {
    // SAFETY: the kernel passes the entry, which nobody else changes while the thread runs.
    let entry = unsafe { &mut *entry };
    // Zero if the agent has just forgotten the thread.
    if entry.pending != 0 {
        take(entry);
        entry.pending = 0;
    }
    0
}

/// Takes the sample of this thread that it has scheduled.
#[inline(always)]
fn take(entry: &mut OffCpuThread) -> Option<()> {
    let (process, weight) = (entry.process, entry.pending);
    let config = CONFIG.get(process)?;
    // SAFETY: the helper has no preconditions.
    let own = unsafe { bpf_get_smp_processor_id() };
    let mut area = u32::MAX;
    // Another thread on the same CPU may be in the middle of its own walk.
    for further in 0..LEAST_WALKS {
        let candidate = 2 * config.cpus + (own + further) % walks(config.cpus);
        if BUSY.insert(&candidate, &1, BPF_NOEXIST.into()).is_ok() {
            area = candidate;
            break;
        }
    }
    if area == u32::MAX {
        add_of(process, Counter::WaitTimeBusy as u32, weight);
        return None;
    }
    add_of(process, Counter::WaitsTaken as u32, 1);
    let timer = Timer::start();
    sample::take_wait((config, process, timer), area, weight, |scratch: &mut Scratch| {
        // The thread may have waited again meanwhile, with the same stack.
        scratch.header.allocation_size = entry.pending;
        entry.pending = 0;
        scratch.header.wait_state = entry.pending_state;
        scratch.header.turn = entry.pending_turn;
        copy_kernel_stack(scratch, entry);
    });
    sample::stop(area, Counter::SampleTime as u32);
    // This run inserted the entry a moment ago, and nobody else removes it.
    let _ = BUSY.remove(&area);
    Some(())
}

/// Appends the kernel's stack to the payload.
#[inline(always)]
fn copy_kernel_stack(scratch: &mut Scratch, entry: &OffCpuThread) {
    let header = &scratch.header;
    let offset = header.stack_size as usize
        + header.frame_count as usize * crate::scratch::FRAME_SIZE
        + header.lua_copy_size as usize;
    if offset > PAYLOAD - MAX_KERNEL_STACK as usize {
        return;
    }
    // SAFETY: the place holds MAX_KERNEL_STACK bytes, which is more than there are.
    let outcome = unsafe {
        let place = scratch.payload.as_mut_ptr().add(offset);
        bpf_probe_read_kernel(place.cast(), MAX_WAIT_STACK as u32 * 8, entry.kernel.as_ptr().cast())
    };
    if outcome == 0 {
        scratch.header.kernel_size = entry.kernel_size & 0x1ff;
    }
}

/// Reports each thread of one process that is off the CPU, and where it waits.
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/task")]
pub extern "C" fn waiting_tasks(context: *const TaskIteration) -> i32 {
    // SAFETY: the context is valid for the whole program.
    let (meta, task) = unsafe { ((*context).meta, (*context).task) };
    let Some(wanted) = ITERATED.get(0) else { return 0 };
    if task.is_null() {
        return 0;
    }
    let (process, tid, state, is_running): (u32, u32, u32, u32);
    let started: u64;
    // SAFETY: fields of a task, as in `off_cpu_switch`.
    unsafe {
        asm!("{0} = *(u32 *)({1} + 31233)", out(reg) process, in(reg) task, options(nostack, readonly));
        asm!("{0} = *(u32 *)({1} + 31234)", out(reg) tid, in(reg) task, options(nostack, readonly));
        asm!("{0} = *(u64 *)({1} + 31235)", out(reg) started, in(reg) task, options(nostack, readonly));
        asm!("{0} = *(u32 *)({1} + 31236)", out(reg) state, in(reg) task, options(nostack, readonly));
        asm!("{0} = *(u8 *)({1} + 31237)", out(reg) is_running, in(reg) task, options(nostack, readonly));
    }
    if process != *wanted || is_running != 0 {
        return 0;
    }
    let Some(room) = WAITING_TASK.get_ptr_mut(0) else { return 0 };
    // SAFETY: the entry is this CPU's own, and iterators do not nest there.
    let room = unsafe { &mut *room };
    let WaitingRoom { told, registers } = room;
    (told.tid, told.state, told.started) = (tid, state, started);
    // SAFETY: a task's registers may be read while it does not run, and the places have the room that the helpers are told.
    unsafe {
        let source = bpf_task_pt_regs(task) as *const c_void;
        let place: *mut pt_regs = registers;
        if bpf_probe_read_kernel(place.cast(), size_of::<pt_regs>() as u32, source) != 0 {
            return 0;
        }
        told.registers = crate::arch::registers(registers);
        let size = bpf_get_task_stack(task, told.kernel.as_mut_ptr().cast(), MAX_WAIT_STACK as u32 * 8, 0);
        told.kernel_size = if size > 0 && size <= MAX_WAIT_STACK as i64 * 8 { size as u32 } else { 0 };
        let told: *const WaitingTask = told;
        bpf_seq_write(*meta, told.cast_mut().cast(), size_of::<WaitingTask>() as u32);
    }
    0
}
