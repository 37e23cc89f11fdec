//! A set of programs and maps in the kernel: for one process, or for all processes that are sampled at one rate.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};

use aya::maps::Map;
use aya::programs::tp_btf::BtfTracePointLink;
use aya::{Ebpf, EbpfLoader};
use lj_trace_common::allocation::call_site::MAX_CALL_SITES;
use lj_trace_common::allocation::known::KNOWN_OBJECTS;
use lj_trace_common::arch::STATE_NAMES_TRACE;
use lj_trace_common::config::{COUNTERS, MAX_PROCESSES, MAX_SAMPLED_VMS, MAX_VMS, PidNamespace, VM_ENTRIES};
use lj_trace_common::ended_request::MAX_ENDED_REQUESTS;
use lj_trace_common::off_cpu::walks;
use lj_trace_process::page_size;

use super::counts::SamplerCounts;
use super::cpu_events::CpuEvents;
use super::error::whole;
use super::places::Places;
use super::ring::Ring;
use super::sample_buffer::SharedSamples;
use super::turns::LoopLinks;
use super::wanted::Wanted;
use super::{bpf_log, kernel_places, object};

/// A loaded set of programs.
pub(super) struct Set {
    ebpf: Mutex<Ebpf>,
    /// The sampler's counters.
    pub counts: Arc<SamplerCounts>,
    /// The number of possible CPUs.
    pub cpus: u32,
    /// The number of VMs that the set has room for.
    pub vms: u32,
    /// The events of all its processes, if the set may have several.
    pub events: Option<Arc<Mutex<CpuEvents>>>,
    /// The samples of all its processes, if the set may have several.
    pub samples: Option<Mutex<SharedSamples>>,
    /// The numbers of its processes and of their VMs.
    pub places: Mutex<Places>,
    /// The link of the program that sees context switches, once some process wants it.
    pub switches: Mutex<Option<BtfTracePointLink>>,
    /// The links of the programs that see waits for events, once some process wants them.
    pub loops: Mutex<LoopLinks>,
}

/// How many VMs that appear during recording can be recorded at once, at most. A closed VM frees its index once the
/// agent has processed its events. A program that creates VM after VM, each for a millisecond, creates a dozen before
/// the agent looks.
pub const MORE_VMS: u32 = 128;

/// The least number of VMs to make room for, if processes may join.
const LEAST_SHARED_VMS: u32 = 1024;

/// Room for ten seconds of light samples of 3 threads, in bytes.
const ACTIVITY_BUFFER: u32 = 1 << 20;

/// The smallest ring buffer.
fn page() -> u32 {
    u32::try_from(page_size()).unwrap_or(65_536)
}

/// The number of traces to keep when many processes are recorded.
const MANY_TRACES: u32 = 32_768;

/// More processes than this are many.
const MANY_PROCESSES: u32 = 8;

/// Maps that a set without allocation probes does not use.
const FOR_ALLOCATIONS: [&str; 14] = [
    "ALLOCATORS",
    "TALLIES",
    "PENDING",
    "PLACES_TAKEN",
    "PENDING_ELSEWHERE",
    "RAN_LAST",
    "FUNCTIONS",
    "PROTOTYPES",
    "KNOWN_TRACES",
    "BUSY",
    "WATCHED",
    "FOLLOWED",
    "SERVING",
    "SERVING_FIBERS",
];

/// For how many pieces of machine code, of 64 bytes each, samplers remember the trace.
const PIECES_OF_CODE: u32 = 16_384;

/// The smallest LRU map.
const LEAST_LRU: u32 = 128;

/// The rate of a set's events, if it has any; the PID namespace of its processes; whether it records time off the CPU,
/// and whether it records turns of event loops.
pub(super) type SetKind = (Option<u32>, PidNamespace, [bool; 2]);

/// The kinds of sets whose events the kernel refuses, and why, so that the programs are not loaded again for each
/// process.
static REFUSED: Mutex<Vec<(SetKind, String)>> = Mutex::new(Vec::new());

/// A set that is loading before it is needed.
static AHEAD: Mutex<Option<(SetKind, JoinHandle<anyhow::Result<Set>>)>> = Mutex::new(None);

/// All sets that other processes can join.
static SHARED: Mutex<Vec<(SetKind, Weak<Set>)>> = Mutex::new(Vec::new());

impl Set {
    /// Loads the set for one process with this many VMs.
    ///
    /// # Errors
    /// The kernel refuses it, or this binary has no programs.
    pub fn load(wanted: Wanted, vms: u32) -> anyhow::Result<Self> {
        let room = if wanted.memory { MAX_VMS } else { MAX_SAMPLED_VMS };
        Self::load_as(wanted, vms.saturating_add(MORE_VMS).min(room), 1)
    }

