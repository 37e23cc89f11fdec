//! Settings that the agent gives the BPF programs before they start, and the counters that the programs keep.

use crate::c_frame::CFrameShape;
use crate::fiber::FiberLayout;
use crate::request::RequestLayout;

/// The most VMs of one process in a memory profile: an event has one byte for the index of its VM.
pub const MAX_VMS: u32 = 256;

/// The most VMs that the samplers know, over all recorded processes.
pub const MAX_SAMPLED_VMS: u32 = 16_384;

/// Entries of a map whose keys belong to VMs: it also has room for closed VMs whose entries are not deleted yet.
pub const VM_ENTRIES: u32 = 4 * MAX_VMS;

/// How many threads get an entry of their own for their last allocation.
pub const PENDING_PLACES: u32 = 4096;

/// How to recognize a new VM.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Template {
    /// Size of the VM's first block in bytes (`sizeof(GG_State)`); 0 for none.
    pub size: u64,
    /// Index of a known VM with the same layout.
    pub vm: u32,
    /// Always 0: keeps the size a multiple of 8.
    pub reserved: u32,
}

/// How many kinds of VMs the probes can recognize in one process when a VM is created.
pub const TEMPLATES: usize = 4;

/// Settings of a run.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Config {
    /// The data pointer of the first allocator. The probes compare it with this field before they look into the map.
    pub allocator_data: u64,
    /// Index of the VM that this allocator serves.
    pub allocator_vm: u32,
    /// How many allocators there are.
    pub allocators: u32,
    /// Entries in use in the VM list.
    pub vms: u32,
    /// Whether some events were attached to threads that may have inherited an event already ([`LATE_EVENT`]).
    pub late_events: u32,
    /// Whether stacks are sampled, by clock ticks or by allocations.
    pub samples: u32,
    /// One in this many allocations carries its stack; 0 for none.
    pub stack_every: u32,
    /// Index of the first VM, which is the only one if no other exists.
    pub first_vm: u32,
    /// Whether a sample that hits the kernel includes the kernel's frames.
    pub kernel_frames: u32,
    /// CPUs of this machine: the second half of the scratch areas belongs to the allocation probes.
    pub cpus: u32,
    /// The most bytes of the C stack that a sample copies, a multiple of 8.
    pub stack_limit: u32,
    /// Where the main thread's stack began at program start; 0 if that is not known.
    pub stack_start: u64,
    /// Index of a VM whose coroutines refer to their `global_State` in another way than those of the first VM; 0 for
    /// none.
    pub other_kind: u32,
    /// How many ticks each sample stands for: more than one if a sample at each tick would cost too much. 0 counts as
    /// 1.
    pub weight: u32,
    /// Whether the sampler itself must skip the other ticks, because the events still fire at the full rate.
    pub leaves_out: u32,
    /// If not 0, ticks count only in turns of event loops that have lasted longer than this many microseconds.
    pub turn_after: u32,
    /// The C frames of VMs with 64-bit GC references.
    pub wide_c_frames: CFrameShape,
    /// The C frames of VMs with 32-bit GC references.
    pub narrow_c_frames: CFrameShape,
    /// What newly created VMs may look like.
    pub templates: [Template; TEMPLATES],
    /// Where the current request is found.
    pub requests: RequestLayout,
    /// Where allocation probes find it: with its routes only if somebody asks for them, since each call has to read them.
    pub serving: RequestLayout,
    /// Whether allocation probes tell which request or which fiber allocates: 0 if not.
    pub tells_serving: u32,
    /// Always 0: keeps the size a multiple of 8.
    pub reserved: u32,
    /// Where the current fiber is found.
    pub fibers: FiberLayout,
}

const _: () = assert!(size_of::<VmKey>() == 8 + 2 * 4);

const _: () = assert!(
    size_of::<Config>()
        == 8 + 16 * 4 + 8 + 2 * 16 + 16 * TEMPLATES + 2 * size_of::<RequestLayout>() + size_of::<FiberLayout>()
);

/// How many processes one set of BPF programs can record.
pub const MAX_PROCESSES: u32 = 1024;

/// How many other sets of programs can share the CPU events of one set.
pub const MAX_SAMPLERS: u32 = 256;

