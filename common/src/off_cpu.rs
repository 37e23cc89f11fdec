//! What the BPF programs keep about threads that are off the CPU.

use crate::arch::REGISTERS;
use crate::event::SampledRegisters;
use crate::memory::Pod;

/// The most threads that are tracked at once, over all processes; a power of two.
pub const MAX_OFF_CPU_THREADS: u32 = 8192;

/// How many places a thread may have in the array of threads: where the first is taken, the next one is tried.
pub const PLACES: u32 = 16;

/// The place of a thread in the array of threads. Nearly all threads have their first place, since the threads of a
/// process have ids in a row. The places after it are far apart, where the ids of its neighbors do not lead.
pub const fn place(thread: u32, attempt: u32) -> u32 {
    thread.wrapping_add(attempt.wrapping_mul(2971)) & (MAX_OFF_CPU_THREADS - 1)
}

/// Words in the process filter. For a thread of any other process, a context switch checks one bit of it; a lookup in
/// the table of processes takes ten times as long.
pub const FILTER_WORDS: u32 = 1024;

/// The word of the filter with the bit of `process`, and that bit. Processes whose ids are 65,536 apart share a bit.
pub const fn filter_bit(process: u32) -> (u32, u64) {
    ((process >> 6) & (FILTER_WORDS - 1), 1 << (process & 63))
}

/// The most frames of the kernel's stack that are kept of a wait.
pub const MAX_WAIT_STACK: usize = 32;

/// How many threads can walk their stacks at once, on any machine. A walk may lose its CPU, and then those of other threads
/// begin there.
pub const LEAST_WALKS: u32 = 4;

/// How many threads can walk their stacks at once on a machine with so many CPUs.
pub const fn walks(cpus: u32) -> u32 {
    if cpus < LEAST_WALKS { LEAST_WALKS } else { cpus }
}

/// Waits shorter than this, in nanoseconds, are sampled at random.
pub const DEFAULT_THRESHOLD: u64 = 10_000_000;

/// The bit of a thread's state for a thread that has ended (`TASK_DEAD`, linux/sched.h).
pub const TASK_DEAD: u32 = 0x80;

/// The bits of a thread's state that say how it sleeps: `TASK_INTERRUPTIBLE`, `TASK_UNINTERRUPTIBLE`.
pub const TASK_INTERRUPTIBLE: u32 = 1;
/// See [`TASK_INTERRUPTIBLE`].
pub const TASK_UNINTERRUPTIBLE: u32 = 2;
/// The state bits of a stopped or traced thread (`__TASK_STOPPED`, `__TASK_TRACED`).
pub const TASK_STOPPED: u32 = 4 | 8;

/// Replaces a thread's state: the thread was preempted within the kernel, whatever it was about to do.
pub const WAS_PREEMPTED: u32 = 1 << 31;

/// The thread is not in a wait of its event loop.
pub const NO_LOOP_WAIT: u32 = 0;
/// The thread is in a wait of its event loop.
pub const IN_LOOP_WAIT: u32 = 1;
/// The last wait of the event loop was interrupted, and goes on if no signal handler is called.
pub const LOOP_WAIT_INTERRUPTED: u32 = 2;

/// The kernel's own data within an entry, for work that a thread does before it returns to its program. The kernel
/// recognizes the type by its name and size.
#[allow(non_camel_case_types, reason = "the kernel knows it by its name")]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct bpf_task_work {
    /// Private to the kernel.
    pub opaque: u64,
}

