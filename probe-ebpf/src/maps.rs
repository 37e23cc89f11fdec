//! The maps: what the agent tells the programs, and what they tell the agent.

use aya_ebpf::bindings::BPF_F_MMAPABLE;
use aya_ebpf::btf_maps;
use aya_ebpf::macros::{btf_map, map};
use aya_ebpf::maps::{Array, HashMap, LruHashMap, PerCpuArray, ProgramArray, Queue, RingBuf};
use lj_trace_common::allocation::PendingAllocation;
use lj_trace_common::allocation::known::{KNOWN_OBJECTS, KnownFunction, KnownPrototype};
use lj_trace_common::allocation::on_trace::RememberedTrace;
use lj_trace_common::allocation::serving::ServingRoom;
use lj_trace_common::allocation::tally::VmTally;
use lj_trace_common::config::{
    COUNTERS, Config, MAX_PROCESSES, MAX_SAMPLERS, MAX_VMS, PENDING_PLACES, PidNamespace, VM_ENTRIES, VmKey,
};
use lj_trace_common::lifetime::{Followed, MAX_FOLLOWED, MAX_WATCHED, Watched};
use lj_trace_common::off_cpu::{FILTER_WORDS, MAX_OFF_CPU_THREADS, OffCpuProcess, OffCpuThread};
use lj_trace_common::stack_end::{MAX_STACK_ENDS, StackEnd};
use lj_trace_common::trace::TraceKey;
use lj_trace_common::turn::TurnLengths;
use lj_trace_common::vm::VmConfig;

use crate::scratch::{Scratch, Scratchpad, WaitingRoom};

/// What to record of each process. The agent sets the number of entries; probes on allocators are of the first one.
#[map]
pub static CONFIG: Array<Config> = Array::with_max_entries(1, 0);

/// The VMs of all processes. The agent sets the number of entries.
#[map]
pub static VMS: Array<VmConfig> = Array::with_max_entries(MAX_VMS, 0);

/// Where a `global_State` is, to its index in [`VMS`].
#[map]
pub static GLOBALS: HashMap<VmKey, u32> = HashMap::with_max_entries(VM_ENTRIES, 0);

/// Threads that have an inherited event, as far as that matters.
#[map]
pub static INHERITED: LruHashMap<u32, u8> = LruHashMap::with_max_entries(16_384, 0);

/// The processes that are recorded, each with its number, or from [`lj_trace_common::config::OTHER_SAMPLER`] on the index of
/// its sampler in [`SAMPLERS`].
#[map]
pub static CHOSEN: HashMap<u32, u32> = HashMap::with_max_entries(MAX_PROCESSES, 0);

/// Samplers of other sets of programs.
#[map]
pub static SAMPLERS: ProgramArray = ProgramArray::with_max_entries(MAX_SAMPLERS, 0);

/// In which namespace the numbers of [`CHOSEN`] are.
#[map]
pub static NAMESPACE: Array<PidNamespace> = Array::with_max_entries(1, 0);

/// Samples on their way to the agent.
#[map]
pub static SAMPLES: RingBuf = RingBuf::with_byte_size(16 << 20, 0);

/// Traces of which the agent has a copy.
#[map]
pub static TRACES: LruHashMap<TraceKey, u8> = LruHashMap::with_max_entries(8192, 0);

/// Where native stacks end, by page. The agent finds it out.
#[map]
pub static STACK_ENDS: LruHashMap<u64, StackEnd> = LruHashMap::with_max_entries(MAX_STACK_ENDS, 0);

/// What samplers count, by [`lj_trace_common::config::Counter`], one process after the other. The agent sets the number of
/// entries, and reads it as memory.
#[map]
pub static SAMPLER_COUNTS: Array<u64> = Array::with_max_entries(COUNTERS, BPF_F_MMAPABLE);

/// Other events by [`lj_trace_common::config::Counter`].
#[map]
pub static COUNTS: PerCpuArray<u64> = PerCpuArray::with_max_entries(COUNTERS, 0);

/// The allocator's data (`g->allocd`) to the VM's index in [`VMS`].
#[map]
pub static ALLOCATORS: HashMap<u64, u32> = HashMap::with_max_entries(VM_ENTRIES, 0);

/// The indices in [`VMS`] that VMs may get which come into being while they are recorded. The agent gives back those of
/// VMs that are closed.
#[map]
pub static FREE_VMS: Queue<u32> = Queue::with_max_entries(MAX_VMS, 0);

/// What became of the calls of each VM.
#[map]
pub static TALLIES: Array<VmTally> = Array::with_max_entries(MAX_VMS, 0);