/// The programs on the CPUs' events look up each recorded process. A value below this one is the number of the process
/// in their own set. From this value on, it is `OTHER_SAMPLER` plus the index of another set's sampler, which takes the
/// sample.
pub const OTHER_SAMPLER: u32 = MAX_PROCESSES;

/// Where the `global_State` of a VM is.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VmKey {
    /// Address of its `global_State`.
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

/// The PID namespace that the agent's process ids belong to.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PidNamespace {
    /// The device of the file that represents the namespace, in the kernel's encoding.
    pub device: u64,
    /// The inode of that file; 0 for the kernel's own namespace, which contains all processes.
    pub inode: u64,
}

/// The cookie of an event on a thread that may also have inherited another event from the thread that started it.
pub const LATE_EVENT: u64 = 1;

/// The most frames of the kernel's stack that are shown: half of the kernel's own limit (`PERF_MAX_STACK_DEPTH`).
pub const MAX_KERNEL_FRAMES: u32 = 64;

/// The most bytes of the kernel's stack in a sample: one frame more than is shown, to tell whether the stack goes on.
pub const MAX_KERNEL_STACK: u32 = (MAX_KERNEL_FRAMES + 1) * 8;

/// The most bytes of the C stack that fit into a sample.
pub const MAX_STACK: u32 = 64 << 10;

/// The most frames that fit into a sample. Of a deeper stack, the innermost and the outermost are kept
/// ([`crate::ends`]).
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

            /// A short description for users.
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
    /// The timer fired, and the sampler skipped this tick.
    LeftOut => "ticks of which no sample was taken",
    /// The record was handed to user space.
    Written => "samples handed over",
    /// The ring buffer was full.
    RingBufferFull => "samples lost: the ring buffer was full",
    /// The program found no scratch memory: the machine has more CPUs than when the program was loaded.
    NoScratch => "samples lost: no working memory on this CPU",
    /// The thread had no user registers (it was exiting).
    NoRegisters => "samples lost: no user registers",
    /// The scratch memory of this CPU was in use by another thread's allocation.
    ScratchBusy => "allocation stacks lost: the CPU's working memory was in use",
    /// The ring buffer was full.
    StacksLost => "allocation stacks lost: the ring buffer was full",
    /// Not a byte of the C stack could be read.
    NoStack => "samples without a C stack",
    /// The ring buffer was full, or the trace could not be read.
    TracesLost => "traces not copied when they were first seen",
    /// The allocator was called.
    AllocatorCalls => "calls of the allocator",
    /// The allocator was called for a VM that is not known.
    UnknownVm => "calls of the allocator for something else than the VM",
    /// A VM requested its first block while there was no room to record one more VM.
    VmsBeyond => "VMs that were not recorded: lj-trace knows no more at once",
    /// A VM that was not recorded, because there was no room for one more, called its allocator.
    CallsBeyond => "calls of VMs that came into being when no more were known at once",
    /// The allocator could not provide the first block of what may be a VM.
    CreationsFailed => "VMs that could not be made",
    /// The event of a call that may have created a VM was held back.
    AllocationsHeld => "allocation events held back",
    /// It became clear whether a held-back call had created a VM.
    AllocationsSettled => "allocation events held back that were settled",
    /// The ring buffer was full.
    NamesLost => "names of functions lost: the ring buffer was full",
    /// More threads are inside the allocator than there is room for.
    PendingFull => "allocation events lost: too many threads in the allocator",
    /// The allocator returned, and a probe recorded it.
    AllocatorReturns => "returns of the allocator",
    /// Calls for which the program's run time was measured.
    CallsTimed => "calls of the allocator that were timed",
    /// How long the program took for the calls that were timed.
    CallTime => "nanoseconds at calls that were timed",
    /// Returns for which the program's run time was measured.
    ReturnsTimed => "returns of the allocator that were timed",
    /// How long the program took for the returns that were timed.
    ReturnTime => "nanoseconds at returns that were timed",
    /// How long the sampler took.
    SampleTime => "nanoseconds for samples",
    /// How long copying the stacks of allocations took.
    StackTime => "nanoseconds for allocation stacks",
    /// The allocator was called at a probe whose window was not open yet, or no longer open.
    CallsOutside => "calls of the allocator at the edges of windows",
    /// The light sampler's timer fired on a thread of the target.
    ActivitySampled => "light samples taken",
    /// The ring buffer was full.
    ActivityLost => "light samples lost: the ring buffer was full",
    /// How long the light sampler took.
    ActivityTime => "nanoseconds for light samples",
    /// A thread wrote a VM's `gc.currentwhite`.
    WatchpointHits => "hits of watchpoints on collectors",
    /// How long the program looked at objects after these hits.
    WatchpointTime => "nanoseconds at hits of watchpoints",
    /// How often threads that have ended came back onto a CPU.
    Waits => "waits of threads that have ended",
    /// How long these threads were off the CPU.
    WaitTime => "nanoseconds of waits of threads that have ended",
    /// The stack of a wait was walked.
    WaitsTaken => "waits whose stacks were taken",
    /// The kernel did not accept the task work that walks a stack.
    WaitTimeUnscheduled => "nanoseconds of waits lost: the kernel had no room for the walk",
    /// The scratch memory was in use by other threads that walked their stacks.
    WaitTimeBusy => "nanoseconds of waits lost: the CPU's working memory was in use",
    /// The ring buffer was full.
    WaitTimeUnsent => "nanoseconds of waits lost: the ring buffer was full",
    /// A thread left the CPU or began a turn, but since it last left the CPU no event had shown that it came back.
    TimeUnseen => "nanoseconds of which it is not known whether threads ran: the kernel did not show that they came back",
    /// There was no room for an entry for a thread.
    OffCpuThreadsBeyond => "switches of threads that were not followed: lj-trace knows no more at once",
    /// There was no room for one more kind of ended request.
    EndedRequestsBeyond => "requests not counted: they have more locations or routes than there is room for",
}

