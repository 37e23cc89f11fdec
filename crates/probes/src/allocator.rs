//! Allocation probes: attaches them to the allocators of the target's VMs, where the plan says, and delivers their
//! events.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use lj_trace_common::allocation::event::{PROTOTYPE_SEEN, TRACE_SEEN};
use lj_trace_common::allocation::serving::{REQUEST_SEEN, RequestSeen};
use lj_trace_common::allocation::serving_fiber::{FIBER_SEEN, FiberSeen};
use lj_trace_common::allocation::{AllocationEvent, PrototypeSeen, TraceSeen};
use lj_trace_common::arch::{STATE_NAMES_TRACE, reg};
use lj_trace_common::config::{ARGUMENT_LOST, ARGUMENT_ZERO, ARGUMENTS_ELSEWHERE, SHARED_USER_DATA, UNKNOWN_USER_DATA};
use lj_trace_common::memory::{ReadMemory as _, Unreadable};
use lj_trace_common::vm::{NO_WORD, VmConfig};
use lj_trace_luajit::Vm;
use lj_trace_process::{Maps, Process};
use lj_trace_unwind::Unwinder;

use super::gate::Gate;
use super::links::{Links, loaded, program};
use super::mechanism::Mechanism;
use super::plan::function::{FunctionError, MachineFunction};
use super::plan::{ArgumentLocation, Need, ProbePlan, ProbePoint, plan};
use super::programs::{ProbeError, Programs};
use super::ring::{Batch, Ring};
use super::sample::plain;
use super::session::{self, SessionProgram};
use super::set::take_map;
use super::windows::{ProbedFunction, ProbedPlaces, WindowOpener, WindowPrograms};

/// Why allocations cannot be recorded.
#[derive(Debug, thiserror::Error)]
pub enum AllocatorError {
    /// The allocator's code cannot be probed.
    #[error(transparent)]
    Function(#[from] FunctionError),
    /// The kernel refuses the probes.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// The VM went away.
    #[error("the VM at {global:#x} has gone: it was closed while lj-trace attached")]
    VmGone {
        /// Its `global_State`.
        global: u64,
    },
}

/// The BPF programs that the probes run, by their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handlers {
    /// The program for calls and returns, where the kernel has uprobe sessions.
    pub session: Option<&'static str>,
    /// The programs for calls and for returns, where the kernel has no sessions.
    pub separate: Option<[&'static str; 2]>,
}

impl Handlers {
    /// The programs that record events.
    pub const RECORD: Self = Self { session: Some("allocator_session"), ..Self::RECORD_SEPARATELY };

    /// The same, but with separate programs for calls and returns even where one program could see both.
    pub const RECORD_SEPARATELY: Self =
        Self { session: None, separate: Some(["allocator_called", "allocator_returned"]) };
}

/// A record from the probes.
#[derive(Clone, Copy, Debug)]
pub enum AllocationRecord {
    /// A call of the allocator.
    Event(AllocationEvent),
    /// Says which prototype later events refer to.
    Prototype(PrototypeSeen),
    /// Says which trace later events refer to.
    Trace(TraceSeen),
    /// Which request later events are for.
    Request(RequestSeen),
    /// Which fiber later events are in.
    Fiber(FiberSeen),
}

impl AllocationRecord {
    /// Reads a record; [`None`] if the bytes are no valid record.
    #[inline]
    fn parse(bytes: &[u8]) -> Option<Self> {
        match bytes.first() {
            Some(&PROTOTYPE_SEEN) => plain(bytes).map(Self::Prototype),
            Some(&TRACE_SEEN) => plain(bytes).map(Self::Trace),
            Some(&REQUEST_SEEN) => plain(bytes).map(Self::Request),
            Some(&FIBER_SEEN) => plain(bytes).map(Self::Fiber),
            _ => plain(bytes).map(Self::Event),
        }
    }

