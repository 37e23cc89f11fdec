//! Turns of event loops: a thread has one from the return of its wait for events to the beginning of the next one.
//!
//! Which waits are those of the event loop? All with epoll are. poll and select are used for other things as well (the
//! resolver of the C library waits for answers with poll, and blocks the loop meanwhile): those of a thread that has used epoll
//! are none of its loop, nor are those that are called from deeper on the stack than others.

use core::ffi::c_void;
use core::mem::MaybeUninit;

use aya_ebpf::bindings::pt_regs;
use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::helpers::generated::{
    bpf_get_current_task_btf, bpf_ktime_get_ns, bpf_probe_read_kernel, bpf_ringbuf_output, bpf_task_pt_regs,
};
use aya_ebpf::macros::{btf_tracepoint, fentry, fexit};
use aya_ebpf::programs::{BtfTracePointContext, FEntryContext, FExitContext};
use lj_trace_common::event::SampleHeader;
use lj_trace_common::off_cpu::{OffCpuProcess, OffCpuThread, WAS_PREEMPTED};
use lj_trace_common::turn::{DEEPER, EndedTurn, LENGTHS, LoopCall, TURN_ENDED, step_of};

use crate::arch;
use crate::maps::{OFF_CPU_THREADS, SAMPLES, TURN_LENGTHS};
use crate::off_cpu::{known, make};
use crate::scratch::PAYLOAD;
use crate::wakeup;

macro_rules! loop_waits {
    ($($begins:ident, $ends:ident, $is_epoll:literal;)*) => {
        $(
            /// A wait for events begins.
            #[fentry]
            pub fn $begins(_context: FEntryContext) -> i32 {
                wait_begins($is_epoll)
            }

            /// It has ended.
            #[fexit]
            pub fn $ends(_context: FExitContext) -> i32 {
                wait_ends()
            }
        )*
    };
}

// Their names are in `lj_trace_common::turn::LOOP_WAITS`.
loop_waits! {
    epoll_wait_begins, epoll_wait_ends, true;
    epoll_pwait_begins, epoll_pwait_ends, true;
    epoll_pwait2_begins, epoll_pwait2_ends, true;
    poll_begins, poll_ends, false;
    ppoll_begins, ppoll_ends, false;
    select_begins, select_ends, false;
    pselect6_begins, pselect6_ends, false;
}

/// Any system call begins: where the kernel allows no programs at functions.
#[btf_tracepoint(function = "sys_enter")]
pub fn any_call_begins(context: BtfTracePointContext) -> i32 {
    match arch::loop_wait(context.arg(1)) {
        LoopCall::None => 0,
        LoopCall::Epoll => wait_begins(true),
        LoopCall::Other => wait_begins(false),
    }
}

/// It has ended.
#[btf_tracepoint(function = "sys_exit")]
pub fn any_call_ends(_context: BtfTracePointContext) -> i32 {
    wait_ends()
}

/// The current thread begins to wait for events: that ends its turn.
#[inline(always)]
fn wait_begins(is_epoll: bool) -> i32 {
    let id = bpf_get_current_pid_tgid();
    let Some(entry) = OFF_CPU_THREADS.get_ptr_mut(&(id as u32)).or_else(|| make_for(id)) else { return 0 };
    // SAFETY: the entry of a thread is changed by itself and at its own switches only, one after the other.
    let entry = unsafe { &mut *entry };
    if is_epoll {
        entry.uses_epoll = 1;
    } else if entry.uses_epoll != 0 || !is_of_loop(entry) {
        return 0;
    }
    entry.is_in_loop_wait = 1;
    if entry.turn_began != 0
        && let Some(process) = known((id >> 32) as u32)
    {
        end_turn(process, entry, id as u32);
    }
    entry.turn_began = 0;
    0
}

/// The entry of a thread that is seen for the first time, if its process's turns are looked at.
#[inline(never)]
fn make_for(id: u64) -> Option<*mut OffCpuThread> {
    let process = known((id >> 32) as u32).filter(|process| process.over != 0)?;
    make(process, id as u32)
}

/// The current thread has waited for events, if that was the wait of its loop: its next turn begins.
#[inline(always)]
fn wait_ends() -> i32 {
    let thread = bpf_get_current_pid_tgid() as u32;
    let Some(entry) = OFF_CPU_THREADS.get_ptr_mut(&thread) else { return 0 };
    // SAFETY: as in `wait_begins`.
    let entry = unsafe { &mut *entry };
    if entry.is_in_loop_wait == 0 {
        return 0;
    }
    entry.is_in_loop_wait = 0;
    entry.turn += 1;
    (entry.turn_waited, entry.turn_preempted) = (0, 0);
    // SAFETY: the helper has no preconditions.
    entry.turn_began = unsafe { bpf_ktime_get_ns() };
    0
}