/// Number of counters.
pub const COUNTERS: u32 = Counter::ALL.len() as u32;

/// The allocator probes time one call in this many, on each CPU.
pub const TIMED_EVERY: u64 = 64;

/// A run of an allocator probe that took longer, in nanoseconds, was interrupted: its time does not show what the probe
/// costs.
pub const LONGEST_PROGRAM: u64 = 50_000;

/// The longest time, in nanoseconds, that a sample with its whole stack counts for: one of 4000 Lua frames took 8 ms in an
/// emulated arm64 machine. In a longer time, something else ran.
pub const LONGEST_SAMPLE: u64 = 10_000_000;

/// Set in an allocation probe's cookie if the arguments are not in the usual argument registers. The lower half of the
/// cookie has one byte for each argument: the DWARF number of its register, [`ARGUMENT_ZERO`] or [`ARGUMENT_LOST`].
pub const ARGUMENTS_ELSEWHERE: u64 = 1 << 32;

/// The first bit of the window number in an allocation probe's cookie. The number is 0 if the probe is always attached.
pub const WINDOW_SHIFT: u32 = 33;

/// How many window numbers there are: they start at 1 and wrap around.
pub const WINDOW_NUMBERS: u32 = 1 << (64 - WINDOW_SHIFT);

/// The gate of the allocation probes holds the number of the open window, or this value for none. A call at a probe of
/// another window is no event. The kernel needs some time to remove probes, so two windows can overlap; with the gate,
/// they never count a call twice.
pub const GATE_CLOSED: u32 = u32::MAX;

/// The argument is known to be 0.
pub const ARGUMENT_ZERO: u8 = 0x20;

/// The argument cannot be read.
pub const ARGUMENT_LOST: u8 = 0x21;

/// Instead of a VM's index: several VMs give their allocators the same data pointer, as VMs do whose allocator needs no
/// data. The caller's registers show which of these VMs calls.
pub const SHARED_USER_DATA: u32 = u32::MAX;

/// Instead of a VM's index: all indices were taken when the VM was created.
pub const VM_BEYOND: u32 = u32::MAX - 1;

/// Instead of a VM's index: no known VM.
pub const NOBODY: u32 = u32::MAX - 2;

/// Stands for the allocator's data pointer if that cannot be read.
pub const UNKNOWN_USER_DATA: u64 = u64::MAX;