    /// The index of the VM that the record belongs to.
    #[inline]
    pub fn vm(&self) -> u32 {
        match self {
            Self::Event(event) => event.vm.into(),
            Self::Prototype(seen) => seen.vm.into(),
            Self::Trace(seen) => seen.vm.into(),
            Self::Request(seen) => seen.vm.into(),
            Self::Fiber(seen) => seen.vm.into(),
        }
    }
}

/// Running allocation probes. [`Self::detach`] removes them; so does dropping the programs.
pub struct AllocationProbes {
    handlers: Handlers,
    events: Ring,
    /// Records that are already out of the ring, but not yet handed to the caller of [`Self::drain`].
    batch: Batch,
    plans: Vec<ProbePlan>,
    links: Links,
    session: Session,
    gate: Gate,
    /// The addresses of the probed functions; for each, whether its plan loses `ud` at some point.
    functions: BTreeMap<u64, bool>,
    /// The places to probe, if the probes are there in windows only.
    places: Option<ProbedPlaces>,
    /// The allocators of the VMs that were registered here, by the VMs' indices, and when they were read.
    known: HashMap<u32, (AllocatorPair, Instant)>,
    call_sites: CallSites,
}

/// The interpreters around which the calls of LuaJIT's C code are known to the programs, by their addresses.
#[derive(Debug, Default)]
struct CallSites(BTreeSet<u64>);

impl CallSites {
    /// Tells the programs about the calls around the interpreter of `vm`, where they are needed to find the trace that
    /// allocates.
    fn add(&mut self, programs: &mut Programs, process: &Process, vm: &VmConfig) -> Result<(), ProbeError> {
        if STATE_NAMES_TRACE || !self.0.insert(vm.text_start) {
            return Ok(());
        }
        let sites = Unwinder::new(process.clone()).call_sites(&(vm.text_start..vm.text_end));
        programs.add_call_sites(&sites).map_err(ProbeError::sort)
    }
}

/// The two words `g->allocf` and `g->allocd` of a VM.
pub type AllocatorPair = (u64, u64);

/// Which programs see calls and returns.
#[derive(Debug)]
enum Session {
    /// One program for both; it takes returns only where they are needed.
    Program(SessionProgram),
    /// The same program, but [`WindowOpener`] has it now.
    InWindows,
    /// One program for each: sessions do not work here, for this reason.
    Missing(anyhow::Error),
}

/// How many records are taken from the buffer at once.
const BATCH: usize = 256;

/// The program that copies stacks.
const STACKS: &str = "allocation_stack";

/// An allocator of the target, and the plan for its probes.
#[derive(Debug)]
pub struct Allocator {
    /// The allocator's code.
    pub function: MachineFunction,
    /// Where its probes go.
    pub plan: ProbePlan,
    /// The VMs that use the allocator: the index of each, and the `ud` that it passes (`g->allocd`).
    pub users: Vec<(u32, u64)>,
}

impl Allocator {
    /// All allocators of `vms`, by address.
    ///
    /// # Errors
    /// [`AllocatorError`] if one of them cannot be probed.
    pub fn all(process: &Process, maps: &Maps, vms: &[Vm]) -> Result<Vec<Self>, AllocatorError> {
        let mut by_function: BTreeMap<u64, Vec<(u32, u64)>> = BTreeMap::new();
        for (index, vm) in (0..).zip(vms) {
            let (function, data) =
                allocator_of(process, vm).map_err(|Unreadable| AllocatorError::VmGone { global: vm.global })?;
            by_function.entry(function).or_default().push((index, data));
        }
        let planned = |(address, users): (u64, Vec<_>)| {
            let mut allocator = Self { users, ..Self::plan(process, maps, address)? };
            if !allocator.plan.is_cheap() && allocator.users.len() == 1 {
                allocator.plan = plan(&allocator.function.code, address, Need::AllButUserData);
            }
            Ok(allocator)
        };
        by_function.into_iter().map(planned).collect()
    }
}

impl Allocator {
    /// Plans an allocator that any number of VMs may use later.
    fn plan(process: &Process, maps: &Maps, address: u64) -> Result<Self, AllocatorError> {
        let function = MachineFunction::find(process, maps, address)?;
        let plan = plan(&function.code, address, Need::All);
        Ok(Self { function, plan, users: Vec::new() })
    }