    /// Joins a set that this process shares with others: an existing set, or a new one. Its events are shared by all of
    /// them.
    ///
    /// # Errors
    /// As [`Self::load`]; or the kernel refuses the events.
    pub fn join(wanted: Wanted, kind: SetKind, vms: u32) -> anyhow::Result<Arc<Self>> {
        let mut shared = lock(&SHARED);
        shared.retain(|(_, set)| set.strong_count() != 0);
        let known = shared.iter().filter(|(known, _)| *known == kind).find_map(|(_, set)| set.upgrade());
        if let Some(set) = known {
            return Ok(set);
        }
        if let Some((_, why)) = lock(&REFUSED).iter().find(|(refused, _)| *refused == kind) {
            anyhow::bail!("{why}");
        }
        let expected = vms.saturating_mul(wanted.processes).saturating_mul(2);
        let expected = expected.clamp(LEAST_SHARED_VMS, MAX_SAMPLED_VMS);
        let set = match Self::take_ahead(kind) {
            Some(set) if set.vms >= expected => set,
            _ => Self::load_shared(wanted, kind, expected)?,
        };
        let set = Arc::new(set);
        shared.push((kind, Arc::downgrade(&set)));
        Ok(set)
    }

    fn load_shared(wanted: Wanted, kind: SetKind, vms: u32) -> anyhow::Result<Self> {
        let mut set = Self::load_as(wanted, vms, MAX_PROCESSES)?;
        {
            let mut ebpf = lock(&set.ebpf);
            let ring = Ring::of_map(take_map(&mut ebpf, "SAMPLES")?)?;
            set.samples = Some(Mutex::new(SharedSamples::new(ring)));
            let (rate, namespace, _) = kind;
            if let Some(rate) = rate {
                let events = CpuEvents::open(&mut ebpf, rate, namespace, false)
                    .inspect_err(|error| lock(&REFUSED).push((kind, whole(error))))?;
                set.events = Some(Arc::new(Mutex::new(events)));
            }
        }
        Ok(set)
    }

    /// Begins to load, on a thread of its own, the set that will be needed next. The kernel takes 0.2 s to verify the
    /// sampler; meanwhile the agent can search the process for its VMs. If loading fails, the later request reports
    /// why.
    pub fn load_ahead(wanted: Wanted, kind: SetKind) {
        let mut ahead = lock(&AHEAD);
        if ahead.as_ref().is_some_and(|(known, _)| *known == kind) {
            return;
        }
        let load = move || Self::load_shared(wanted, kind, LEAST_SHARED_VMS);
        // Without a thread, the set is loaded when it is requested.
        *ahead = thread::Builder::new().name("load".to_owned()).spawn(load).ok().map(|thread| (kind, thread));
    }

    /// The set that was loaded ahead, if it is of this kind.
    fn take_ahead(kind: SetKind) -> Option<Self> {
        let (_, thread) = lock(&AHEAD).take_if(|(ahead, _)| *ahead == kind)?;
        thread.join().ok()?.ok()
    }

