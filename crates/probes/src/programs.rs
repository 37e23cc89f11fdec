//! The BPF programs: loaded into the kernel, told about the target's VMs, and asked what they have counted.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use aya::maps::{Array, HashMap, Map, MapData, PerCpuArray, Queue};
use aya::programs::{Program, ProgramError};
use aya::{Ebpf, EbpfLoader};
use lj_trace_common::allocation::known::KNOWN_OBJECTS;
use lj_trace_common::allocation::tally::VmTally;
use lj_trace_common::config::{Config, Counter, MAX_STACK, MAX_VMS, TEMPLATES, Template};
use lj_trace_common::layout::VmLayout;
use lj_trace_common::stack_end::StackEnd;
use lj_trace_common::vm::VmConfig;
use lj_trace_process::TargetError;
use lj_trace_process::privileges::{Operation, Refusal, limits};

use super::mechanism::Mechanism;
use super::{bpf_log, object};

/// Why probing cannot begin. Each message names the cause and the fix.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The binary has no BPF programs inside.
    #[error(transparent)]
    Object(#[from] object::NoBpfPrograms),
    /// The kernel wants more privileges.
    #[error("not permitted to use {what}: {why}")]
    NotPermitted {
        /// What was refused.
        what: &'static str,
        /// What is missing, and how to get it.
        why: String,
    },
    /// The kernel refused the BPF programs for another reason, which it said.
    #[error("the kernel refused the BPF programs (Linux {NEEDED_KERNEL} or later is needed): {}", last_lines(.0))]
    Refused(#[source] anyhow::Error),
    /// A limit of the system or of lj-trace is reached.
    #[error("cannot attach: {cause}: {limit}")]
    Limit {
        /// What the kernel said.
        cause: String,
        /// Which limit, and how to raise it.
        limit: String,
    },
    /// The target went away or may not be looked at.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// Probes cannot be put in and taken out in short windows.
    #[error(
        "--overhead needs probes that are put in within milliseconds, which this kernel does not have (Linux 6.6 \
         has): {0}. Record in full, without --overhead: that costs the process what --max-overhead allows"
    )]
    NoWindows(#[source] io::Error),
    /// A thread cannot be sampled.
    #[error("cannot sample thread {tid}: {source}")]
    Thread {
        /// The thread.
        tid: u32,
        /// Why not.
        source: io::Error,
    },
}

impl ProbeError {
    /// Tells missing privileges from everything else.
    pub(super) fn sort(source: impl Into<anyhow::Error>) -> Self {
        let source = source.into();
        let errors = || source.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
        let refused = errors().any(|error| matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES)));
        if let Some(limit) = errors().find_map(limits::reached) {
            return Self::Limit { cause: whole(&source), limit };
        }
        // The verifier refuses with EACCES too, but then it says why.
        let verifier = source
            .chain()
            .any(|cause| matches!(cause.downcast_ref(), Some(ProgramError::LoadError { verifier_log, .. }) if !verifier_log.to_string().trim().is_empty()));
        if refused && !verifier { Self::not_permitted(Operation::Bpf) } else { Self::Refused(source) }
    }

    /// The kernel has refused to put in probes for a window.
    pub fn no_windows(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::not_permitted(Operation::Bpf),
            _ => Self::NoWindows(error),
        }
    }

    /// The kernel has refused something to whoever may not do it.
    pub(super) fn not_permitted(operation: Operation) -> Self {
        let what = match operation {
            Operation::PerfEvents => "perf events",
            Operation::ClassicProbes => "probes",
            Operation::Bpf | Operation::ReadProcess => "BPF",
        };
        Self::NotPermitted { what, why: Refusal::now().explain(operation) }
    }
}

/// An error with all that has caused it. Some name their cause themselves.
pub(super) fn whole(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string).filter(|cause| !cause.trim().is_empty()) {
        if !text.contains(cause.trim()) {
            text.push_str(if text.is_empty() { "" } else { ": " });
            text.push_str(cause.trim_end());
        }
    }
    text
}

/// The end of an error's text: the verifier says a thousand lines before it comes to the point.
fn last_lines(error: &anyhow::Error) -> String {
    let text = whole(error);
    let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let first = lines.first().filter(|_| lines.len() > 6).copied();
    let tail = &lines[lines.len().saturating_sub(6)..];
    first.into_iter().chain(tail.iter().copied()).collect::<Vec<_>>().join("\n  ")
}