    /// The allocator's address, and whether its plan loses `ud` at some point.
    fn kind(&self) -> (u64, bool) {
        let is_lost = |point: &ProbePoint| point.arguments.contains(&ArgumentLocation::Lost);
        (self.function.address, self.plan.points.iter().any(is_lost))
    }
}

impl Session {
    fn load(program: &str, programs: &Programs, vms: &[Vm]) -> Self {
        if vms.iter().any(|vm| vm.config().thread_word == NO_WORD) {
            return Self::Missing(anyhow::anyhow!("the VM does not name the coroutine that runs"));
        }
        if programs.mechanism() == Mechanism::Classic {
            return Self::Missing(anyhow::anyhow!("each probe is a perf event, without uprobe_multi links"));
        }
        if !STATE_NAMES_TRACE {
            return Self::Missing(anyhow::anyhow!("the VM does not name the trace that runs"));
        }
        // Kernels without sessions load the program, too, and refuse it only when it is attached. Windows attach it
        // later, so try it now.
        if let Err(error) = session::try_session() {
            return Self::Missing(error.into());
        }
        SessionProgram::load(program, &programs.maps).map_or_else(Self::Missing, Self::Program)
    }
}

impl AllocationProbes {
    /// Puts probes on the allocators of `vms`, in this process alone. `vms` must be in the order in which the programs
    /// know them.
    ///
    /// # Errors
    /// [`AllocatorError`] if one of them cannot be probed.
    pub fn attach(
        programs: &mut Programs,
        process: &Process,
        maps: &Maps,
        vms: &[Vm],
        handlers: Handlers,
    ) -> Result<Self, AllocatorError> {
        let refused = |error: anyhow::Error| ProbeError::sort(error);
        let (mut probes, allocators) = Self::prepare(programs, process, maps, vms, handlers)?;
        programs.set_templates(templates(vms)).map_err(refused)?;
        // The kernel inserts the breakpoints one by one while the process runs. The closed gate keeps the programs from
        // seeing the allocation of a block whose release they would miss.
        probes.gate.close().map_err(refused)?;
        for allocator in allocators {
            probes.attach_to(programs, process, allocator)?;
        }
        probes.gate.open(0).map_err(refused)?;
        Ok(probes)
    }

    /// Prepares probes that exist in short windows only. They do not recognize new VMs: that takes two calls of the
    /// allocator, and a window may see only one of them.
    ///
    /// # Errors
    /// As [`Self::attach`].
    pub fn in_windows(
        programs: &mut Programs,
        process: &Process,
        maps: &Maps,
        vms: &[Vm],
        handlers: Handlers,
    ) -> Result<(Self, WindowOpener), AllocatorError> {
        let refused = |error: anyhow::Error| ProbeError::sort(error);
        let (mut probes, allocators) = Self::prepare(programs, process, maps, vms, handlers)?;
        probes.gate.close().map_err(refused)?;
        let places = ProbedPlaces::default();
        probes.places = Some(places.clone());
        for allocator in allocators {
            probes.attach_to(programs, process, allocator)?;
        }
        let programs = match std::mem::replace(&mut probes.session, Session::InWindows) {
            Session::Program(program) => WindowPrograms::Session(program),
            other => {
                probes.session = other;
                let [on_call, on_return] = probes.separate()?.map(|name| loaded(programs, name));
                WindowPrograms::Two { on_call: on_call.map_err(refused)?, on_return: on_return.map_err(refused)? }
            }
        };
        let gate = probes.gate.clone();
        Ok((probes, WindowOpener { programs, places, pid: process.pid(), gate }))
    }

