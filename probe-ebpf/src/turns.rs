//! Turns of event loops: a thread's turn lasts from the return of its wait for events to the beginning of the next
//! wait.
//!
//! Which waits belong to the event loop? All waits with epoll do. poll and select have other uses as well: the C
//! library's resolver waits for answers with poll, and blocks the loop meanwhile. So they do not count on a thread that
//! has used epoll. Nor do they count if they are called from deeper on the stack than others, unless only such calls
//! come.

use core::ffi::c_void;
use core::mem::MaybeUninit;

use aya_ebpf::EbpfContext as _;
use aya_ebpf::bindings::pt_regs;
use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::helpers::generated::{
    bpf_get_current_task_btf, bpf_ktime_get_ns, bpf_probe_read_kernel, bpf_ringbuf_output, bpf_task_pt_regs,
};
use aya_ebpf::macros::{btf_tracepoint, fentry, fexit, tracepoint};
use aya_ebpf::programs::{BtfTracePointContext, FEntryContext, FExitContext, TracePointContext};
use lj_trace_common::event::SampleHeader;
use lj_trace_common::off_cpu::{
    IN_LOOP_WAIT, LOOP_WAIT_INTERRUPTED, NO_LOOP_WAIT, OffCpuProcess, OffCpuThread, WAS_PREEMPTED,
};
use lj_trace_common::turn::{DEEPER, DEEPER_WAITS, EndedTurn, LENGTHS, LoopCall, TURN_ENDED, step_of};

use crate::arch;
use crate::count::{add_to, below_256};
use crate::maps::{SAMPLES, TURN_LENGTHS};
use crate::off_cpu::{forget, note_unseen};
use crate::off_cpu_threads::{first_seen, may_be_recorded, recorded, thread_entry};
use crate::scratch::PAYLOAD;
use crate::wakeup;

/// The kernel-internal return value of a system call that `restart_syscall` may continue (`-ERESTART_RESTARTBLOCK`,
/// linux/errno.h).
const RESTARTS: i64 = -516;

macro_rules! loop_waits {
    ($($begins:ident, $ends:ident, $call:expr;)*) => {
        $(
            /// A wait for events begins.
            #[fentry]
            pub fn $begins(_context: FEntryContext) -> i32 {
                call_begins($call)
            }

            /// The wait has ended.
            #[fexit]
            pub fn $ends(context: FExitContext) -> i32 {
                // The result comes after the function's only argument.
                wait_ends(context.arg(1))
            }
        )*
    };
}

// The names of the functions are in `lj_trace_common::turn::LOOP_WAITS`.
loop_waits! {
    epoll_wait_begins, epoll_wait_ends, LoopCall::Epoll;
    epoll_pwait_begins, epoll_pwait_ends, LoopCall::Epoll;
    epoll_pwait2_begins, epoll_pwait2_ends, LoopCall::Epoll;
    poll_begins, poll_ends, LoopCall::Other;
    ppoll_begins, ppoll_ends, LoopCall::Other;
    select_begins, select_ends, LoopCall::Other;
    pselect6_begins, pselect6_ends, LoopCall::Other;
    restart_syscall_begins, restart_syscall_ends, LoopCall::Restart;
}

/// A wait with epoll begins. This program and the next three are at the tracepoints of the waits alone, where the kernel
/// allows no programs at functions.
#[tracepoint]
pub fn epoll_call_begins(_context: TracePointContext) -> u32 {
    call_begins(LoopCall::Epoll) as u32
}

/// A wait with poll or select begins.
#[tracepoint]
pub fn other_call_begins(_context: TracePointContext) -> u32 {
    call_begins(LoopCall::Other) as u32
}

/// An interrupted wait goes on.
#[tracepoint]
pub fn restart_call_begins(_context: TracePointContext) -> u32 {
    call_begins(LoopCall::Restart) as u32
}