    fn load_as(wanted: Wanted, vms: u32, processes: u32) -> anyhow::Result<Self> {
        let cpus = aya::util::nr_cpus().map_err(|(_, error)| error)?;
        let mut loader = EbpfLoader::new();
        let has_stacks = wanted.stack_every != 0;
        // One area per CPU for the sampler and one for the allocation probes, and those for threads that were off the CPU.
        let areas = if wanted.off_cpu { 2 } else { 1 + u32::from(has_stacks) } * cpus.get();
        let areas = areas + if wanted.off_cpu { walks(cpus.get()) } else { 0 };
        // Whoever only counts requests walks no stack.
        loader.map_max_entries("SCRATCH", if wanted.ended_requests { 1 } else { areas });
        loader.map_max_entries("CONFIG", processes);
        loader.map_max_entries("SAMPLER_COUNTS", processes * COUNTERS);
        loader.map_max_entries("VMS", vms);
        // With several processes, user space numbers their VMs, and the programs need no free indices.
        loader.map_max_entries("FREE_VMS", if processes > 1 { 1 } else { vms });
        loader.map_max_entries("GLOBALS", vms.saturating_mul(2).max(VM_ENTRIES));
        let samples = if wanted.cpu || wanted.off_cpu || has_stacks { wanted.buffer() } else { page() };
        loader.map_max_entries("SAMPLES", samples);
        loader.map_max_entries("ALLOCATIONS", if wanted.memory { wanted.buffer() } else { page() });
        loader.map_max_entries("ACTIVITY", if wanted.activity { ACTIVITY_BUFFER } else { page() });
        if processes > 1 {
            // Events on CPUs are not inherited, so this map stays nearly empty.
            loader.map_max_entries("INHERITED", LEAST_LRU);
        }
        if wanted.cpu && !STATE_NAMES_TRACE {
            loader.map_max_entries("CODE_TRACES", PIECES_OF_CODE);
        }
        if wanted.processes > MANY_PROCESSES {
            loader.map_max_entries("TRACES", MANY_TRACES);
        }
        if wanted.memory {
            loader.map_max_entries("FUNCTIONS", vms * KNOWN_OBJECTS);
            loader.map_max_entries("PROTOTYPES", vms * KNOWN_OBJECTS);
            loader.map_max_entries("KNOWN_TRACES", vms * KNOWN_OBJECTS);
            if !STATE_NAMES_TRACE {
                loader.map_max_entries("CALLING_TRACES", vms * KNOWN_OBJECTS);
                loader.map_max_entries("CALL_SITES", MAX_CALL_SITES);
            }
        } else {
            FOR_ALLOCATIONS.iter().filter(|name| **name != "BUSY" || !wanted.off_cpu).for_each(|name| {
                loader.map_max_entries(name, LEAST_LRU);
            });
        }
        let mut object = object::object_for(wanted.mechanism)?;
        if wanted.off_cpu {
            kernel_places::fill_in(object.to_mut())?;
        } else if !wanted.turns {
            if wanted.memory && wanted.activity {
                // Without the fields, the one program that reads them is refused.
                let _ = kernel_places::fill_in_fields(object.to_mut());
            }
            loader.map_max_entries("OFF_CPU_THREADS", 1).map_max_entries("OFF_CPU_PLACES", 1);
            loader.map_max_entries("OFF_CPU_NUMBERS", 1).map_max_entries("OFF_CPU_FILTER", 1);
        }
        if wanted.off_cpu || wanted.turns {
            loader.map_max_entries("OFF_CPU_PROCESSES", processes);
        }
        if wanted.turns {
            loader.map_max_entries("TURN_LENGTHS", processes);
        }
        if wanted.ended_requests {
            loader.map_max_entries("ENDED_REQUESTS", MAX_ENDED_REQUESTS);
        }
        let mut ebpf = loader.load(&object)?;
        bpf_log::follow(&mut ebpf);
        let counts = ebpf.map("SAMPLER_COUNTS").ok_or_else(|| anyhow::anyhow!("no map SAMPLER_COUNTS"))?;
        let counts = Arc::new(SamplerCounts::map(counts, processes)?);
        let (ebpf, places) = (Mutex::new(ebpf), Mutex::new(Places::new(if processes > 1 { vms } else { 0 })));
        let (switches, loops) = (Mutex::new(None), Mutex::new(LoopLinks::default()));
        Ok(Self { ebpf, counts, cpus: cpus.get(), vms, events: None, samples: None, places, switches, loops })
    }

    /// The loaded programs and maps.
    pub fn ebpf(&self) -> MutexGuard<'_, Ebpf> {
        lock(&self.ebpf)
    }

    /// The names and descriptors of all maps.
    ///
    /// # Errors
    /// The process has no descriptors left.
    pub fn descriptors(&self) -> io::Result<Vec<(String, OwnedFd)>> {
        let of = |(name, map): (&str, &Map)| {
            let (Map::Array(data)
            | Map::PerCpuArray(data)
            | Map::HashMap(data)
            | Map::LruHashMap(data)
            | Map::Queue(data)
            | Map::RingBuf(data)) = map
            else {
                return None;
            };
            Some(data.fd().as_fd().try_clone_to_owned().map(|fd| (name.to_owned(), fd)))
        };
        self.ebpf().maps().filter_map(of).collect()
    }
}

/// Locks the mutex even if a thread has panicked with it: each change is one call, so none is left half done.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn take_map(ebpf: &mut Ebpf, name: &str) -> anyhow::Result<Map> {
    ebpf.take_map(name).ok_or_else(|| anyhow::anyhow!("no map {name}"))
}

pub(super) fn map_mut<'a>(ebpf: &'a mut Ebpf, name: &str) -> anyhow::Result<&'a mut Map> {
    ebpf.map_mut(name).ok_or_else(|| anyhow::anyhow!("no map {name}"))
}