    /// Prepares everything but the probes themselves.
    fn prepare(
        programs: &mut Programs,
        process: &Process,
        maps: &Maps,
        vms: &[Vm],
        handlers: Handlers,
    ) -> Result<(Self, Vec<Allocator>), AllocatorError> {
        let refused = |error: anyhow::Error| ProbeError::sort(error);
        let read = Instant::now();
        let allocators = Allocator::all(process, maps, vms)?;
        let mut known = HashMap::new();
        let mut by_data: BTreeMap<u64, u32> = BTreeMap::new();
        let mut uses = |data, vm| {
            by_data.entry(data).and_modify(|known| *known = SHARED_USER_DATA).or_insert(vm);
        };
        for Allocator { function, users, .. } in &allocators {
            known.extend(users.iter().map(|&(vm, data)| (vm, ((function.address, data), read))));
            users.iter().for_each(|&(vm, data)| uses(data, vm));
            if let [(vm, _)] = users[..] {
                uses(UNKNOWN_USER_DATA, vm);
            }
        }
        for (data, vm) in by_data {
            programs.add_allocator(data, vm).map_err(refused)?;
        }
        let session = match handlers.session {
            Some(program) => Session::load(program, programs, vms),
            None => Session::Missing(anyhow::anyhow!("not wanted")),
        };
        let events = take_map(&mut programs.ebpf(), "ALLOCATIONS").and_then(Ring::of_map);
        let events = events.map_err(refused)?;
        let gate = Gate::new(programs).map_err(refused)?;
        let functions = allocators.iter().map(Allocator::kind).collect();
        let (plans, links, places) = (Vec::new(), Links::default(), None);
        let batch = Batch::default();
        let mut call_sites = CallSites::default();
        vms.iter().try_for_each(|vm| call_sites.add(programs, process, &vm.config()))?;
        let probes =
            Self { handlers, events, batch, plans, links, session, gate, functions, places, known, call_sites };
        if programs.wants_allocation_stacks() {
            program(&mut programs.ebpf(), STACKS).and_then(|program| Ok(program.load()?)).map_err(refused)?;
        }
        Ok((probes, allocators))
    }

    /// Records one more VM, which the programs already know by `index`. Its allocator gets probes, unless it has them.
    ///
    /// # Errors
    /// As [`Self::attach`]; the other VMs are recorded as before.
    pub fn add_vm(
        &mut self,
        programs: &mut Programs,
        process: &Process,
        maps: &Maps,
        vm: &Vm,
        index: u32,
    ) -> Result<(), AllocatorError> {
        let refused = |error: anyhow::Error| ProbeError::sort(error);
        if vm.config().thread_word == NO_WORD && !matches!(self.session, Session::Missing(_)) {
            return Err(
                refused(anyhow::anyhow!("it does not name the coroutine that runs, as the other VMs do")).into()
            );
        }
        self.call_sites.add(programs, process, &vm.config())?;
        let gone = |Unreadable| AllocatorError::VmGone { global: vm.global };
        let read = Instant::now();
        let (function, data) = allocator_of(process, vm).map_err(gone)?;
        self.known.insert(index, ((function, data), read));
        let is_probed = self.functions.contains_key(&function);
        if !is_probed {
            // Other VMs may use this allocator later, so its `ud` has to tell them apart.
            let allocator = Allocator::plan(process, maps, function)?;
            self.functions.extend([allocator.kind()]);
            self.attach_to(programs, process, allocator)?;
            // From here on its calls are events: all of its breakpoints are in place.
            self.use_data(programs, process, data, index).map_err(refused)?;
        } else {
            self.use_data(programs, process, data, index).map_err(refused)?;
            if self.functions.get(&function) == Some(&true) {
                self.use_data(programs, process, UNKNOWN_USER_DATA, index).map_err(refused)?;
            }
        }
        if let Some(size) = vm.first_block_size().filter(|_| self.places.is_none()) {
            programs.add_template(size, index).map_err(refused)?;
        }
        Ok(())
    }

    /// The allocator with which the VM at this index was last registered here, and when it was read. [`None`] for a VM
    /// that the programs have noticed by themselves, at a call of a probed allocator.
    pub fn allocator_of(&self, index: u32) -> Option<(AllocatorPair, Instant)> {
        self.known.get(&index).copied()
    }

    /// Forgets a VM that has left its index.
    pub fn forget_vm(&mut self, index: u32) {
        self.known.remove(&index);
    }

