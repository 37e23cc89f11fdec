//! The processes to record: the named one, or its children.

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

/// A process to record.
pub struct RecordTarget {
    /// The options, with the process id and the file names of this process.
    pub options: Options,
    /// The process.
    pub process: Process,
    /// Its mappings.
    pub maps: Maps,
    /// Its VMs.
    pub vms: Vec<Vm>,
    /// Whether the process may have more VMs, because only a part of its memory was searched.
    pub may_have_more: bool,
    /// The index in `vms` of the only VM to record; [`None`] records all of them.
    pub only: Option<usize>,
    /// The listener for allocations, if the process is only observed. There are no outputs then.
    pub live: Option<SharedListener>,
}

impl RecordTarget {
    /// The target for the named process.
    ///
    /// # Errors
    /// The process cannot be recorded.
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

    /// The target for a process that has just started. It has no VM yet, and the session searches it until it has one.
    ///
    /// # Errors
    /// The process cannot be recorded.
    pub fn starting(options: Options) -> Result<Self, EngineError> {
        let process = Process::open(options.pid)?;
        let maps = process.maps()?;
        Ok(Self { options, process, maps, vms: Vec::new(), may_have_more: false, only: None, live: None })
    }

    /// The target for one of several processes, with the VMs that were found in it. `options` are the options of the
    /// session.
    pub fn of_several(options: &Options, process: Process, maps: Maps, found: FirstVms) -> Self {
        let options = options.of_child(process.pid());
        let FirstVms { vms, may_have_more } = found;
        Self { options, process, maps, vms, may_have_more, only: None, live: None }
    }

    /// The VMs to record, in the order of their numbers in the outputs. If only one VM is recorded, outputs give it no
    /// number.
    pub fn recorded(&self) -> Vec<Vm> {
        let Self { vms, only, .. } = self;
        only.map_or_else(|| vms.clone(), |only| vms.get(only).cloned().into_iter().collect())
    }

    /// The name of the process for the user: `nginx (pid 4242)`.
    pub fn name(&self) -> String {
        format!("{} (pid {})", self.process.command(), self.options.pid)
    }
}

/// The index of the VM at the `global_State` `address`.
fn choose(options: &Options, vms: &[Vm], address: u64) -> Result<usize, EngineError> {
    vms.iter().position(|vm| vm.global == address).ok_or_else(|| {
        let there: Vec<String> = vms.iter().map(|vm| format!("{:#x}", vm.global)).collect();
        let message = format!("process {} has no VM at {address:#x}: use --vm with {}", options.pid, there.join(", "));
        EngineError::new(Failure::NoLuajit, message)
    })
}

/// The processes that `options` select.
///
/// # Errors
/// None of the processes can be recorded.
pub fn targets(options: &Options) -> Result<Vec<RecordTarget>, EngineError> {
    match &options.scope {
        Scope::One => {}
        Scope::Children => return children(options),
        Scope::These { pids, .. } => return Ok(with_vms(pids, options)),
        Scope::Host => return Ok(Vec::new()),
    }
    load_ahead(options);
    // The named process may be a master that runs no Lua itself.
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

/// Loads the sampler while the search for VMs runs. Code that waits for a first VM does not call this: the programs would
/// stay loaded for the whole wait.
fn load_ahead(options: &Options) {
    let wanted = options.wanted(1);
    if wanted.may_share()
        && options.testing.events == EventPlaces::Auto
        && let Ok(process) = Process::open(options.pid)
    {
        Programs::load_ahead(wanted, &process, options.rate);
    }
}

/// Lists the processes with VMs that `pid` has started, and says how to record them; [`None`] if there are none.
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

/// All processes with VMs that the named process has started.
///
/// # Errors
/// The process has started none.
pub fn children(options: &Options) -> Result<Vec<RecordTarget>, EngineError> {
    // If the named process does not exist, the error has to say that.
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

/// The targets for those processes that have a VM.
fn with_vms(pids: &[u32], options: &Options) -> Vec<RecordTarget> {
    let mut targets = Vec::new();
    for &pid in pids {
        let Ok(process) = Process::open(pid) else { continue };
        let Ok(maps) = process.maps() else { continue };
        match find_first_vms(&process, &maps) {
            Ok(found) => targets.push(RecordTarget::of_several(options, process, maps, found)),
            // A helper process without Lua, or a process that has just exited.
            Err(FindError::NoVm { .. } | FindError::Target(_)) => {}
            Err(error) => say(Priority::Warning, &format!("lj-trace: process {pid} is not recorded: {error}")),
        }
    }
    targets
}

/// The processes that `selector` chooses, and the options to record them with. A single process is recorded as if the user
/// had named it.
///
/// # Errors
/// The selector matches no process, or none of the processes has a VM.
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
