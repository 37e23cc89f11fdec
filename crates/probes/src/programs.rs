//! Loads the BPF programs, tells them about the target's VMs, and reads their counters.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard};

use anyhow::Context as _;
use aya::maps::{Array, HashMap, Map, MapData, MapError, PerCpuArray, Queue};
use aya::programs::Program;
use aya::{Btf, Ebpf};
use lj_trace_common::allocation::call_site::CallSite;
use lj_trace_common::allocation::tally::VmTally;
use lj_trace_common::config::{Config, Counter, MAX_STACK, PidNamespace, TEMPLATES, Template, VmKey};
use lj_trace_common::fiber::FiberLayout;
use lj_trace_common::layout::VmLayout;
use lj_trace_common::request::RequestLayout;
use lj_trace_common::stack_end::StackEnd;
use lj_trace_common::vm::VmConfig;
use lj_trace_process::Process;

pub use super::counts::Counts;
use super::cpu_events::{CpuEvents, number};
pub use super::error::ProbeError;
use super::error::whole;
use super::mechanism::Mechanism;
use super::off_cpu;
use super::places::Owner;
pub use super::set::MORE_VMS;
use super::set::{Set, SetKind, lock, map_mut, take_map};
pub use super::wanted::Wanted;

/// The programs as one process has them: for this process alone, or shared with other sampled processes.
pub struct Programs {
    set: Arc<Set>,
    /// The number of the process in the set.
    process: u32,
    /// The numbers of its VMs in the set; [`None`] if the set is for this process alone.
    vms: Option<Vec<u32>>,
    counts: Counts,
    config: Config,
    mechanism: Mechanism,
    /// The maps, by name, for programs that aya cannot load.
    pub(super) maps: Vec<(String, OwnedFd)>,
    /// The process's number in the PID namespace of the shared events.
    id: u32,
    /// Why there are no events on CPUs to share.
    why_alone: Option<String>,
}