/// What the kernel passes to a program at the end of a system call (`perf_call_bpf_exit`,
/// `kernel/trace/trace_syscalls.c`).
#[repr(C)]
struct EndedCall {
    registers: u64,
    number: u64,
    result: i64,
}

/// Any of these has ended.
#[tracepoint]
pub fn wait_call_ends(context: TracePointContext) -> u32 {
    // SAFETY: the kernel passes this, and checks what is read of it.
    wait_ends(unsafe { (*context.as_ptr().cast::<EndedCall>()).result }) as u32
}

/// Any system call begins. Used where the kernel allows no programs at functions, and lj-trace cannot find its
/// tracepoints.
#[btf_tracepoint(function = "sys_enter")]
pub fn any_call_begins(context: BtfTracePointContext) -> i32 {
    call_begins(arch::loop_wait(context.arg(1)))
}

/// Any system call has ended. Most do not wait for events; for those, this only looks at the number.
#[btf_tracepoint(function = "sys_exit")]
pub fn any_call_ends(context: BtfTracePointContext) -> i32 {
    let registers: *const pt_regs = context.arg(0);
    // SAFETY: the kernel passes the registers of the current thread, and checks what is read of them.
    if arch::loop_wait(arch::call_number(unsafe { &*registers })) == LoopCall::None {
        return 0;
    }
    wait_ends(context.arg(1))
}

/// A thread ends, by itself or because it is killed, and so does its turn.
#[btf_tracepoint(function = "sched_process_exit")]
pub fn thread_exits(_context: BtfTracePointContext) -> i32 {
    let id = bpf_get_current_pid_tgid();
    let process = (id >> 32) as u32;
    if !may_be_recorded(process) {
        return 0;
    }
    let Some((process, entry)) = recorded(process, id as u32) else { return 0 };
    if entry.turn_began != 0 {
        end_turn(process, entry, id as u32, true);
    }
    // Another thread may get this thread's number.
    // SAFETY: the helper has no preconditions.
    forget(process.number, id as u32, unsafe { bpf_ktime_get_ns() });
    0
}

/// A system call of this kind begins.
#[inline(always)]
fn call_begins(call: LoopCall) -> i32 {
    match call {
        LoopCall::None => 0,
        LoopCall::Epoll => wait_begins(true),
        LoopCall::Other => wait_begins(false),
        LoopCall::Restart => wait_goes_on(),
    }
}

/// The current thread begins to wait for events, which ends its turn.
#[inline(always)]
fn wait_begins(is_epoll: bool) -> i32 {
    let id = bpf_get_current_pid_tgid();
    let (process, thread) = ((id >> 32) as u32, id as u32);
    // The turns of a process that is no longer recorded stay as they are.
    if !may_be_recorded(process) {
        return 0;
    }
    let Some((process, entry)) = recorded(process, thread).or_else(|| first_seen(process, thread)) else { return 0 };
    if process.over == 0 {
        return 0;
    }
    if is_epoll {
        entry.uses_epoll = 1;
    } else if entry.uses_epoll != 0 || !is_of_loop(entry) {
        return 0;
    }
    entry.loop_wait = IN_LOOP_WAIT;
    if entry.turn_began != 0 {
        end_turn(process, entry, thread, false);
    }
    entry.turn_began = 0;
    0
}

/// The current thread continues an interrupted system call. If that is the wait of its loop, there was no turn.
#[inline(always)]
fn wait_goes_on() -> i32 {
    let id = bpf_get_current_pid_tgid();
    // Nearly all threads have no entry, which only a look-up in a hash table shows.
    if !may_be_recorded((id >> 32) as u32) {
        return 0;
    }
    let Some(entry) = thread_entry(id as u32) else { return 0 };
    if entry.loop_wait == LOOP_WAIT_INTERRUPTED {
        entry.loop_wait = IN_LOOP_WAIT;
        entry.turn_began = 0;
    }
    0
}

