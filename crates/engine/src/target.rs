//! The processes to record: the one that is named, or its children.

use lj_trace_luajit::{FindError, FirstVms, Vm, find_first_vms, find_vms};
use lj_trace_probes::journal::{Priority, say};
use lj_trace_probes::programs::Programs;
use lj_trace_probes::sampler::EventPlaces;
use lj_trace_process::family::descendants;
use lj_trace_process::select::Selector;
use lj_trace_process::{Maps, Process};

use crate::allocations::SharedListener;
use crate::error::{EngineError, Failure};
use crate::options::{Options, Scope};

/// A process that is recorded.
pub struct RecordTarget {
    /// The options, with its own process id and file names.
    pub options: Options,
    /// The process.
    pub process: Process,
    /// Its mappings.
    pub maps: Maps,
    /// Its VMs.
    pub vms: Vec<Vm>,
    /// Whether it may have others, since not all of its memory was searched.
    pub may_have_more: bool,
    /// The index of the only VM that is recorded, if only one is.
    pub only: Option<usize>,
    /// If it is only looked at: who hears of its allocations. There are no outputs then.
    pub live: Option<SharedListener>,
}

impl RecordTarget {
    /// The process that is named.
    ///
    /// # Errors
    /// It cannot be recorded.
    pub fn new(options: Options) -> Result<Self, EngineError> {
        let process = Process::open(options.pid)?;
        let maps = process.maps()?;
        let explain = |error| EngineError::from(error).unless_gone(&process);
        let mut found = find_first_vms(&process, &maps).map_err(explain)?;
        let has = |vms: &[Vm], address| vms.iter().any(|vm: &Vm| vm.global == address);
        if found.may_have_more && options.vm.is_some_and(|address| !has(&found.vms, address)) {
            found = FirstVms { vms: find_vms(&process, &maps).map_err(explain)?, may_have_more: false };
        }
        let FirstVms { vms, may_have_more } = found;
        let only = options.vm.map(|address| choose(&options, &vms, address)).transpose()?;
        Ok(Self { options, process, maps, vms, may_have_more, only, live: None })
    }

    /// A process that has only begun: it has no VM yet, and is searched until it has one.
    ///
    /// # Errors
    /// It cannot be recorded.
    pub fn starting(options: Options) -> Result<Self, EngineError> {
        let process = Process::open(options.pid)?;
        let maps = process.maps()?;
        Ok(Self { options, process, maps, vms: Vec::new(), may_have_more: false, only: None, live: None })
    }

    /// One of several processes, in which these VMs were found. `options` are those of all.
    pub fn of_several(options: &Options, process: Process, maps: Maps, found: FirstVms) -> Self {
        let options = options.of_child(process.pid());
        let FirstVms { vms, may_have_more } = found;
        Self { options, process, maps, vms, may_have_more, only: None, live: None }
    }

    /// The VMs that are recorded, in the order of their numbers in the outputs: the only one that is recorded has none.
    pub fn recorded(&self) -> Vec<Vm> {
        let Self { vms, only, .. } = self;
        only.map_or_else(|| vms.clone(), |only| vms.get(only).cloned().into_iter().collect())
    }

    /// What people know it by: `nginx (pid 4242)`.
    pub fn name(&self) -> String {
        format!("{} (pid {})", self.process.command(), self.options.pid)
    }
}

/// The index of the VM at `address`.
fn choose(options: &Options, vms: &[Vm], address: u64) -> Result<usize, EngineError> {
    vms.iter().position(|vm| vm.global == address).ok_or_else(|| {
        let there: Vec<String> = vms.iter().map(|vm| format!("{:#x}", vm.global)).collect();
        let message = format!("process {} has no VM at {address:#x}: use --vm with {}", options.pid, there.join(", "));
        EngineError::new(Failure::NoLuajit, message)
    })
}