/// Which of the programs a recording wants: the others are not loaded, and their buffers stay small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The CPU sampler.
    pub cpu: bool,
    /// The allocation probes.
    pub memory: bool,
    /// Every allocation of this number carries its stack; 0 for none.
    pub stack_every: u32,
    /// Samples take the kernel's frames along.
    pub kernel_frames: bool,
    /// How the allocation probes are put on instructions.
    pub mechanism: Mechanism,
    /// The light sampler, which says what runs.
    pub activity: bool,
    /// How many processes are recorded at once: they share the memory for buffers.
    pub processes: u32,
}

impl Wanted {
    /// None of them, of one process.
    pub fn nothing() -> Self {
        Self {
            cpu: false,
            memory: false,
            stack_every: 0,
            kernel_frames: false,
            mechanism: Mechanism::detect(),
            activity: false,
            processes: 1,
        }
    }

    /// The size of a ring buffer.
    fn buffer(self) -> u32 {
        /// What the object file has for one process.
        const ONE: u32 = 16 << 20;
        const LEAST: u32 = 1 << 20;
        (ONE / self.processes.max(1).next_power_of_two()).max(LEAST)
    }
}

/// The loaded programs.
pub struct Programs {
    pub(super) ebpf: Ebpf,
    counts: Counts,
    config: Config,
    mechanism: Mechanism,
    /// The maps, for programs that aya cannot load.
    pub(super) maps: Vec<(String, OwnedFd)>,
}

/// What the programs have counted so far: for whoever wants to look, in any thread.
#[derive(Clone)]
pub struct Counts(Arc<PerCpuArray<MapData, u64>>);

impl Counts {
    /// How often `counter` was counted, on all CPUs.
    pub fn count(&self, counter: Counter) -> u64 {
        self.0.get(&(counter as u32), 0).map_or(0, |values| values.iter().sum())
    }
}

/// The kernel that has all that the programs use: `bpf_loop`.
const NEEDED_KERNEL: &str = "5.17";

/// How many VMs that come into being while they are recorded are recorded at once, at most. Those that are closed leave
/// their indices to others once their events are worked off: a program that makes one after the other, each for a
/// millisecond, makes a dozen before the agent looks.
pub const MORE_VMS: u32 = 128;

/// Room for ten seconds of light samples of 3 threads.
const ACTIVITY_BUFFER: u32 = 1 << 20;

/// The smallest ring buffer.
const PAGE: u32 = 4096;

impl Programs {
    /// Prepares what is wanted and tells it about the target's VMs, of which the first [`MAX_VMS`] count.
    ///
    /// # Errors
    /// [`ProbeError::NotPermitted`] without privileges, [`ProbeError::Refused`] on kernels that lack something.
    pub fn load(wanted: Wanted, vms: &[VmConfig]) -> Result<Self, ProbeError> {
        let refused = |error: anyhow::Error| ProbeError::sort(error);
        let cpus = aya::util::nr_cpus().map_err(|(_, error)| refused(error.into()))?;
        let mut loader = EbpfLoader::new();
        // One area a CPU for the sampler, and one for the allocation probes.
        loader.map_max_entries("SCRATCH", 2 * cpus.get());
        let samples = if wanted.cpu || wanted.stack_every != 0 { wanted.buffer() } else { PAGE };
        loader.map_max_entries("SAMPLES", samples);
        loader.map_max_entries("ALLOCATIONS", if wanted.memory { wanted.buffer() } else { PAGE });
        loader.map_max_entries("ACTIVITY", if wanted.activity { ACTIVITY_BUFFER } else { PAGE });
        let max_vms = u32::try_from(vms.len()).unwrap_or(MAX_VMS).saturating_add(MORE_VMS).min(MAX_VMS);
        if wanted.memory {
            loader.map_max_entries("FUNCTIONS", max_vms * KNOWN_OBJECTS);
            loader.map_max_entries("PROTOTYPES", max_vms * KNOWN_OBJECTS);
            loader.map_max_entries("KNOWN_TRACES", max_vms * KNOWN_OBJECTS);
        }
        let mut ebpf = loader.load(&object::object_for(wanted.mechanism)?).map_err(|error| refused(error.into()))?;
        let maps = if wanted.memory { descriptors(&ebpf).map_err(|error| refused(error.into()))? } else { Vec::new() };
        bpf_log::follow(&mut ebpf);
        let counts = take_map(&mut ebpf, "COUNTS").and_then(|map| Ok(PerCpuArray::try_from(map)?)).map_err(refused)?;
        let counts = Counts(Arc::new(counts));
        let config = Config {
            samples: u32::from(wanted.cpu || wanted.stack_every != 0),
            stack_every: wanted.stack_every,
            cpus: cpus.get(),
            stack_limit: MAX_STACK,
            kernel_frames: u32::from(wanted.kernel_frames),
            ..Config::default()
        };
        let mut programs = Self { ebpf, counts, config, mechanism: wanted.mechanism, maps };
        programs.change_config(|new| *new = config).map_err(refused)?;
        for vm in &vms[..vms.len().min(MAX_VMS as usize)] {
            programs.add_vm(vm).map_err(refused)?;
        }
        for index in programs.config.vms..max_vms {
            programs.free_vms().and_then(|mut free| Ok(free.push(&index, 0)?)).map_err(refused)?;
        }
        Ok(programs)
    }