/// The current thread has waited for events. If that was the wait of its loop, its next turn begins.
#[inline(always)]
fn wait_ends(result: i64) -> i32 {
    let id = bpf_get_current_pid_tgid();
    // Nearly all threads have no entry, which only a look-up in a hash table shows.
    if !may_be_recorded((id >> 32) as u32) {
        return 0;
    }
    let Some(entry) = thread_entry(id as u32) else { return 0 };
    if entry.loop_wait != IN_LOOP_WAIT {
        return 0;
    }
    // What a signal does is decided later: the wait may continue, or a handler is called and the wait is over.
    entry.loop_wait = if result == RESTARTS { LOOP_WAIT_INTERRUPTED } else { NO_LOOP_WAIT };
    entry.turn += 1;
    // SAFETY: the helper has no preconditions.
    let now = unsafe { bpf_ktime_get_ns() };
    if entry.since != 0 {
        note_unseen(entry, now);
    }
    (entry.turn_waited, entry.turn_preempted, entry.turn_unseen) = (0, 0, 0);
    entry.turn_began = now;
    0
}

/// Whether a wait with poll or select belongs to the event loop, judged by the depth of the thread's stack.
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
        entry.deeper_waits += 1;
        if entry.deeper_waits < DEEPER_WAITS {
            return false;
        }
        entry.loop_stack = stack;
    }
    entry.deeper_waits = 0;
    if stack > entry.loop_stack {
        entry.loop_stack = stack;
    }
    true
}

/// Counts a turn, and reports it if it was too long.
#[inline(always)]
fn end_turn(process: &OffCpuProcess, entry: &mut OffCpuThread, tid: u32, has_exited: bool) {
    // SAFETY: the helper has no preconditions.
    let ended = unsafe { bpf_ktime_get_ns() };
    let length = ended.saturating_sub(entry.turn_began);
    if entry.since != 0 {
        note_unseen(entry, ended);
    }
    let Some(lengths) = TURN_LENGTHS.get_ptr_mut(process.number) else { return };
    const { assert!(LENGTHS == 256) };
    let step = below_256(step_of(length));
    // SAFETY: the entry is there as long as the program; other threads add to the same counters atomically.
    unsafe {
        let place = (&raw mut (*lengths).turns).cast::<u64>();
        add_to(place.add(step), 1);
        add_to(&raw mut (*lengths).time, length);
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
        unseen: entry.turn_unseen,
        tid,
        process: process.number,
        exited: has_exited.into(),
        reserved: 0,
    };
    let flags = wakeup::flags(&SAMPLES, (size_of::<SampleHeader>() + PAYLOAD) as u64);
    // SAFETY: the record is as large as the helper is told.
    let outcome = unsafe {
        let record = (&raw const told).cast_mut().cast();
        bpf_ringbuf_output((&raw const SAMPLES).cast_mut().cast(), record, size_of::<EndedTurn>() as u64, flags)
    };
    if outcome != 0 {
        // SAFETY: as above.
        unsafe { add_to(&raw mut (*lengths).lost, 1) };
    }
}

/// Adds a wait that has just ended to its turn. Returns whether its stack should be sampled: the turn has lasted for
/// `after` nanoseconds.
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

/// The number of the current thread's turn if that has lasted for `after` microseconds; else 0. This is a function of
/// its own because samples need all of the program's stack.
#[inline(never)]
pub fn under_way(after: u32) -> u64 {
    let thread = bpf_get_current_pid_tgid() as u32;
    let Some(entry) = thread_entry(thread) else { return 0 };
    // The thread itself is interrupted, and nobody else changes its entry meanwhile.
    let (began, turn) = (entry.turn_began, entry.turn);
    // SAFETY: the helper has no preconditions.
    let now = unsafe { bpf_ktime_get_ns() };
    if began == 0 || now.wrapping_sub(began) < u64::from(after) * 1000 { 0 } else { turn }
}