    /// Whether the function at this address is probed.
    pub fn knows(&self, function: u64) -> bool {
        self.functions.contains_key(&function)
    }

    /// Follows a VM to a new allocator or a new `ud`, and records it from now on.
    ///
    /// # Errors
    /// As [`Self::add_vm`].
    pub fn follow_vm(
        &mut self,
        programs: &mut Programs,
        process: &Process,
        maps: &Maps,
        vm: &Vm,
        index: u32,
    ) -> Result<(), AllocatorError> {
        programs.forget_allocators(index);
        self.add_vm(programs, process, maps, vm, index)
    }

    /// Tells the programs that the VM with this index passes this `ud` to its allocator. Other live VMs may pass the
    /// same one.
    fn use_data(&self, programs: &mut Programs, process: &Process, data: u64, index: u32) -> anyhow::Result<()> {
        let memory = process.memory();
        let uses = |config: VmConfig| {
            data == UNKNOWN_USER_DATA
                || memory.read::<u64>(config.global + u64::from(config.layout.g_allocd)) == Ok(data)
        };
        let user = programs.user_of(data).filter(|&user| user != index);
        let is_shared = user.is_some_and(|user| user == SHARED_USER_DATA || programs.vm(user).is_some_and(uses));
        programs.add_allocator(data, if is_shared { SHARED_USER_DATA } else { index })
    }

    fn attach_to(
        &mut self,
        programs: &mut Programs,
        process: &Process,
        allocator: Allocator,
    ) -> Result<(), ProbeError> {
        if let Some(places) = &self.places {
            let calls = points(&allocator, &|_| true, &cookie);
            let returns = points(&allocator, &|point| point.return_probe, &|_| 0);
            self.plans.push(allocator.plan);
            let new = ProbedFunction { function: allocator.function, calls, returns };
            places.lock().unwrap_or_else(PoisonError::into_inner).push(new);
            return Ok(());
        }
        let path = allocator.function.probe_path();
        let pid = process.pid();
        // The return probe goes in first. The programs ignore a return without a call; but a call without a return
        // would lose its event, for as long as the kernel takes to attach a program.
        let with_result = |point: &ProbePoint| point.return_probe;
        let calls = points(&allocator, &|_| true, &cookie);
        if !self.attach_session(&path, &calls, pid) {
            let [on_call, on_return] = self.separate()?;
            for name in [on_call, on_return] {
                loaded(programs, name).map_err(ProbeError::sort)?;
            }
            let returns = points(&allocator, &with_result, &|_| 0);
            self.links.attach(programs, on_return, &returns, &path, pid)?;
            self.links.attach(programs, on_call, &calls, &path, pid)?;
        }
        if programs.wants_allocation_stacks() {
            let stacks = points(&allocator, &with_result, &cookie);
            self.links.attach(programs, STACKS, &stacks, &path, pid)?;
        }
        self.plans.push(allocator.plan);
        Ok(())
    }

    /// Attaches the one program for calls and returns, if there is one. Returns whether that worked.
    fn attach_session(&mut self, path: &Path, points: &[(u64, u64)], pid: u32) -> bool {
        let Session::Program(program) = &self.session else { return false };
        if let Err(error) = self.links.attach_session(program, points, path, pid) {
            self.session = Session::Missing(error.into());
        }
        matches!(self.session, Session::Program(_))
    }

    /// The separate programs for calls and for returns.
    fn separate(&self) -> Result<[&'static str; 2], ProbeError> {
        self.handlers.separate.ok_or_else(|| match &self.session {
            Session::Missing(error) => ProbeError::sort(anyhow::anyhow!("no uprobe session: {error:#}")),
            Session::Program(_) | Session::InWindows => ProbeError::sort(anyhow::anyhow!("the session is in use")),
        })
    }