/// Whether a wait with poll or select is the event loop's, by where the thread's stack is.
#[inline(always)]
fn is_of_loop(entry: &mut OffCpuThread) -> bool {
    let mut registers = MaybeUninit::<pt_regs>::uninit();
    // SAFETY: a task's registers may be read while it runs, and the place has room for them.
    let outcome = unsafe {
        let source = bpf_task_pt_regs(bpf_get_current_task_btf()) as *const c_void;
        bpf_probe_read_kernel(registers.as_mut_ptr().cast(), size_of::<pt_regs>() as u32, source)
    };
    if outcome != 0 {
        return false;
    }
    // SAFETY: they were read.
    let stack = arch::stack_pointer(unsafe { registers.assume_init_ref() });
    if stack.wrapping_add(DEEPER) < entry.loop_stack {
        return false;
    }
    if stack > entry.loop_stack {
        entry.loop_stack = stack;
    }
    true
}

/// Counts a turn, and tells of it if it was too long.
#[inline(always)]
fn end_turn(process: &OffCpuProcess, entry: &OffCpuThread, tid: u32) {
    // SAFETY: the helper has no preconditions.
    let ended = unsafe { bpf_ktime_get_ns() };
    let length = ended.saturating_sub(entry.turn_began);
    let Some(lengths) = TURN_LENGTHS.get_ptr_mut(process.number) else { return };
    let step = step_of(length);
    // SAFETY: the entry is there as long as the program; other threads add to the same counters atomically.
    unsafe {
        let place = (&raw mut (*lengths).turns).cast::<u64>();
        if step < LENGTHS {
            add(place.add(step), 1);
        }
        add(&raw mut (*lengths).time, length);
    }
    if process.over == 0 || length < process.over {
        return;
    }
    let told = EndedTurn {
        mark: TURN_ENDED,
        number: entry.turn,
        began: entry.turn_began,
        ended,
        waited: entry.turn_waited,
        preempted: entry.turn_preempted,
        tid,
        process: process.number,
    };
    let flags = wakeup::flags(&SAMPLES, (size_of::<SampleHeader>() + PAYLOAD) as u64);
    // SAFETY: the record is as large as the helper is told.
    let outcome = unsafe {
        let record = (&raw const told).cast_mut().cast();
        bpf_ringbuf_output((&raw const SAMPLES).cast_mut().cast(), record, size_of::<EndedTurn>() as u64, flags)
    };
    if outcome != 0 {
        // SAFETY: as above.
        unsafe { add(&raw mut (*lengths).lost, 1) };
    }
}

/// Adds to a counter that others add to as well.
///
/// # Safety
/// It is an aligned word of a map.
#[inline(always)]
unsafe fn add(place: *mut u64, amount: u64) {
    // SAFETY: the caller vouches for the place. The addition is one instruction (`BPF_ATOMIC`, `BPF_ADD`).
    unsafe {
        core::arch::asm!("lock *(u64 *)({place} + 0) += {amount}", place = in(reg) place, amount = in(reg) amount, options(nostack));
    }
}

/// Adds a wait that is just over to the turn that it is in; whether its stack is of interest: it is in a turn that has lasted for
/// so many nanoseconds.
#[inline(always)]
pub fn note_wait(entry: &mut OffCpuThread, wait: u64, now: u64, after: u64) -> bool {
    if entry.turn_began == 0 {
        return false;
    }
    entry.turn_waited += wait;
    if entry.state == 0 || entry.state & WAS_PREEMPTED != 0 {
        entry.turn_preempted += wait;
    }
    now.saturating_sub(entry.turn_began) >= after
}

/// The number of the turn that the current thread is in, if that has lasted for so many microseconds; else 0. A function of its
/// own: samples need all the stack that there is.
#[inline(never)]
pub fn under_way(after: u32) -> u64 {
    let thread = bpf_get_current_pid_tgid() as u32;
    let Some(entry) = OFF_CPU_THREADS.get_ptr(&thread) else { return 0 };
    // SAFETY: the thread itself is interrupted, and nobody else changes its entry meanwhile.
    let (began, turn) = unsafe { ((*entry).turn_began, (*entry).turn) };
    // SAFETY: the helper has no preconditions.
    let now = unsafe { bpf_ktime_get_ns() };
    if began == 0 || now.wrapping_sub(began) < u64::from(after) * 1000 { 0 } else { turn }
}