/// The processes that `options` are about.
///
/// # Errors
/// None of them can be recorded.
pub fn targets(options: &Options) -> Result<Vec<RecordTarget>, EngineError> {
    match &options.scope {
        Scope::One => {}
        Scope::Children => return children(options),
        Scope::These { pids, .. } => return Ok(with_vms(pids, options)),
        Scope::Host => return Ok(Vec::new()),
    }
    load_ahead(options);
    // Those that are running may not be the one that was named.
    match RecordTarget::new(options.clone()) {
        Ok(target) => {
            if target.vms.iter().all(|vm| vm.is_idle(&target.process.memory()))
                && let Some(workers) = workers(options.pid)
            {
                let name = target.name();
                let text = format!("lj-trace: {name} runs no Lua now, and looks like a master process: {workers}");
                say(Priority::Warning, &text);
            }
            Ok(vec![target])
        }
        Err(error) if error.failure == Failure::NoLuajit => match workers(options.pid) {
            Some(workers) => {
                let message = format!("{}. But processes that it started have one: {workers}", error.message);
                Err(EngineError::new(error.failure, message))
            }
            None => Err(error),
        },
        Err(error) => Err(error),
    }
}

/// Has the sampler loaded while the process is searched for its VMs. Whoever waits for a VM does without: what is loaded would
/// be there for as long.
fn load_ahead(options: &Options) {
    let wanted = options.wanted(1);
    if wanted.may_share()
        && options.testing.events == EventPlaces::Auto
        && let Ok(process) = Process::open(options.pid)
    {
        Programs::load_ahead(wanted, &process, options.rate);
    }
}

/// Names the processes with VMs that `pid` has started, and says how to record them; none if there are none.
fn workers(pid: u32) -> Option<String> {
    let has_vm = |pid: &u32| {
        let process = Process::open(*pid).ok()?;
        let maps = process.maps().ok()?;
        find_first_vms(&process, &maps).ok()
    };
    let workers: Vec<String> =
        descendants(pid).into_iter().filter(|pid| has_vm(pid).is_some()).map(|pid| pid.to_string()).collect();
    let first = workers.first()?;
    Some(format!(
        "{}. Record one of them (`--pid {first}`), or all at once (`--pid {pid} --children`)",
        workers.join(", ")
    ))
}

/// All processes with VMs that the named one has started.
///
/// # Errors
/// There are none.
pub fn children(options: &Options) -> Result<Vec<RecordTarget>, EngineError> {
    // If it is not there, that is what has to be said.
    let parent = Process::open(options.pid)?;
    let targets = with_vms(&descendants(options.pid), options);
    if targets.is_empty() {
        let (command, pid) = (parent.command(), options.pid);
        let message = format!(
            "process {pid} ({command}) has no running child with a LuaJIT VM: leave out --children to record the process \
             itself"
        );
        return Err(EngineError::new(Failure::NoLuajit, message));
    }
    Ok(targets)
}

/// Those of the processes that have a VM.
fn with_vms(pids: &[u32], options: &Options) -> Vec<RecordTarget> {
    let mut targets = Vec::new();
    for &pid in pids {
        let Ok(process) = Process::open(pid) else { continue };
        let Ok(maps) = process.maps() else { continue };
        match find_first_vms(&process, &maps) {
            Ok(found) => targets.push(RecordTarget::of_several(options, process, maps, found)),
            // A helper without Lua, or one that has just exited.
            Err(FindError::NoVm { .. } | FindError::Target(_)) => {}
            Err(error) => say(Priority::Warning, &format!("lj-trace: process {pid} is not recorded: {error}")),
        }
    }
    targets
}

/// The processes that `selector` chooses, and the options to record them with: one is recorded as if it had been named.
///
/// # Errors
/// There are none, or none of them has a VM.
pub fn selected(selector: &Selector, options: &Options) -> Result<(Options, Vec<RecordTarget>), EngineError> {
    let pids = selector.processes();
    let chosen = |pids: Vec<u32>| Options {
        pid: pids[0],
        scope: Scope::These { pids, what: selector.to_string() },
        ..options.clone()
    };
    if pids.is_empty() {
        let message = format!("there are no {selector}: `lj-trace list` shows the processes with LuaJIT");
        return Err(EngineError::new(Failure::NoProcess, message));
    }
    let several = chosen(pids.clone());
    let targets = targets(&several)?;
    match targets.len() {
        0 => {
            let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
            let message = format!("there are {selector}, but none has a LuaJIT VM: {}", pids.join(", "));
            Err(EngineError::new(Failure::NoLuajit, message))
        }
        1 => {
            let options = Options { pid: targets[0].process.pid(), scope: Scope::One, ..options.clone() };
            let targets = self::targets(&options)?;
            Ok((options, targets))
        }
        _ => Ok((several, targets)),
    }
}
