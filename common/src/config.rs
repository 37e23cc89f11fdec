//! What the agent tells the BPF programs before they start, and what they count.

use crate::c_frame::CFrameShape;
use crate::request::RequestLayout;

/// How many VMs of one process a memory profile knows: an event has a byte for its VM.
pub const MAX_VMS: u32 = 256;

/// How many VMs samplers know, of all processes that are recorded.
pub const MAX_SAMPLED_VMS: u32 = 16_384;

/// How many entries a map has that is keyed by what VMs have: room for those that were closed and are not forgotten yet.
pub const VM_ENTRIES: u32 = 4 * MAX_VMS;

/// How many threads have a place of their own for their last allocation.
pub const PENDING_PLACES: u32 = 4096;

/// What a new VM looks like.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Template {
    /// Size of its first block (`sizeof(GG_State)`); 0 for none.
    pub size: u64,
    /// Index of a VM that is laid out the same.
    pub vm: u32,
    /// Always 0: keeps the size a multiple of 8.
    pub reserved: u32,
}

/// How many kinds of VMs in one process can be told when they come into being.
pub const TEMPLATES: usize = 4;

/// Settings of a run.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Config {
    /// The data of the first allocator, and the VM that it works for: found here sooner than in the map.
    pub allocator_data: u64,
    /// See `allocator_data`.
    pub allocator_vm: u32,
    /// How many allocators there are.
    pub allocators: u32,
    /// Entries of the VM list in use.
    pub vms: u32,
    /// Whether some events were attached to threads that may have inherited one already.
    pub late_events: u32,
    /// Whether stacks are sampled, by the clock or by allocations.
    pub samples: u32,
    /// Every allocation of this number carries its stack; 0 for none.
    pub stack_every: u32,
    /// Index of the first VM: the only one if there is no other.
    pub first_vm: u32,
    /// Whether ticks that hit the kernel take its frames along.
    pub kernel_frames: u32,
    /// CPUs of this machine: the second half of the working areas belongs to the allocation probes.
    pub cpus: u32,
    /// How much of the C stack a sample takes along at most, in bytes, a multiple of 8.
    pub stack_limit: u32,
    /// Where the main thread's stack began when the program was started; 0 if that is not known.
    pub stack_start: u64,
    /// Index of a VM whose coroutines refer to their `global_State` in another way than those of the first; 0 for none.
    pub other_kind: u32,
    /// How many ticks each sample stands for: more than one where all of them would cost too much. 0 is as good as 1.
    pub weight: u32,
    /// Whether the sampler leaves the others of them out itself, since the events still tick as often.
    pub leaves_out: u32,
    /// If ticks count only in turns of event loops that have lasted for some time: that time, in microseconds; else 0.
    pub turn_after: u32,
    /// The C frames of VMs with 64-bit GC references.
    pub wide_c_frames: CFrameShape,
    /// The C frames of VMs with 32-bit GC references.
    pub narrow_c_frames: CFrameShape,
    /// What VMs that come into being may look like.
    pub templates: [Template; TEMPLATES],
    /// Where requests are.
    pub requests: RequestLayout,
}

const _: () = assert!(size_of::<VmKey>() == 8 + 2 * 4);

const _: () = assert!(size_of::<Config>() == 8 + 14 * 4 + 8 + 2 * 16 + 16 * TEMPLATES + size_of::<RequestLayout>());

/// How many processes the same programs can record.
pub const MAX_PROCESSES: u32 = 1024;

/// How many sets of programs can share the events on CPUs of one of them.
pub const MAX_SAMPLERS: u32 = 256;

/// What the programs on the CPUs' events know of a process that is recorded: its number among those of their own set, or from
/// here on the number of the sampler that goes on, which is another set's.
pub const OTHER_SAMPLER: u32 = MAX_PROCESSES;

/// Where the `global_State` of a VM is.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VmKey {
    /// Its address.
    pub global: u64,
    /// The number of its process.
    pub process: u32,
    /// Always 0: keeps the size a multiple of 8.
    pub reserved: u32,
}