/// Keeps the shared programs, maps and events loaded while no process is sampled, so that the next one need not wait
/// for the kernel to verify them.
pub struct KeptPrograms(#[expect(dead_code, reason = "it is only held")] Arc<Set>);

impl Programs {
    /// Prepares the wanted programs for one process alone, and tells them about its VMs.
    ///
    /// # Errors
    /// [`ProbeError::NotPermitted`] without privileges, [`ProbeError::Refused`] on kernels that lack something.
    pub fn load(wanted: Wanted, vms: &[VmConfig]) -> Result<Self, ProbeError> {
        check(wanted)?;
        Self::prepare_alone(wanted, vms).map_err(ProbeError::sort)
    }

    /// Keeps what this process shares with others; [`None`] if it shares nothing.
    pub fn keep(&self) -> Option<KeptPrograms> {
        self.vms.is_some().then(|| KeptPrograms(Arc::clone(&self.set)))
    }

    /// Begins to load the programs that [`join`](Self::join) will want, while the caller still examines the process.
    pub fn load_ahead(wanted: Wanted, process: &Process, rate: u32) {
        if let Ok((namespace, _)) = number(process) {
            Set::load_ahead(wanted, kind(wanted, rate, namespace));
        }
    }

    /// Prepares to sample `process` `rate` times a second. All processes that are sampled at this rate share the same
    /// programs, maps and events on CPUs. Where the kernel has no such events, this does the same as [`Self::load`].
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn join(wanted: Wanted, process: &Process, rate: u32, vms: &[VmConfig]) -> Result<Self, ProbeError> {
        check(wanted)?;
        Self::prepare_shared(wanted, process, rate, vms).or_else(|error| {
            let mut alone = Self::load(wanted, vms)?;
            alone.why_alone = Some(whole(&error));
            Ok(alone)
        })
    }

    fn prepare_alone(wanted: Wanted, vms: &[VmConfig]) -> anyhow::Result<Self> {
        let set = Arc::new(Set::load(wanted, u32::try_from(vms.len()).unwrap_or(u32::MAX))?);
        let maps = if wanted.memory { set.descriptors()? } else { Vec::new() };
        let of_cpus = PerCpuArray::try_from(take_map(&mut set.ebpf(), "COUNTS")?)?;
        let counts = Counts::new(Some(of_cpus), set.counts.clone(), 0);
        let mechanism = wanted.mechanism;
        let (config, vms_of_set, id, why_alone) = (Config::default(), None, 0, None);
        let mut programs = Self { set, process: 0, vms: vms_of_set, counts, config, mechanism, maps, id, why_alone };
        programs.begin(wanted, vms)?;
        for index in programs.config.vms..programs.set.vms {
            programs.with_map("FREE_VMS", |map| Ok(Queue::try_from(map)?.push(&index, 0)?))?;
        }
        Ok(programs)
    }

    fn prepare_shared(wanted: Wanted, process: &Process, rate: u32, vms: &[VmConfig]) -> anyhow::Result<Self> {
        let (namespace, id) = number(process).context("the PID namespace of the process")?;
        let set = Set::join(wanted, kind(wanted, rate, namespace), u32::try_from(vms.len()).unwrap_or(u32::MAX))?;
        let number = lock(&set.places).add_process().context("too many processes are recorded at once")?;
        set.counts.clear(number);
        if let Some(samples) = &set.samples {
            lock(samples).add(number);
        }
        let counts = Counts::new(None, set.counts.clone(), number);
        let (config, maps, mechanism) = (Config::default(), Vec::new(), wanted.mechanism);
        let vms_of_set = Some(Vec::new());
        let mut programs =
            Self { set, process: number, vms: vms_of_set, counts, config, mechanism, maps, id, why_alone: None };
        programs.begin(wanted, vms)?;
        Ok(programs)
    }

    /// Passes the settings and the first VMs to the programs.
    fn begin(&mut self, wanted: Wanted, vms: &[VmConfig]) -> anyhow::Result<()> {
        let config = Config {
            samples: u32::from(wanted.cpu || wanted.off_cpu || wanted.stack_every != 0),
            stack_every: wanted.stack_every,
            cpus: self.set.cpus,
            stack_limit: MAX_STACK,
            kernel_frames: u32::from(wanted.kernel_frames),
            ..Config::default()
        };
        self.change_config(|new| *new = config)?;
        for vm in vms {
            let index = self.config.vms;
            if !self.make_place(index) {
                break;
            }
            self.set_vm(index, vm)?;
            self.change_config(|config| config.vms += 1)?;
        }
        Ok(())
    }

    /// The loaded programs and maps.
    pub(super) fn ebpf(&self) -> MutexGuard<'_, Ebpf> {
        self.set.ebpf()
    }

    /// The set, and the process's number in it, if other processes may share the set.
    pub(super) fn shared(&self) -> Option<(Arc<Set>, u32)> {
        self.vms.is_some().then(|| (self.set.clone(), self.process))
    }

    /// The set, and the process's number in it.
    pub(super) fn set(&self) -> (Arc<Set>, u32) {
        (self.set.clone(), self.process)
    }

    /// The shared events, the process's number in their PID namespace, and its number in the set.
    pub(super) fn shared_events(&self) -> Option<(Arc<Mutex<CpuEvents>>, u32, u32)> {
        let events = self.set.events.clone().filter(|_| self.vms.is_some())?;
        Some((events, self.id, self.process))
    }

    /// Why the process has no events on CPUs, if lj-trace tried to open them.
    pub(super) fn why_alone(&self) -> Option<&str> {
        self.why_alone.as_deref()
    }

    /// The number, in the set, of the VM with this index; [`None`] if it has none.
    fn place(&self, index: u32) -> Option<u32> {
        match &self.vms {
            None => (index < self.set.vms).then_some(index),
            Some(vms) => vms.get(index as usize).copied(),
        }
    }

    /// The index of the VM that has this number in the set.
    fn index(&self, place: u32) -> u32 {
        let owner = lock(&self.set.places).owner(place);
        owner.filter(|_| self.vms.is_some()).map_or(place, |owner| owner.vm)
    }

    /// Makes room for the VM with this index; false if the set is full.
    fn make_place(&mut self, index: u32) -> bool {
        let Some(vms) = &mut self.vms else { return index < self.set.vms };
        if (index as usize) < vms.len() {
            return true;
        }
        let place = lock(&self.set.places).add_vm(Owner { process: self.process, vm: index });
        place.is_some_and(|place| {
            vms.push(place);
            true
        })
    }

    /// Calls `act` with the map of this name.
    fn with_map<T>(&self, name: &str, act: impl FnOnce(&mut Map) -> anyhow::Result<T>) -> anyhow::Result<T> {
        act(map_mut(&mut self.ebpf(), name)?)
    }

    /// Calls `act` with the map that finds a VM by the address of its `global_State`.
    fn with_globals<T>(
        &self,
        act: impl FnOnce(&mut HashMap<&mut MapData, VmKey, u32>) -> Result<T, MapError>,
    ) -> anyhow::Result<T> {
        self.with_map("GLOBALS", |map| Ok(act(&mut map.try_into()?)?))
    }

    /// Makes the kernel load the wanted programs, attaches nothing, and drops them again.
    ///
    /// # Errors
    /// As [`Self::load`], with the verifier's message.
    pub fn try_load(wanted: Wanted) -> Result<(), ProbeError> {
        let programs = Self::load(wanted, &[])?;
        let uses = |name: &str| match name {
            "sample_cpu" | "sample_chosen" | "chosen_executes" => wanted.cpu,
            "off_cpu_switch" | "waiting_tasks" => wanted.off_cpu,
            "allocator_called" | "allocator_returned" => wanted.memory,
            "allocation_stack" => wanted.stack_every != 0,
            "request_ended" => wanted.ended_requests,
            _ => false,
        };
        let mut ebpf = programs.ebpf();
        for (_, program) in ebpf.programs_mut().filter(|(name, _)| uses(name)) {
            let loaded = match program {
                Program::PerfEvent(program) => program.load(),
                Program::UProbe(program) => program.load(),
                Program::RawTracePoint(program) => program.load(),
                Program::BtfTracePoint(program) => match Btf::from_sys_fs() {
                    Ok(types) => program.load("sched_switch", &types),
                    Err(error) => Err(error.into()),
                },
                Program::Iter(program) => match Btf::from_sys_fs() {
                    Ok(types) => program.load("task", &types),
                    Err(error) => Err(error.into()),
                },
                _ => Ok(()),
            };
            loaded.map_err(ProbeError::sort)?;
        }
        Ok(())
    }

    /// Updates what the programs know of a VM that they have already.
    ///
    /// # Errors
    /// [`ProbeError::Refused`] if the kernel does not take it.
    pub fn update_vm(&mut self, index: u32, vm: &VmConfig) -> Result<(), ProbeError> {
        if self.place(index).is_none() {
            // There was no room for this VM.
            return Ok(());
        }
        self.set_vm(index, vm).map_err(ProbeError::sort)
    }

    fn set_vm(&mut self, index: u32, vm: &VmConfig) -> anyhow::Result<()> {
        let place = self.place(index).context("a VM without a number")?;
        self.with_map("VMS", |map| Ok(Array::<_, VmConfig>::try_from(map)?.set(place, vm, 0)?))?;
        let key = VmKey::new(self.process, vm.global);
        self.with_globals(|globals| globals.insert(&key, &place, 0))?;
        self.change_config(|config| {
            let is_wide = vm.layout.is_gc64();
            let shape = if is_wide { &mut config.wide_c_frames } else { &mut config.narrow_c_frames };
            shape.include(&vm.layout);
            if index == 0 {
                config.first_vm = place;
            }
        })?;
        let kind = |layout: &VmLayout| (layout.is_gc64(), layout.l_glref);
        if self.vm(0).is_some_and(|first| kind(&first.layout) != kind(&vm.layout)) {
            self.change_config(|config| config.other_kind = place)?;
        }
        Ok(())
    }

    /// The index of the VM whose `global_State` is at this address, if the programs know it.
    pub fn index_of(&self, global: u64) -> Option<u32> {
        let key = VmKey::new(self.process, global);
        let place = self.with_globals(|globals| globals.get(&key, 0)).ok()?;
        // Some numbers are markers and stand for no VM.
        Some(if place < self.set.vms { self.index(place) } else { place })
    }

    /// The index of the VM that passes this `ud` to its allocator, or `SHARED_USER_DATA`.
    pub fn user_of(&self, data: u64) -> Option<u32> {
        let of_data = |map: &mut Map| Ok(HashMap::<_, u64, u32>::try_from(map)?.get(&data, 0)?);
        self.with_map("ALLOCATORS", of_data).ok()
    }

    /// A VM that the programs know.
    pub(super) fn vm(&self, index: u32) -> Option<VmConfig> {
        let place = self.place(index)?;
        self.with_map("VMS", |map| Ok(Array::<_, VmConfig>::try_from(map)?.get(&place, 0)?)).ok()
    }

    /// Adds one more shape that new VMs may have, if there is room for it ([`Self::set_templates`]).
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

    /// Tells the programs how to find the request that a coroutine serves.
    ///
    /// # Errors
    /// [`ProbeError::Refused`] if the kernel does not take it.
    pub fn set_requests(&mut self, layout: RequestLayout) -> Result<(), ProbeError> {
        self.change_config(|config| config.requests = layout).map_err(ProbeError::sort)
    }

    /// Has allocation probes tell which request allocates, and which route it takes if the layout says where routes are. Each of
    /// the two costs each call of the allocator something, so they are for profiles that ask for them.
    ///
    /// # Errors
    /// As [`Self::set_requests`].
    pub fn set_allocating_requests(&mut self, layout: RequestLayout) -> Result<(), ProbeError> {
        self.change_config(|config| (config.serving, config.tells_serving) = (layout, layout.is_wanted))
            .map_err(ProbeError::sort)
    }

    /// Tells the programs how to find the fiber that the main thread runs.
    ///
    /// # Errors
    /// [`ProbeError::Refused`] if the kernel does not take it.
    pub fn set_fibers(&mut self, layout: FiberLayout) -> Result<(), ProbeError> {
        self.change_config(|config| config.fibers = layout).map_err(ProbeError::sort)
    }

    /// The same, and has allocation probes tell which fiber allocates. That costs each call of the allocator something, so it is for
    /// profiles that ask for it.
    ///
    /// # Errors
    /// As [`Self::set_fibers`].
    pub fn set_allocating_fibers(&mut self, layout: FiberLayout) -> Result<(), ProbeError> {
        self.change_config(|config| (config.fibers, config.tells_serving) = (layout, 1)).map_err(ProbeError::sort)
    }

    /// Tells the programs where the main thread's stack began when the program was started.
    ///
    /// # Errors
    /// [`ProbeError::Refused`] if the kernel does not take it.
    pub fn tell_stack_start(&mut self, process: &Process) -> Result<(), ProbeError> {
        self.change_config(|config| config.stack_start = process.stack_start()).map_err(ProbeError::sort)
    }

    /// Tells the programs, page by page, where native stacks end, or that this is no longer known.
    pub fn set_stack_ends(&mut self, ends: &[(u64, Option<StackEnd>)]) {
        if ends.is_empty() {
            return;
        }
        // If the kernel refuses this, samples only copy more of the stack than they need.
        let _ = self.with_map("STACK_ENDS", |map| {
            let mut map = HashMap::<_, u64, StackEnd>::try_from(map)?;
            for (page, end) in ends {
                let _ = match end {
                    Some(end) => map.insert(page, end, 0),
                    None => map.remove(page),
                };
            }
            Ok(())
        });
    }

    /// Tells the programs what new VMs may look like: the size of their first block, and the index of a VM with the
    /// same layout. The first [`TEMPLATES`] count.
    pub(super) fn set_templates(&mut self, sizes: impl IntoIterator<Item = (u64, u32)>) -> anyhow::Result<()> {
        let mut templates = [Template::default(); TEMPLATES];
        for (template, (size, vm)) in templates.iter_mut().zip(sizes) {
            *template = Template { size, vm, reserved: 0 };
        }
        self.change_config(|config| config.templates = templates)
    }

    /// The `global_State` of a VM that was created during recording, and the index of the VM with the same layout.
    pub fn new_vm(&self, index: u32) -> Option<(u64, u32)> {
        let new = self.vm(index).filter(|new| new.global != 0)?;
        let of =
            |template: &&Template| template.size != 0 && self.vm(template.vm).is_some_and(|vm| vm.layout == new.layout);
        let template = self.config.templates.iter().find(of)?;
        Some((new.global, template.vm))
    }

    /// How allocation probes are put on instructions.
    pub fn mechanism(&self) -> Mechanism {
        self.mechanism
    }

    /// Whether some allocations carry a stack.
    pub(super) fn wants_allocation_stacks(&self) -> bool {
        self.config.stack_every != 0
    }

    /// Tells the programs about a VM that was found while they run. Returns its index, or [`None`] if they have no room
    /// for more VMs.
    ///
    /// # Errors
    /// [`ProbeError::Refused`] if the kernel takes none of it.
    pub fn add_late_vm(&mut self, vm: &VmConfig) -> Result<Option<u32>, ProbeError> {
        let refused = |error: anyhow::Error| ProbeError::sort(error);
        let Some(index) = self.claim_index() else { return Ok(None) };
        self.set_vm(index, vm).map_err(refused)?;
        if self.config.vms == 0 {
            // It is the first VM: from here on the programs look for Lua stacks.
            self.change_config(|config| config.vms = 1).map_err(refused)?;
        }
        Ok(Some(index))
    }

    /// Makes the programs forget a VM. Samples in it then count as code outside any VM.
    pub fn forget_vm(&mut self, global: u64) {
        let key = VmKey::new(self.process, global);
        // An error means that the VM was forgotten before.
        let _ = self.with_globals(|globals| globals.remove(&key));
    }

    /// Whether a new VM may get the index of one that is gone. Not index 0, and not the index of a template: the
    /// programs read the layouts of new VMs there.
    pub fn may_replace(&self, index: u32) -> bool {
        let is_template = |template: &Template| template.size != 0 && template.vm == index;
        index != 0
            && self.place(index).is_some()
            && index != self.config.other_kind
            && !self.config.templates.iter().any(is_template)
    }

    /// Frees the index of a closed VM for new VMs, once no record of the closed one is left to process.
    pub fn release_vm(&mut self, index: u32) {
        if self.may_replace(index) {
            // The queue has room for every index.
            let _ = self.with_map("FREE_VMS", |map| Ok(Queue::try_from(map)?.push(&index, 0)?));
        }
    }

    /// How the calls of a VM's allocator have ended so far.
    pub fn tally(&self, index: u32) -> VmTally {
        let of_vm = |map: &mut Map| Ok(Array::<_, VmTally>::try_from(map)?.get(&index, 0)?);
        self.with_map("TALLIES", of_vm).unwrap_or_default()
    }

    /// The calls of all VMs' allocators that have not returned yet.
    pub(super) fn unfinished_calls(&self) -> u64 {
        (0..self.set.vms).map(|index| self.tally(index).unfinished()).sum()
    }

    /// Forgets which `ud` the VM with this index passes to its allocator.
    pub fn forget_allocators(&mut self, index: u32) {
        // If the kernel refuses this, the programs take the next VM with the same `ud` for this one.
        let _ = self.try_to_forget_allocators(index);
    }

    fn try_to_forget_allocators(&mut self, index: u32) -> anyhow::Result<()> {
        self.with_map("ALLOCATORS", |map| {
            let mut allocators: HashMap<_, u64, u32> = map.try_into()?;
            let own = |entry: Result<(u64, u32), _>| entry.ok().filter(|(_, vm)| *vm == index).map(|(data, _)| data);
            for data in allocators.iter().filter_map(own).collect::<Vec<_>>() {
                allocators.remove(&data)?;
            }
            Ok(())
        })?;
        if self.read_config()?.allocator_vm == index {
            self.change_config(|config| config.allocators = 0)?;
        }
        Ok(())
    }

    /// Takes an index that no VM has. The programs take indices as well, where they probe allocators.
    fn claim_index(&mut self) -> Option<u32> {
        if let Some(vms) = &self.vms {
            let next = u32::try_from(vms.len()).ok()?;
            return self.make_place(next).then_some(next);
        }
        self.with_map("FREE_VMS", |map| Ok(Queue::try_from(map)?.pop(0)?)).ok()
    }

    fn read_config(&self) -> anyhow::Result<Config> {
        self.with_map("CONFIG", |map| Ok(Array::<_, Config>::try_from(map)?.get(&self.process, 0)?))
    }

    /// Changes the settings of the running programs. The programs change some settings themselves, so this reads them
    /// first.
    pub(super) fn change_config(&mut self, change: impl FnOnce(&mut Config)) -> anyhow::Result<()> {
        let mut config = self.read_config()?;
        change(&mut config);
        self.with_map("CONFIG", |map| Ok(Array::<_, Config>::try_from(map)?.set(self.process, &config, 0)?))?;
        self.config = config;
        Ok(())
    }

    /// Tells the programs about calls in LuaJIT's C code, by their return addresses.
    pub(super) fn add_call_sites(&mut self, sites: &[(u64, CallSite)]) -> anyhow::Result<()> {
        self.with_map("CALL_SITES", |map| {
            let mut known = HashMap::<_, u64, CallSite>::try_from(map)?;
            sites.iter().try_for_each(|(address, site)| Ok(known.insert(address, site, 0)?))
        })
    }

    /// Tells the programs which VM passes this `ud` to its allocator.
    pub(super) fn add_allocator(&mut self, data: u64, vm: u32) -> anyhow::Result<()> {
        self.with_map("ALLOCATORS", |map| Ok(HashMap::<_, u64, u32>::try_from(map)?.insert(&data, &vm, 0)?))?;
        self.change_config(|config| {
            if config.allocators == 0 || config.allocator_data == data {
                (config.allocator_data, config.allocator_vm) = (data, vm);
            }
            config.allocators += 1;
        })
    }

    /// The counters among `counters` that are not 0, with their descriptions.
    pub fn counted(&self, counters: &[Counter]) -> Vec<(&'static str, u64)> {
        let counted = counters.iter().map(|&counter| (counter.describe(), self.count(counter)));
        counted.filter(|(_, count)| *count != 0).collect()
    }

    /// Whether the maps of the programs can be used: some kernels want `CAP_BPF` even for maps that are open.
    pub fn are_in_reach(&self) -> bool {
        self.read_config().is_ok()
    }

    /// How often `counter` was counted, on all CPUs.
    pub fn count(&self, counter: Counter) -> u64 {
        self.counts.count(counter)
    }

    /// All counters.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }
}

/// Checks that this kernel can record what is wanted.
fn check(wanted: Wanted) -> Result<(), ProbeError> {
    if wanted.off_cpu { off_cpu::check().map_err(ProbeError::NoOffCpu) } else { Ok(()) }
}

/// The kind of set that a recording needs.
fn kind(wanted: Wanted, rate: u32, namespace: PidNamespace) -> SetKind {
    (wanted.cpu.then_some(rate), namespace, [wanted.off_cpu, wanted.turns])
}

impl Drop for Programs {
    fn drop(&mut self) {
        let Some(vms) = self.vms.take() else { return };
        // Other processes still use these maps.
        for place in vms {
            let vm = self.with_map("VMS", |map| Ok(Array::<_, VmConfig>::try_from(map)?.get(&place, 0)?));
            if let Ok(vm) = vm {
                self.forget_vm(vm.global);
            }
        }
        lock(&self.set.places).remove_process(self.process);
        if let Some(samples) = &self.set.samples {
            lock(samples).remove(self.process);
        }
    }
}
