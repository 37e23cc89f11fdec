//! The maps: what the agent passes to the programs, and what they pass to the agent.

use aya_ebpf::bindings::BPF_F_MMAPABLE;
use aya_ebpf::btf_maps;
use aya_ebpf::macros::{btf_map, map};
use aya_ebpf::maps::{Array, HashMap, LruHashMap, PerCpuArray, ProgramArray, Queue, RingBuf};
use lj_trace_common::allocation::PendingAllocation;
use lj_trace_common::allocation::call_site::CallSite;
use lj_trace_common::allocation::known::{KNOWN_OBJECTS, KnownFunction, KnownPrototype};
use lj_trace_common::allocation::on_trace::{CallingTrace, RememberedTrace};
use lj_trace_common::allocation::serving::ServingRoom;
use lj_trace_common::allocation::serving_fiber::FiberRoom;
use lj_trace_common::allocation::tally::VmTally;
use lj_trace_common::config::{
    COUNTERS, Config, MAX_PROCESSES, MAX_SAMPLERS, MAX_VMS, PENDING_PLACES, PidNamespace, VM_ENTRIES, VmKey,
};
use lj_trace_common::ended_request::{EndedCount, EndedRequest};
use lj_trace_common::lifetime::{Followed, MAX_FOLLOWED, MAX_WATCHED, Watched};
use lj_trace_common::off_cpu::{FILTER_WORDS, MAX_OFF_CPU_THREADS, OffCpuProcess, OffCpuThread};
use lj_trace_common::run_queue_clock::RunQueueClock;
use lj_trace_common::stack_end::{MAX_STACK_ENDS, StackEnd};
use lj_trace_common::trace::TraceKey;
use lj_trace_common::turn::TurnLengths;
use lj_trace_common::vm::VmConfig;

use crate::scratch::{Scratch, Scratchpad, WaitingRoom};

/// What to record of each process. The agent sets the number of entries. Allocation probes belong to the first process.
#[map]
pub static CONFIG: Array<Config> = Array::with_max_entries(1, 0);

/// The VMs of all processes. The agent sets the number of entries.
#[map]
pub static VMS: Array<VmConfig> = Array::with_max_entries(MAX_VMS, 0);

/// The index in [`VMS`] for each address of a `global_State`.
#[map]
pub static GLOBALS: HashMap<VmKey, u32> = HashMap::with_max_entries(VM_ENTRIES, 0);

/// Threads that have inherited an event, as far as the sampler needs to know.
#[map]
pub static INHERITED: LruHashMap<u32, u8> = LruHashMap::with_max_entries(16_384, 0);

/// The recorded processes. The value is the process's number, or, from [`lj_trace_common::config::OTHER_SAMPLER`] on,
/// the index of its sampler in [`SAMPLERS`].
#[map]
pub static CHOSEN: HashMap<u32, u32> = HashMap::with_max_entries(MAX_PROCESSES, 0);

/// Samplers of other sets of programs.
#[map]
pub static SAMPLERS: ProgramArray = ProgramArray::with_max_entries(MAX_SAMPLERS, 0);

/// The PID namespace of the process numbers in [`CHOSEN`].
#[map]
pub static NAMESPACE: Array<PidNamespace> = Array::with_max_entries(1, 0);

/// Samples on their way to the agent.
#[map]
pub static SAMPLES: RingBuf = RingBuf::with_byte_size(16 << 20, 0);

/// Traces that the agent already has a copy of.
#[map]
pub static TRACES: LruHashMap<TraceKey, u8> = LruHashMap::with_max_entries(8192, 0);

/// The numbers of traces by their code, where the VM's state does not name the running trace. Then the agent sets the
/// number of entries.
#[map]
pub static CODE_TRACES: LruHashMap<u64, u32> = LruHashMap::with_max_entries(128, 0);

/// Where native stacks end, by page. The agent finds this out.
#[map]
pub static STACK_ENDS: LruHashMap<u64, StackEnd> = LruHashMap::with_max_entries(MAX_STACK_ENDS, 0);

/// The counters of samplers, by [`lj_trace_common::config::Counter`], one process after the other. The agent sets the
/// number of entries, and maps them into its memory.
#[map]
pub static SAMPLER_COUNTS: Array<u64> = Array::with_max_entries(COUNTERS, BPF_F_MMAPABLE);

/// All other counters, by [`lj_trace_common::config::Counter`].
#[map]
pub static COUNTS: PerCpuArray<u64> = PerCpuArray::with_max_entries(COUNTERS, 0);

/// The index in [`VMS`] for each `ud` that a VM passes to its allocator (`g->allocd`).
#[map]
pub static ALLOCATORS: HashMap<u64, u32> = HashMap::with_max_entries(VM_ENTRIES, 0);

/// The free indices in [`VMS`], for VMs that are created during recording. The agent returns the indices of closed VMs.
#[map]
pub static FREE_VMS: Queue<u32> = Queue::with_max_entries(MAX_VMS, 0);

/// How the calls of each VM's allocator have ended.
#[map]
pub static TALLIES: Array<VmTally> = Array::with_max_entries(MAX_VMS, 0);

/// The number of the window whose allocator calls are events ([`lj_trace_common::config::GATE_CLOSED`]).
#[map]
pub static GATE: Array<u32> = Array::with_max_entries(1, 0);

/// Light samples on their way to the agent.
#[map]
pub static ACTIVITY: RingBuf = RingBuf::with_byte_size(4096, 0);

/// Working memory for a light sample.
#[map]
pub static ACTIVITY_SCRATCH: PerCpuArray<Scratchpad> = PerCpuArray::with_max_entries(1, 0);