    /// Has the kernel load what is wanted, attaches nothing, and drops all of it.
    ///
    /// # Errors
    /// As [`Self::load`], with what the verifier says.
    pub fn try_load(wanted: Wanted) -> Result<(), ProbeError> {
        let mut programs = Self::load(wanted, &[])?;
        let uses = |name: &str| match name {
            "sample_cpu" | "sample_chosen" | "chosen_executes" => wanted.cpu,
            "allocator_called" | "allocator_returned" => wanted.memory,
            "allocation_stack" => wanted.stack_every != 0,
            _ => false,
        };
        for (_, program) in programs.ebpf.programs_mut().filter(|(name, _)| uses(name)) {
            let loaded = match program {
                Program::PerfEvent(program) => program.load(),
                Program::UProbe(program) => program.load(),
                Program::RawTracePoint(program) => program.load(),
                _ => Ok(()),
            };
            loaded.map_err(ProbeError::sort)?;
        }
        Ok(())
    }

    /// Tells the programs about one more VM, which gets the next index.
    fn add_vm(&mut self, vm: &VmConfig) -> anyhow::Result<()> {
        self.set_vm(self.config.vms, vm)?;
        self.change_config(|config| config.vms += 1)
    }

    /// Tells the programs more of a VM that they know already.
    ///
    /// # Errors
    /// [`ProbeError::Refused`] if the kernel does not take it.
    pub fn update_vm(&mut self, index: u32, vm: &VmConfig) -> Result<(), ProbeError> {
        self.set_vm(index, vm).map_err(ProbeError::sort)
    }

    fn set_vm(&mut self, index: u32, vm: &VmConfig) -> anyhow::Result<()> {
        let mut list: Array<_, VmConfig> = map_mut(&mut self.ebpf, "VMS")?.try_into()?;
        list.set(index, vm, 0)?;
        let mut globals: HashMap<_, u64, u32> = map_mut(&mut self.ebpf, "GLOBALS")?.try_into()?;
        globals.insert(&vm.global, &index, 0)?;
        self.change_config(|config| {
            let is_wide = vm.layout.is_gc64();
            let shape = if is_wide { &mut config.wide_c_frames } else { &mut config.narrow_c_frames };
            shape.include(&vm.layout);
        })?;
        let kind = |layout: &VmLayout| (layout.is_gc64(), layout.l_glref);
        if kind(&list_entry(&self.ebpf, 0)?.layout) != kind(&vm.layout) {
            self.change_config(|config| config.other_kind = index)?;
        }
        Ok(())
    }

    /// The index of the VM whose `global_State` is there, if the programs know it.
    pub fn index_of(&self, global: u64) -> Option<u32> {
        let globals: HashMap<_, u64, u32> = self.ebpf.map("GLOBALS")?.try_into().ok()?;
        globals.get(&global, 0).ok()
    }

    /// The index of the VM that gives its allocator this data, or `SHARED_USER_DATA`.
    pub fn user_of(&self, data: u64) -> Option<u32> {
        let allocators: HashMap<_, u64, u32> = self.ebpf.map("ALLOCATORS")?.try_into().ok()?;
        allocators.get(&data, 0).ok()
    }

    /// A VM that the programs know.
    pub(super) fn vm(&self, index: u32) -> Option<VmConfig> {
        list_entry(&self.ebpf, index).ok()
    }