impl VmKey {
    /// The VM whose `global_State` is at `global` in the process of this number.
    #[inline(always)]
    pub const fn new(process: u32, global: u64) -> Self {
        Self { global, process, reserved: 0 }
    }
}

/// The namespace in which processes have the numbers that the agent names.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PidNamespace {
    /// The device of the file that stands for it, as the kernel keeps it.
    pub device: u64,
    /// The inode of that file; 0 for the kernel's own namespace, in which all processes are.
    pub inode: u64,
}

/// The cookie of an event on a thread that may have inherited another event from the thread that started it.
pub const LATE_EVENT: u64 = 1;

/// The most frames of the kernel's stack that are shown: half of what the kernel itself follows
/// (`PERF_MAX_STACK_DEPTH`).
pub const MAX_KERNEL_FRAMES: u32 = 64;

/// The most bytes of the kernel's stack in a sample: one frame more than is shown tells that there are more.
pub const MAX_KERNEL_STACK: u32 = (MAX_KERNEL_FRAMES + 1) * 8;

/// The most of the C stack that fits into a sample.
pub const MAX_STACK: u32 = 64 << 10;

/// The most frames that fit into a sample: of a deeper stack the innermost and the outermost ([`crate::ends`]).
pub const MAX_FRAMES: u32 = 1000;

