//! The recorded processes and their threads: how the programs at thread switches find them, twice at each switch. So the
//! usual way there has no calls: it only looks into arrays.

use core::arch::asm;
use core::ptr::null_mut;

use aya_ebpf::bindings::BPF_NOEXIST;
use lj_trace_common::config::Counter;
use lj_trace_common::off_cpu::{NO_LOOP_WAIT, OffCpuProcess, OffCpuThread, PLACES, filter_bit, place};

use crate::count::add_of;
use crate::maps::{OFF_CPU_FILTER, OFF_CPU_NUMBERS, OFF_CPU_PLACES, OFF_CPU_PROCESSES, OFF_CPU_THREADS};

/// A thread that is recorded, and its process.
pub type RecordedThread = (&'static OffCpuProcess, &'static mut OffCpuThread);

/// Whether a process may be recorded. Nearly all switches are those of other processes, and are left here. The bit of
/// idle CPUs is that of process 0, so they never pass.
#[inline(always)]
pub fn may_be_recorded(process: u32) -> bool {
    let (word, bit) = filter_bit(process);
    OFF_CPU_FILTER.get(word).is_some_and(|word| word & bit != 0)
}

/// The entry of a thread that the programs have seen before, if its process is recorded. The process must have passed
/// the filter.
#[inline(always)]
pub fn recorded(process: u32, thread: u32) -> Option<RecordedThread> {
    let entry = thread_entry(thread)?;
    let known = OFF_CPU_PROCESSES.get(entry.process)?;
    // After the process has ended, another one may get the thread's id.
    if known.pid == process { Some((known, entry)) } else { None }
}

/// The same for a thread that the programs see for the first time.
#[inline(always)]
pub fn first_seen(process: u32, thread: u32) -> Option<RecordedThread> {
    let known = process_entry(process)?;
    // SAFETY: `make` returns an entry or null; entries are there as long as the program.
    let entry = unsafe { make(known.number, known.threshold, thread).as_mut() }?;
    Some((known, entry))
}

/// The entry of a process, if it is recorded.
#[inline(always)]
pub fn process_entry(process: u32) -> Option<&'static OffCpuProcess> {
    // SAFETY: the agent writes an entry once.
    let number = unsafe { OFF_CPU_NUMBERS.get(&process) }?;
    OFF_CPU_PROCESSES.get(*number)
}

/// The entry of a thread.
#[inline(always)]
pub fn thread_entry(thread: u32) -> Option<&'static mut OffCpuThread> {
    let first = OFF_CPU_THREADS.get_ptr_mut(place(thread, 0))?;
    // SAFETY: entries are there as long as the program. That of a thread is changed by itself and at its own switches
    // only, one after the other.
    unsafe {
        if (*first).tid == thread {
            return Some(&mut *first);
        }
        elsewhere(thread).as_mut()
    }
}

/// The entry of a thread whose first place another thread has; null if there is none.
#[inline(never)]
fn elsewhere(thread: u32) -> *mut OffCpuThread {
    // SAFETY: nobody changes the place of a thread.
    let Some(place) = (unsafe { OFF_CPU_PLACES.get(&thread) }) else { return null_mut() };
    let Some(entry) = OFF_CPU_THREADS.get_ptr_mut(*place) else { return null_mut() };
    // The agent may have cleared it, and another thread taken it.
    // SAFETY: as in `thread_entry`.
    if unsafe { (*entry).tid } == thread { entry } else { null_mut() }
}

/// Makes the entry of a thread; null if there is no room.
#[inline(never)]
fn make(process: u32, threshold: u64, thread: u32) -> *mut OffCpuThread {
    // The process of an entry that is left over is no longer recorded.
    forget(thread);
    for attempt in 0..PLACES {
        let place = place(thread, attempt);
        let Some(entry) = OFF_CPU_THREADS.get_ptr_mut(place) else { break };
        // SAFETY: an entry, as in `thread_entry`; from here on it is this thread's.
        if unsafe { !take(&raw mut (*entry).tid, thread) } {
            continue;
        }
        // SAFETY: as above.
        unsafe { clear(&mut *entry, process, threshold) };
        if OFF_CPU_PLACES.insert(&thread, &place, BPF_NOEXIST.into()).is_ok() {
            return entry;
        }
        // SAFETY: as above.
        unsafe { (*entry).tid = 0 };
        break;
    }
    add_of(process, Counter::OffCpuThreadsBeyond as u32, 1);
    null_mut()
}

/// Removes the entry of a thread.
#[inline(always)]
pub fn forget(thread: u32) {
    if let Some(entry) = thread_entry(thread) {
        let _ = OFF_CPU_PLACES.remove(&thread);
        entry.tid = 0;
    }
}

/// Takes a place that is free for a thread.
///
/// # Safety
/// It is an aligned word of a map.
#[inline(always)]
unsafe fn take(place: *mut u32, thread: u32) -> bool {
    let before: u64;
    // SAFETY: the caller vouches for the place. The exchange is one instruction (`BPF_ATOMIC`, `BPF_CMPXCHG`).
    unsafe {
        asm!(
            "w0 = cmpxchg32_32(r2 + 0, w0, w1)",
            in("r2") place,
            in("r1") u64::from(thread),
            inout("r0") 0u64 => before,
            options(nostack),
        );
    }
    before as u32 == 0
}

/// Sets the fields of a new entry. The kernel's own field stays as it is: the work of the thread before is done.
#[inline(always)]
fn clear(entry: &mut OffCpuThread, process: u32, threshold: u64) {
    entry.process = process;
    entry.point = crate::off_cpu::point(threshold);
    (entry.since, entry.position, entry.pending, entry.waited, entry.waits) = (0, 0, 0, 0, 0);
    (entry.state, entry.pending_state, entry.kernel_size) = (0, 0, 0);
    (entry.turn_began, entry.turn, entry.pending_turn) = (0, 0, 0);
    (entry.turn_waited, entry.turn_preempted, entry.turn_unseen) = (0, 0, 0);
    (entry.loop_stack, entry.uses_epoll, entry.loop_wait, entry.deeper_waits) = (0, 0, NO_LOOP_WAIT, 0);
}