    /// One more kind of VMs that may come into being, if there is room for it ([`Self::set_templates`]).
    pub(super) fn add_template(&mut self, size: u64, vm: u32) -> anyhow::Result<()> {
        if self.config.templates.iter().any(|template| template.size == size) {
            return Ok(());
        }
        self.change_config(|config| {
            if let Some(free) = config.templates.iter_mut().find(|template| template.size == 0) {
                *free = Template { size, vm, reserved: 0 };
            }
        })
    }

    /// Says where native stacks end, by page, or that this is not known any more. Where the kernel does not take it, samples
    /// take along more than they need.
    pub fn set_stack_ends(&mut self, ends: &[(u64, Option<StackEnd>)]) {
        if ends.is_empty() {
            return;
        }
        let Ok(map) = map_mut(&mut self.ebpf, "STACK_ENDS") else { return };
        let Ok(mut map) = HashMap::<_, u64, StackEnd>::try_from(map) else { return };
        for (page, end) in ends {
            let _ = match end {
                Some(end) => map.insert(page, end, 0),
                None => map.remove(page),
            };
        }
    }

    /// Says what VMs that come into being may look like: the size of their first block, and the index of a VM that is
    /// laid out the same. The first [`TEMPLATES`] count.
    pub(super) fn set_templates(&mut self, sizes: impl IntoIterator<Item = (u64, u32)>) -> anyhow::Result<()> {
        let mut templates = [Template::default(); TEMPLATES];
        for (template, (size, vm)) in templates.iter_mut().zip(sizes) {
            *template = Template { size, vm, reserved: 0 };
        }
        self.change_config(|config| config.templates = templates)
    }

    /// The `global_State` of a VM that has come into being since, and the index of the VM that it is a copy of.
    pub fn new_vm(&mut self, index: u32) -> Option<(u64, u32)> {
        let list: Array<_, VmConfig> = map_mut(&mut self.ebpf, "VMS").ok()?.try_into().ok()?;
        let new = list.get(&index, 0).ok().filter(|new| new.global != 0)?;
        let of = |template: &&Template| {
            template.size != 0 && list.get(&template.vm, 0).is_ok_and(|vm| vm.layout == new.layout)
        };
        let template = self.config.templates.iter().find(of)?;
        Some((new.global, template.vm))
    }

    /// How allocation probes are put on instructions.
    pub fn mechanism(&self) -> Mechanism {
        self.mechanism
    }

    /// Whether some allocations carry their stack.
    pub(super) fn wants_allocation_stacks(&self) -> bool {
        self.config.stack_every != 0
    }

    /// Tells the programs about a VM that was found while they run; returns its index, or [`None`] if they have no room
    /// for more.
    ///
    /// # Errors
    /// [`ProbeError::Refused`] if the kernel takes none of it.
    pub fn add_late_vm(&mut self, vm: &VmConfig) -> Result<Option<u32>, ProbeError> {
        let refused = |error: anyhow::Error| ProbeError::sort(error);
        let Some(index) = self.claim_index() else { return Ok(None) };
        self.set_vm(index, vm).map_err(refused)?;
        Ok(Some(index))
    }

    /// Has the programs know a VM no more: what runs in it counts as code of no VM from now on.
    pub fn forget_vm(&mut self, global: u64) {
        let Ok(map) = map_mut(&mut self.ebpf, "GLOBALS") else { return };
        if let Ok(mut globals) = HashMap::<_, u64, u32>::try_from(map) {
            // One that was forgotten already is as well.
            let _ = globals.remove(&global);
        }
    }

    /// Whether another VM may get the index of one that is not there any more: not where the programs look for the kinds of VMs
    /// that there are.
    pub fn may_replace(&self, index: u32) -> bool {
        let is_template = |template: &Template| template.size != 0 && template.vm == index;
        index != 0 && index != self.config.other_kind && !self.config.templates.iter().any(is_template)
    }

    /// Lets VMs that come into being have the index of one that was closed, and of which nothing is under way any more.
    pub fn release_vm(&mut self, index: u32) {
        if self.may_replace(index)
            && let Ok(mut free) = self.free_vms()
        {
            // The queue has room for all of them.
            let _ = free.push(&index, 0);
        }
    }

    fn free_vms(&mut self) -> anyhow::Result<Queue<&mut MapData, u32>> {
        Ok(map_mut(&mut self.ebpf, "FREE_VMS")?.try_into()?)
    }