/// The most of the Lua stack that fits into a sample, in bytes.
pub const MAX_LUA_COPY: u32 = 16 * 1024;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident => $text:literal,)*) => {
        /// What the BPF programs count, per CPU.
        #[repr(u32)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Counter {
            $($(#[$doc])* $name,)*
        }

        impl Counter {
            /// All counters, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// A few words for people.
            pub const fn describe(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

counters! {
    /// The timer fired on a thread of the target.
    Sampled => "samples taken",
    /// The timer fired, and the sampler left it at that.
    LeftOut => "ticks of which no sample was taken",
    /// The record was handed to user space.
    Written => "samples handed over",
    /// The ring buffer was full.
    RingBufferFull => "samples lost: the ring buffer was full",
    /// The program found no room to work in: more CPUs than when it was loaded.
    NoScratch => "samples lost: no working memory on this CPU",
    /// The thread had no user registers (it was exiting).
    NoRegisters => "samples lost: no user registers",
    /// The working memory of this CPU was in use by another thread's allocation.
    ScratchBusy => "allocation stacks lost: the CPU's working memory was in use",
    /// The ring buffer was full.
    StacksLost => "allocation stacks lost: the ring buffer was full",
    /// Not a byte of the C stack could be read.
    NoStack => "samples without a C stack",
    /// The ring buffer was full, or the trace could not be read.
    TracesLost => "traces not copied when they were first seen",
    /// The allocator was called.
    AllocatorCalls => "calls of the allocator",
    /// It was called for no VM that is known.
    UnknownVm => "calls of the allocator for something else than the VM",
    /// A VM came into being, and its first block was asked for, while there was no room for one more.
    VmsBeyond => "VMs that were not recorded: lj-trace knows no more at once",
    /// One of these called its allocator.
    CallsBeyond => "calls of VMs that came into being when no more were known at once",
    /// The first block of one that may be a VM could not be had.
    CreationsFailed => "VMs that could not be made",
    /// The event of a call that may have made a VM was held back.
    AllocationsHeld => "allocation events held back",
    /// It was found out what had become of it.
    AllocationsSettled => "allocation events held back that were settled",
    /// The ring buffer was full.
    NamesLost => "names of functions lost: the ring buffer was full",
    /// More threads than there is room for are inside the allocator.
    PendingFull => "allocation events lost: too many threads in the allocator",
    /// The allocator returned, and a probe saw it.
    AllocatorReturns => "returns of the allocator",
    /// Calls whose program was timed.
    CallsTimed => "calls of the allocator that were timed",
    /// How long the program took at those.
    CallTime => "nanoseconds at calls that were timed",
    /// Returns whose program was timed.
    ReturnsTimed => "returns of the allocator that were timed",
    /// How long the program took at those.
    ReturnTime => "nanoseconds at returns that were timed",
    /// How long the sampler took.
    SampleTime => "nanoseconds for samples",
    /// How long copying the stacks of allocations took.
    StackTime => "nanoseconds for allocation stacks",
    /// The allocator was called at a probe whose window was not open: yet, or any more.
    CallsOutside => "calls of the allocator at the edges of windows",
    /// The light sampler's timer fired on a thread of the target.
    ActivitySampled => "light samples taken",
    /// The ring buffer was full.
    ActivityLost => "light samples lost: the ring buffer was full",
    /// How long the light sampler took.
    ActivityTime => "nanoseconds for light samples",
    /// A thread wrote a VM's `gc.currentwhite`.
    WatchpointHits => "hits of watchpoints on collectors",
    /// How long looking at objects took then.
    WatchpointTime => "nanoseconds at hits of watchpoints",
    /// How often a thread that has ended came back onto a CPU.
    Waits => "waits of threads that have ended",
    /// How long it was off it.
    WaitTime => "nanoseconds of waits of threads that have ended",
    /// Its stack was walked.
    WaitsTaken => "waits whose stacks were taken",
    /// The kernel did not take the work of walking a stack.
    WaitTimeUnscheduled => "nanoseconds of waits lost: the kernel had no room for the walk",
    /// The working memory was in use by other threads that walked their stacks.
    WaitTimeBusy => "nanoseconds of waits lost: the CPU's working memory was in use",
    /// The ring buffer was full.
    WaitTimeUnsent => "nanoseconds of waits lost: the ring buffer was full",
    /// A thread left the CPU, or began a turn, and had not been seen to come back to it since it left it before.
    TimeUnseen => "nanoseconds of which it is not known whether threads ran: the kernel did not show that they came back",
    /// A thread has no entry.
    OffCpuThreadsBeyond => "switches of threads that were not followed: lj-trace knows no more at once",
}

/// Number of counters.
pub const COUNTERS: u32 = Counter::ALL.len() as u32;

/// The probes on the allocator time every call of this number on a CPU.
pub const TIMED_EVERY: u64 = 64;

/// A probe on the allocator that took longer, in nanoseconds, was interrupted: its time says nothing of what it costs.
pub const LONGEST_PROGRAM: u64 = 50_000;

/// The same for a program that takes a sample, with all of its stack.
pub const LONGEST_SAMPLE: u64 = 2_000_000;

/// Set in an allocation probe's cookie if the arguments are not where a function gets them. Its lower half has
/// a byte for each of them: the DWARF number of the register, [`ARGUMENT_ZERO`] or [`ARGUMENT_LOST`].
pub const ARGUMENTS_ELSEWHERE: u64 = 1 << 32;

/// An allocation probe's cookie has the number of its window from this bit on; 0 if it is there all the time.
pub const WINDOW_SHIFT: u32 = 33;

/// How many numbers windows have: they begin at 1, and begin again.
pub const WINDOW_NUMBERS: u32 = 1 << (64 - WINDOW_SHIFT);

/// The gate of the allocation probes has the number of the window that is open, or this for none: what is called at the
/// probes of another window is no event. So two that overlap, since the kernel takes its time to take probes out, see no
/// call twice.
pub const GATE_CLOSED: u32 = u32::MAX;

/// The argument is known to be 0.
pub const ARGUMENT_ZERO: u8 = 0x20;

/// The argument cannot be read.
pub const ARGUMENT_LOST: u8 = 0x21;

/// Instead of a VM's index: several VMs give their allocators the same data, as those do that need none. Which of
/// them calls shows in the caller's registers.
pub const SHARED_USER_DATA: u32 = u32::MAX;

/// Instead of a VM's index: there was no index left when it came into being.
pub const VM_BEYOND: u32 = u32::MAX - 1;

/// Instead of a VM's index: none that is known.
pub const NOBODY: u32 = u32::MAX - 2;

/// Stands for the allocator's data where that cannot be read.
pub const UNKNOWN_USER_DATA: u64 = u64::MAX;
