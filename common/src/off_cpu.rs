//! What the kernel half knows of threads that are off the CPU.

use crate::arch::REGISTERS;
use crate::event::SampledRegisters;
use crate::memory::Pod;

/// How many threads it knows at once, of all processes.
pub const MAX_OFF_CPU_THREADS: u32 = 8192;

/// How many words the filter of processes has: a switch of a thread of any other process looks at one bit, where a look into the
/// table of processes takes ten times as long.
pub const FILTER_WORDS: u32 = 1024;

/// Which word of the filter has the bit of a process, and that bit. Processes whose numbers are 65,536 apart share one.
pub const fn filter_bit(process: u32) -> (u32, u64) {
    ((process >> 6) & (FILTER_WORDS - 1), 1 << (process & 63))
}

/// How many frames of the kernel's stack are kept of a wait.
pub const MAX_WAIT_STACK: usize = 32;

/// A wait for less than this, in nanoseconds, is taken by chance.
pub const DEFAULT_THRESHOLD: u64 = 10_000_000;

/// The bit of a thread's state that says that it has ended (`TASK_DEAD`, linux/sched.h).
pub const TASK_DEAD: u32 = 0x80;

/// The bits of a thread's state that say how it sleeps: `TASK_INTERRUPTIBLE`, `TASK_UNINTERRUPTIBLE`.
pub const TASK_INTERRUPTIBLE: u32 = 1;
/// See [`TASK_INTERRUPTIBLE`].
pub const TASK_UNINTERRUPTIBLE: u32 = 2;
/// The bits of a thread that is stopped, or traced (`__TASK_STOPPED`, `__TASK_TRACED`).
pub const TASK_STOPPED: u32 = 4 | 8;

/// In the place of a thread's state: it was preempted within the kernel, whatever it was about to do.
pub const WAS_PREEMPTED: u32 = 1 << 31;

/// A thread is in no wait of its event loop.
pub const NO_LOOP_WAIT: u32 = 0;
/// It is in one.
pub const IN_LOOP_WAIT: u32 = 1;
/// The last one was interrupted, and goes on if no handler is called.
pub const LOOP_WAIT_INTERRUPTED: u32 = 2;

/// What the kernel keeps within an entry for work that a thread does before it returns to its program. It knows the type by its
/// name and its size.
#[allow(non_camel_case_types, reason = "the kernel knows it by its name")]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct bpf_task_work {
    /// The kernel's own.
    pub opaque: u64,
}

/// What is known of a thread.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct OffCpuThread {
    /// The walk that is under way.
    pub work: bpf_task_work,
    /// When it left the CPU, in nanoseconds of `CLOCK_MONOTONIC`; 0 while it runs.
    pub since: u64,
    /// How much of the stratum that it is in is behind it, in nanoseconds.
    pub position: u64,
    /// Where the point of that stratum is.
    pub point: u64,
    /// For how many nanoseconds the walk that is under way stands; 0 if there is none.
    pub pending: u64,
    /// How long it was off the CPU altogether, in nanoseconds, since it was first seen; not the wait that is under way.
    pub waited: u64,
    /// How often.
    pub waits: u64,
    /// The state in which it left the CPU: bits of `task_struct.__state`, or [`WAS_PREEMPTED`].
    pub state: u32,
    /// The same of the wait that is being walked.
    pub pending_state: u32,
    /// The number of its process.
    pub process: u32,
    /// Bytes of the kernel's stack.
    pub kernel_size: u32,
    /// When the turn of its event loop that is under way began, in nanoseconds of `CLOCK_MONOTONIC`; 0 if none is.
    pub turn_began: u64,
    /// The number of that turn, or of the last one: they begin at 1.
    pub turn: u64,
    /// The same of the wait that is being walked; 0 if it is in none.
    pub pending_turn: u64,
    /// For how many nanoseconds of the turn the thread was off the CPU.
    pub turn_waited: u64,
    /// For how many of these it could have run.
    pub turn_preempted: u64,
    /// For how many nanoseconds of the turn it is not known whether the thread ran: the kernel did not show that it came back.
    pub turn_unseen: u64,
    /// Where its stack pointer is when its event loop waits with poll or select; 0 if that was not seen.
    pub loop_stack: u64,
    /// Whether it waits for events with epoll, so that nothing else is its event loop.
    pub uses_epoll: u32,
    /// Whether it is in a wait of its event loop: [`NO_LOOP_WAIT`], [`IN_LOOP_WAIT`] or [`LOOP_WAIT_INTERRUPTED`].
    pub loop_wait: u32,
    /// How often it has waited deeper on its stack since its loop did.
    pub deeper_waits: u32,
    /// Always 0: keeps the size a multiple of 8.
    pub reserved: u32,
    /// The kernel's frames, innermost first.
    pub kernel: [u64; MAX_WAIT_STACK],
}

impl OffCpuThread {
    /// Nothing.
    pub const EMPTY: Self = Self {
        work: bpf_task_work { opaque: 0 },
        since: 0,
        position: 0,
        point: 0,
        pending: 0,
        waited: 0,
        waits: 0,
        state: 0,
        pending_state: 0,
        process: 0,
        kernel_size: 0,
        turn_began: 0,
        turn: 0,
        pending_turn: 0,
        turn_waited: 0,
        turn_preempted: 0,
        turn_unseen: 0,
        loop_stack: 0,
        uses_epoll: 0,
        loop_wait: NO_LOOP_WAIT,
        deeper_waits: 0,
        reserved: 0,
        kernel: [0; MAX_WAIT_STACK],
    };
}

/// Where a thread is that is off the CPU.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct WaitingTask {
    /// When it was made, in nanoseconds of `CLOCK_MONOTONIC`.
    pub started: u64,
    /// The registers with which it entered the kernel.
    pub registers: SampledRegisters,
    /// Its number, in the kernel's own namespace.
    pub tid: u32,
    /// Its state: bits of `task_struct.__state`.
    pub state: u32,
    /// Bytes of the kernel's stack.
    pub kernel_size: u32,
    /// Always 0: keeps the size a multiple of 8.
    pub reserved: u32,
    /// The kernel's frames, innermost first.
    pub kernel: [u64; MAX_WAIT_STACK],
}

/// A process whose threads are followed.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct OffCpuProcess {
    /// Since when, in nanoseconds of `CLOCK_MONOTONIC`.
    pub began: u64,
    /// A wait for less than so many nanoseconds is taken by chance.
    pub threshold: u64,
    /// Turns of its event loops that are longer than so many nanoseconds are told; 0 if turns are not looked at.
    pub over: u64,
    /// Waits count only in a turn that has lasted for so many nanoseconds.
    pub turn_after: u64,
    /// Its number among those that are recorded.
    pub number: u32,
    /// Always 0: keeps the size a multiple of 8.
    pub reserved: u32,
}

// SAFETY: the fields are integers laid out without padding, as the assertions below prove.
unsafe impl Pod for OffCpuThread {}
// SAFETY: as above.
unsafe impl Pod for OffCpuProcess {}
// SAFETY: as above.
unsafe impl Pod for WaitingTask {}

const _: () = {
    assert!(size_of::<bpf_task_work>() == 8);
    assert!(size_of::<OffCpuThread>() == 14 * 8 + 8 * 4 + MAX_WAIT_STACK * 8);
    assert!(size_of::<WaitingTask>() == (1 + REGISTERS) * 8 + 4 * 4 + MAX_WAIT_STACK * 8);
    assert!(size_of::<OffCpuProcess>() == 4 * 8 + 2 * 4);
};