    /// Removes the breakpoints. Events that are already recorded can still be drained.
    pub fn detach(&mut self, programs: &Programs) {
        /// A call of the allocator takes some microseconds at most, unless it asks the kernel for memory.
        const CALL: Duration = Duration::from_millis(2);
        /// Its thread may have to wait for a CPU. A thread that has ended in a call never returns.
        const MOST: Duration = Duration::from_millis(200);
        // Calls that have begun by now may still return; without this wait their events would be lost.
        if self.gate.close().is_ok() && self.is_attached() {
            let closed = Instant::now();
            std::thread::sleep(CALL);
            while programs.unfinished_calls() != 0 && closed.elapsed() < MOST {
                std::thread::sleep(CALL);
            }
        }
        self.links.detach();
    }

    /// Whether the probes are gone although nobody here removed them: something has killed their holder.
    pub fn are_lost(&self) -> bool {
        self.links.are_lost()
    }

    fn is_attached(&self) -> bool {
        !self.links.is_empty()
    }

    /// Where the probes are, and why there.
    pub fn plans(&self) -> &[ProbePlan] {
        &self.plans
    }

    /// Describes the programs that see calls and returns, for messages.
    pub fn programs(&self) -> String {
        match &self.session {
            Session::Program(_) => {
                "one program sees calls and the returns that are needed (a uprobe session)".to_owned()
            }
            Session::InWindows => {
                "in windows, one program sees calls and the returns that are needed (a uprobe session)".to_owned()
            }
            Session::Missing(error) => {
                format!("one program sees calls and another returns: no uprobe session ({error:#})")
            }
        }
    }

    /// Whether there are records to drain.
    pub fn has_some(&self) -> bool {
        !self.batch.is_taken() || self.events.has_some()
    }

    /// Calls `take` for every record that is ready: for at most `limit` records, and until `take` breaks. Returns the
    /// number of records.
    pub fn drain(&mut self, limit: usize, mut take: impl FnMut(AllocationRecord) -> ControlFlow<()>) -> usize {
        for count in 0..limit {
            if self.batch.is_taken() && !self.events.take(&mut self.batch, BATCH) {
                return count;
            }
            let Some(record) = self.batch.next() else { return count };
            if AllocationRecord::parse(record).is_some_and(|record| take(record).is_break()) {
                return count + 1;
            }
        }
        limit
    }
}

/// What a new VM may look like: the size of its first block, and the index of the known VM with the same layout.
fn templates(vms: &[Vm]) -> Vec<(u64, u32)> {
    let mut templates: Vec<(u64, u32)> = Vec::new();
    for (index, vm) in (0..).zip(vms) {
        if let Some(size) = vm.first_block_size()
            && templates.iter().all(|&(known, _)| known != size)
        {
            templates.push((size, index));
        }
    }
    templates
}

/// Reads `g->allocf` and `g->allocd`.
fn allocator_of(process: &Process, vm: &Vm) -> Result<AllocatorPair, Unreadable> {
    let memory = process.memory();
    let function = memory.read::<u64>(vm.global + u64::from(vm.layout.g_allocf))?;
    let data = memory.read::<u64>(vm.global + u64::from(vm.layout.g_allocd))?;
    Ok((function, data))
}

/// The wanted probe points of an allocator: offsets in its file, with their cookies.
fn points(
    allocator: &Allocator,
    is_wanted: &dyn Fn(&ProbePoint) -> bool,
    cookie: &dyn Fn(&ProbePoint) -> u64,
) -> Vec<(u64, u64)> {
    let wanted = allocator.plan.points.iter().filter(|point| is_wanted(point));
    wanted.map(|point| (allocator.function.file_offset + point.offset, cookie(point))).collect()
}

/// Encodes for the program where the arguments are. 0 means: where the ABI passes them.
fn cookie(point: &ProbePoint) -> u64 {
    let codes = point.arguments.map(|location| match location {
        ArgumentLocation::Register(register) => register as u8,
        ArgumentLocation::Zero => ARGUMENT_ZERO,
        ArgumentLocation::Lost => ARGUMENT_LOST,
    });
    if codes == reg::ARGUMENTS.map(|number| number as u8) {
        0
    } else {
        ARGUMENTS_ELSEWHERE | u64::from(u32::from_le_bytes(codes))
    }
}