/// The VM that each thread ran when it was last sampled.
#[map]
pub static RAN_LAST: LruHashMap<u32, u32> = LruHashMap::with_max_entries(4096, 0);

/// The last call of the allocator on each thread, which waits for its result or has got it.
#[map]
pub static PENDING: Array<PendingAllocation> = Array::with_max_entries(PENDING_PLACES, 0);

/// The thread that owns each place in [`PENDING`]: a place is given away once.
#[map]
pub static PLACES_TAKEN: HashMap<u32, u64> = HashMap::with_max_entries(PENDING_PLACES, 0);

/// The same as [`PENDING`], for threads whose place belongs to another thread.
#[map]
pub static PENDING_ELSEWHERE: LruHashMap<u64, PendingAllocation> = LruHashMap::with_max_entries(4096, 0);

/// Allocation events on their way to the agent.
#[map]
pub static ALLOCATIONS: RingBuf = RingBuf::with_byte_size(16 << 20, 0);

/// What is known of the VMs' functions: [`KNOWN_OBJECTS`] entries per VM, one VM after the other. The agent sets the
/// number of entries.
#[map]
pub static FUNCTIONS: Array<KnownFunction> = Array::with_max_entries(KNOWN_OBJECTS, 0);

/// The same for the VMs' prototypes.
#[map]
pub static PROTOTYPES: Array<KnownPrototype> = Array::with_max_entries(KNOWN_OBJECTS, 0);

/// The same for the VMs' traces.
#[map]
pub static KNOWN_TRACES: Array<RememberedTrace> = Array::with_max_entries(KNOWN_OBJECTS, 0);

/// The last trace that was found to call C code with each return address, for the traces of each VM, where the VM's state
/// does not name the running trace.
#[map]
pub static CALLING_TRACES: Array<CallingTrace> = Array::with_max_entries(1, 0);

/// The calls in LuaJIT's C code, by their return addresses, for the same. The agent sets the number of entries.
#[map]
pub static CALL_SITES: HashMap<u64, CallSite> = HashMap::with_max_entries(1, 0);

/// Which request each VM was last seen to allocate for.
#[map]
pub static SERVING: Array<ServingRoom> = Array::with_max_entries(MAX_VMS, 0);

/// Which fiber each VM was last seen to allocate in.
#[map]
pub static SERVING_FIBERS: Array<FiberRoom> = Array::with_max_entries(MAX_VMS, 0);

/// How many allocations are left until the next one whose stack is sampled.
#[map]
pub static STACK_COUNTDOWN: PerCpuArray<u32> = PerCpuArray::with_max_entries(1, 0);

/// The areas of [`SCRATCH`] in which a sample is being built.
#[map]
pub static BUSY: HashMap<u32, u8> = HashMap::with_max_entries(1024, 0);

/// Working areas for samples, one to three per CPU, and four at least after waits (the values of a per-CPU map must be
/// smaller). The agent sets the number of entries.
#[map]
pub static SCRATCH: Array<Scratch> = Array::with_max_entries(1, 0);

/// VMs whose garbage collector is watched.
#[map]
pub static WATCHED: Array<Watched> = Array::with_max_entries(MAX_WATCHED, 0);

/// The objects that are followed.
#[map]
pub static FOLLOWED: Array<Followed> = Array::with_max_entries(MAX_FOLLOWED, 0);

/// How many entries of [`FOLLOWED`] to check.
#[map]
pub static FOLLOWED_END: Array<u32> = Array::with_max_entries(1, 0);

/// The processes whose time off the CPU is recorded, by their numbers among the recorded ones. The agent sets the
/// number of entries.
#[map]
pub static OFF_CPU_PROCESSES: Array<OffCpuProcess> = Array::with_max_entries(1, 0);

/// These numbers, by the process's id in the initial PID namespace.
#[map]
pub static OFF_CPU_NUMBERS: HashMap<u32, u32> = HashMap::with_max_entries(MAX_PROCESSES, 0);

/// A filter with a bit for each of these processes, and for few others: [`lj_trace_common::off_cpu::filter_bit`].
#[map]
pub static OFF_CPU_FILTER: Array<u64> = Array::with_max_entries(FILTER_WORDS, 0);

/// The threads of these processes, each at one of its places ([`lj_trace_common::off_cpu::place`]). It is an array
/// because the kernel builds a look-up there into the program, and a switch has two. A look-up in a hash table calls
/// several functions. A BTF map, because the kernel finds its own fields in the entries by their types.
#[btf_map]
pub static OFF_CPU_THREADS: btf_maps::Array<OffCpuThread, { MAX_OFF_CPU_THREADS as usize }> = btf_maps::Array::new();

/// The places of the threads there, by their ids in the same namespace.
#[map]
pub static OFF_CPU_PLACES: HashMap<u32, u32> = HashMap::with_max_entries(MAX_OFF_CPU_THREADS, 0);

/// The difference between the clocks of this CPU.
#[map]
pub static RUN_QUEUE_CLOCK: PerCpuArray<RunQueueClock> = PerCpuArray::with_max_entries(1, 0);

/// The process whose threads the iterator reports.
#[map]
pub static ITERATED: Array<u32> = Array::with_max_entries(1, 0);

/// Working memory for the report of one thread.
#[map]
pub static WAITING_TASK: PerCpuArray<WaitingRoom> = PerCpuArray::with_max_entries(1, 0);

/// The lengths of event loop turns, by process number. The agent sets the number of entries.
#[map]
pub static TURN_LENGTHS: Array<TurnLengths> = Array::with_max_entries(1, 0);

/// The requests of nginx that have ended. The agent sets the number of entries.
#[map]
pub static ENDED_REQUESTS: HashMap<EndedRequest, EndedCount> = HashMap::with_max_entries(1, 0);