/// What is known about a thread.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct OffCpuThread {
    /// The pending walk of its stack.
    pub work: bpf_task_work,
    /// When the thread left the CPU, in nanoseconds of `CLOCK_MONOTONIC`; 0 while it runs.
    pub since: u64,
    /// How far the thread's waiting time has come in its current stratum, in nanoseconds.
    pub position: u64,
    /// Position of the sampling point in that stratum, in nanoseconds.
    pub point: u64,
    /// How many nanoseconds the pending walk stands for; 0 if no walk is pending.
    pub pending: u64,
    /// Total time off the CPU since the thread was first seen, in nanoseconds, without the current wait.
    pub waited: u64,
    /// How often the thread was off the CPU.
    pub waits: u64,
    /// The thread's id, in the kernel's own namespace; 0 if the place is free.
    pub tid: u32,
    /// Number of its process among the recorded ones.
    pub process: u32,
    /// The thread's state when it left the CPU: bits of `task_struct.__state`, or [`WAS_PREEMPTED`].
    pub state: u32,
    /// The same for the wait whose walk is pending.
    pub pending_state: u32,
    /// Size of the kernel's stack in `kernel`, in bytes.
    pub kernel_size: u32,
    /// Whether the thread waits for events with epoll: then no other wait is its event loop.
    pub uses_epoll: u32,
    /// When the current turn of its event loop began, in nanoseconds of `CLOCK_MONOTONIC`; 0 outside of a turn.
    pub turn_began: u64,
    /// Number of the current turn, or of the last one; numbers start at 1.
    pub turn: u64,
    /// The same for the wait whose walk is pending; 0 if that is in no turn.
    pub pending_turn: u64,
    /// How many nanoseconds of the turn the thread was off the CPU.
    pub turn_waited: u64,
    /// How many of these nanoseconds the thread could have run.
    pub turn_preempted: u64,
    /// How many nanoseconds of the turn it is not known whether the thread ran: the kernel did not show that it came back.
    pub turn_unseen: u64,
    /// The stack pointer at waits of its event loop with poll or select; 0 if no such wait was seen.
    pub loop_stack: u64,
    /// Whether the thread is in a wait of its event loop: [`NO_LOOP_WAIT`], [`IN_LOOP_WAIT`] or [`LOOP_WAIT_INTERRUPTED`].
    pub loop_wait: u32,
    /// How many waits came from deeper on its stack since the last wait of its event loop.
    pub deeper_waits: u32,
    /// The kernel's frames, innermost first.
    pub kernel: [u64; MAX_WAIT_STACK],
}

impl OffCpuThread {
    /// An entry with all fields empty.
    pub const EMPTY: Self = Self {
        work: bpf_task_work { opaque: 0 },
        since: 0,
        position: 0,
        point: 0,
        pending: 0,
        waited: 0,
        waits: 0,
        tid: 0,
        process: 0,
        state: 0,
        pending_state: 0,
        kernel_size: 0,
        uses_epoll: 0,
        turn_began: 0,
        turn: 0,
        pending_turn: 0,
        turn_waited: 0,
        turn_preempted: 0,
        turn_unseen: 0,
        loop_stack: 0,
        loop_wait: NO_LOOP_WAIT,
        deeper_waits: 0,
        kernel: [0; MAX_WAIT_STACK],
    };
}

/// Describes where a thread waits while it is off the CPU.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct WaitingTask {
    /// When the thread was created, in nanoseconds of `CLOCK_MONOTONIC`.
    pub started: u64,
    /// The user registers at its entry into the kernel.
    pub registers: SampledRegisters,
    /// Its thread id, in the kernel's own namespace.
    pub tid: u32,
    /// Its state: bits of `task_struct.__state`.
    pub state: u32,
    /// Size of the kernel's stack in `kernel`, in bytes.
    pub kernel_size: u32,
    /// Always 0: keeps the size a multiple of 8.
    pub reserved: u32,
    /// The kernel's frames, innermost first.
    pub kernel: [u64; MAX_WAIT_STACK],
}

/// A process whose threads are tracked.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct OffCpuProcess {
    /// When tracking began, in nanoseconds of `CLOCK_MONOTONIC`.
    pub began: u64,
    /// Waits shorter than this, in nanoseconds, are sampled at random.
    pub threshold: u64,
    /// Turns of its event loops longer than this, in nanoseconds, are reported; 0 if turns are not tracked.
    pub over: u64,
    /// Waits count only in a turn that has lasted longer than this, in nanoseconds.
    pub turn_after: u64,
    /// Its number among the recorded processes.
    pub number: u32,
    /// Its id, in the kernel's own namespace; 0 if no process has this number.
    pub pid: u32,
}

// SAFETY: the fields are integers laid out without padding, as the assertions below prove.
unsafe impl Pod for OffCpuThread {}
// SAFETY: as above.
unsafe impl Pod for OffCpuProcess {}
// SAFETY: as above.
unsafe impl Pod for WaitingTask {}

const _: () = {
    assert!(MAX_OFF_CPU_THREADS.is_power_of_two());
    assert!(size_of::<bpf_task_work>() == 8);
    assert!(size_of::<OffCpuThread>() == 14 * 8 + 8 * 4 + MAX_WAIT_STACK * 8);
    assert!(size_of::<WaitingTask>() == (1 + REGISTERS) * 8 + 4 * 4 + MAX_WAIT_STACK * 8);
    assert!(size_of::<OffCpuProcess>() == 4 * 8 + 2 * 4);
};