/// The number of the window in which calls of the allocator are events ([`lj_trace_common::config::GATE_CLOSED`]).
#[map]
pub static GATE: Array<u32> = Array::with_max_entries(1, 0);

/// Light samples on their way to the agent.
#[map]
pub static ACTIVITY: RingBuf = RingBuf::with_byte_size(4096, 0);

/// Where a light sample is put together.
#[map]
pub static ACTIVITY_SCRATCH: PerCpuArray<Scratchpad> = PerCpuArray::with_max_entries(1, 0);

/// The VM that a thread ran when it was last sampled.
#[map]
pub static RAN_LAST: LruHashMap<u32, u32> = LruHashMap::with_max_entries(4096, 0);

/// The last call of the allocator on each thread, which waits for a result, or did.
#[map]
pub static PENDING: Array<PendingAllocation> = Array::with_max_entries(PENDING_PLACES, 0);

/// Which places of [`PENDING`] are taken, and by which thread: each is given once.
#[map]
pub static PLACES_TAKEN: HashMap<u32, u64> = HashMap::with_max_entries(PENDING_PLACES, 0);

/// The same as [`PENDING`], for threads whose place another has.
#[map]
pub static PENDING_ELSEWHERE: LruHashMap<u64, PendingAllocation> = LruHashMap::with_max_entries(4096, 0);

/// Allocation events on their way to the agent.
#[map]
pub static ALLOCATIONS: RingBuf = RingBuf::with_byte_size(16 << 20, 0);

/// What is known of the VMs' functions: [`KNOWN_OBJECTS`] entries a VM, one VM after the other. The agent sets the
/// number of entries.
#[map]
pub static FUNCTIONS: Array<KnownFunction> = Array::with_max_entries(KNOWN_OBJECTS, 0);

/// The same for their prototypes.
#[map]
pub static PROTOTYPES: Array<KnownPrototype> = Array::with_max_entries(KNOWN_OBJECTS, 0);

/// The same for their traces.
#[map]
pub static KNOWN_TRACES: Array<RememberedTrace> = Array::with_max_entries(KNOWN_OBJECTS, 0);

/// Which request each VM was last seen to allocate for.
#[map]
pub static SERVING: Array<ServingRoom> = Array::with_max_entries(MAX_VMS, 0);

/// Allocations until the next one whose stack is taken.
#[map]
pub static STACK_COUNTDOWN: PerCpuArray<u32> = PerCpuArray::with_max_entries(1, 0);

/// Areas of [`SCRATCH`] in which an allocation's stack is being put together.
#[map]
pub static BUSY: HashMap<u32, u8> = HashMap::with_max_entries(1024, 0);

/// Where a sample is put together, two entries a CPU (a per-CPU map's values must be smaller). The agent sets
/// the number of entries.
#[map]
pub static SCRATCH: Array<Scratch> = Array::with_max_entries(1, 0);

/// VMs whose collector is watched.
#[map]
pub static WATCHED: Array<Watched> = Array::with_max_entries(MAX_WATCHED, 0);

/// Objects that are followed.
#[map]
pub static FOLLOWED: Array<Followed> = Array::with_max_entries(MAX_FOLLOWED, 0);

/// How many entries of [`FOLLOWED`] there are to look at.
#[map]
pub static FOLLOWED_END: Array<u32> = Array::with_max_entries(1, 0);

/// The processes whose time off the CPU is recorded, by their numbers in the kernel's own namespace.
#[map]
pub static OFF_CPU_PROCESSES: HashMap<u32, OffCpuProcess> = HashMap::with_max_entries(MAX_PROCESSES, 0);

/// A bit for each of them, and for few others: [`lj_trace_common::off_cpu::filter_bit`].
#[map]
pub static OFF_CPU_FILTER: Array<u64> = Array::with_max_entries(FILTER_WORDS, 0);

/// Their threads, by the same numbers. The kernel finds its own part in the entries by their types.
#[btf_map]
pub static OFF_CPU_THREADS: btf_maps::HashMap<u32, OffCpuThread, { MAX_OFF_CPU_THREADS as usize }> =
    btf_maps::HashMap::new();

/// The process whose threads are told of.
#[map]
pub static ITERATED: Array<u32> = Array::with_max_entries(1, 0);

/// Where it is put together what is told of a thread.
#[map]
pub static WAITING_TASK: PerCpuArray<WaitingRoom> = PerCpuArray::with_max_entries(1, 0);

/// How long turns of event loops were, by the number of the process. The agent sets the number of entries.
#[map]
pub static TURN_LENGTHS: Array<TurnLengths> = Array::with_max_entries(1, 0);