    /// What became of the calls of a VM's allocator so far.
    pub fn tally(&self, index: u32) -> VmTally {
        let tallies = self.ebpf.map("TALLIES").and_then(|map| Array::<_, VmTally>::try_from(map).ok());
        tallies.and_then(|tallies| tallies.get(&index, 0).ok()).unwrap_or_default()
    }

    /// Forgets what data the VM of this index has given its allocator.
    pub fn forget_allocators(&mut self, index: u32) {
        // Where the kernel does not take it, the next VM with the same data is known in its place.
        let _ = self.try_to_forget_allocators(index);
    }

    fn try_to_forget_allocators(&mut self, index: u32) -> anyhow::Result<()> {
        let mut allocators: HashMap<_, u64, u32> = map_mut(&mut self.ebpf, "ALLOCATORS")?.try_into()?;
        let own = |entry: Result<(u64, u32), _>| entry.ok().filter(|(_, vm)| *vm == index).map(|(data, _)| data);
        for data in allocators.iter().filter_map(own).collect::<Vec<_>>() {
            allocators.remove(&data)?;
        }
        let settings: Array<_, Config> =
            self.ebpf.map("CONFIG").ok_or_else(|| anyhow::anyhow!("no map"))?.try_into()?;
        if settings.get(&0, 0)?.allocator_vm == index {
            self.change_config(|config| config.allocators = 0)?;
        }
        Ok(())
    }

    /// An index that no VM has: the programs give them out themselves, too.
    fn claim_index(&mut self) -> Option<u32> {
        self.free_vms().ok()?.pop(0).ok()
    }

    /// Changes the settings of the running programs, which change some of them themselves.
    pub(super) fn change_config(&mut self, change: impl FnOnce(&mut Config)) -> anyhow::Result<()> {
        let mut settings: Array<_, Config> = map_mut(&mut self.ebpf, "CONFIG")?.try_into()?;
        let mut config = settings.get(&0, 0)?;
        change(&mut config);
        settings.set(0, &config, 0)?;
        self.config = config;
        Ok(())
    }

    /// Says for which VM an allocator with this data works.
    pub(super) fn add_allocator(&mut self, data: u64, vm: u32) -> anyhow::Result<()> {
        let mut allocators: HashMap<_, u64, u32> = map_mut(&mut self.ebpf, "ALLOCATORS")?.try_into()?;
        allocators.insert(&data, &vm, 0)?;
        self.change_config(|config| {
            if config.allocators == 0 || config.allocator_data == data {
                (config.allocator_data, config.allocator_vm) = (data, vm);
            }
            config.allocators += 1;
        })
    }

    /// The counters among these that have counted something, in words for people.
    pub fn counted(&self, counters: &[Counter]) -> Vec<(&'static str, u64)> {
        let counted = counters.iter().map(|&counter| (counter.describe(), self.count(counter)));
        counted.filter(|(_, count)| *count != 0).collect()
    }

    /// Whether the maps of the programs can be used: some kernels want `CAP_BPF` even for those that are open.
    pub fn are_in_reach(&self) -> bool {
        self.counts.0.get(&0, 0).is_ok()
    }

    /// How often `counter` was counted, on all CPUs.
    pub fn count(&self, counter: Counter) -> u64 {
        self.counts.count(counter)
    }

    /// The counters themselves.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }
}

/// The names and descriptors of all maps.
fn descriptors(ebpf: &Ebpf) -> io::Result<Vec<(String, OwnedFd)>> {
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
    ebpf.maps().filter_map(of).collect()
}

pub(super) fn take_map(ebpf: &mut Ebpf, name: &str) -> anyhow::Result<Map> {
    ebpf.take_map(name).ok_or_else(|| anyhow::anyhow!("no map {name}"))
}

fn map_mut<'a>(ebpf: &'a mut Ebpf, name: &str) -> anyhow::Result<&'a mut Map> {
    ebpf.map_mut(name).ok_or_else(|| anyhow::anyhow!("no map {name}"))
}
/// An entry of the list of VMs.
fn list_entry(ebpf: &Ebpf, index: u32) -> anyhow::Result<VmConfig> {
    let list = ebpf.map("VMS").ok_or_else(|| anyhow::anyhow!("no map VMS"))?;
    Ok(Array::<_, VmConfig>::try_from(list)?.get(&index, 0)?)
}
