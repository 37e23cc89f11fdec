//! All LuaJIT processes of this host.
//!
//! Looking through all memory of all processes would take too long. So only processes are looked at that have
//! LuaJIT's code in them at all, which `code` tells for certain, and once for each file.

mod code;
pub mod doing;
mod role;
pub mod text;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use serde::Serialize;

pub use code::CodeFiles;
pub use doing::Activity;
use doing::activity;
use lj_trace_luajit::page_cache::PageCache;
use lj_trace_luajit::status::VmSummary;
use lj_trace_luajit::{FindError, FirstVms, Vm, VmStatus, find_first_vms};
use lj_trace_process::clocks::cpu_time;
use lj_trace_process::{Maps, Process, TargetError, proc_file};

/// The LuaJIT processes of this host.
#[derive(Clone, Debug, Serialize)]
pub struct Listing {
    /// Them, those that use the CPU most first.
    pub processes: Vec<ListedProcess>,
    /// How many processes were looked at.
    pub looked_at: usize,
    /// How many could not be looked at, for lack of privileges.
    pub not_permitted: usize,
    /// Those that were not done with when the time was over.
    pub too_slow: Vec<u32>,
    /// How long all of it took, in milliseconds.
    pub milliseconds: f64,
}

/// A process with LuaJIT in it.
#[derive(Clone, Debug, Serialize)]
pub struct ListedProcess {
    /// Its id.
    pub pid: u32,
    /// Its command name.
    pub command: String,
    /// What its title says of it beside that, if the program has set one: `worker`, `shop.lua <running>`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// The CPU time that it used, in percent of one CPU, over some tenths of a second; [`None`] if it has exited meanwhile.
    pub cpu: Option<f64>,
    /// Its arguments, from the program on.
    pub arguments: Vec<String>,
    /// Its memory that is not swapped out, in bytes.
    pub rss: u64,
    /// Its VMs, by address.
    pub vms: Vec<ListedVm>,
    /// Whether it may have others, since not all of its memory was searched.
    pub may_have_more: bool,
    /// Why its VMs cannot be told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A VM.
#[derive(Clone, Debug, Serialize)]
pub struct ListedVm {
    /// What it is and has.
    #[serde(flatten)]
    pub summary: VmSummary,
    /// What it executes; [`None`] if its host does not call it at the moment.
    #[serde(rename = "doing")]
    pub activity: Option<Activity>,
}

/// Nobody waits longer for a list: a process may keep another that reads it waiting, or have memory full of what looks
/// like VMs.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// CPU time is measured over so long, at least.
const CPU_INTERVAL: Duration = Duration::from_millis(200);

/// Lists all processes of this host that have a LuaJIT VM.
pub fn list() -> Listing {
    let started = Instant::now();
    let own = std::process::id();
    let pids = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids: Vec<u32> =
        pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(|pid| *pid != own).collect();
    let mut left: BTreeSet<u32> = pids.iter().copied().collect();
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(pids.len().max(1));
    let work = Arc::new((pids, AtomicUsize::new(0), CodeFiles::default()));
    let (sender, outcomes) = mpsc::channel();
    for _ in 0..workers {
        let (work, sender) = (Arc::clone(&work), sender.clone());
        // Not waited for: what takes too long ends with this program.
        std::thread::spawn(move || {
            let (pids, next, files) = &*work;
            while let Some(&pid) = pids.get(next.fetch_add(1, Ordering::Relaxed)) {
                if sender.send((pid, look(pid, files))).is_err() {
                    return;
                }
            }
        });
    }
    drop(sender);
    let (mut processes, mut looked_at, mut not_permitted) = (Vec::new(), 0, 0);
    while let Ok((pid, outcome)) = outcomes.recv_timeout(TIME_LIMIT.saturating_sub(started.elapsed())) {
        left.remove(&pid);
        match outcome {
            Outcome::LuaJit(process, used) => {
                looked_at += 1;
                processes.push((*process, used));
            }
            Outcome::Other => looked_at += 1,
            Outcome::NotPermitted => not_permitted += 1,
            Outcome::NoProgram => {}
        }
    }
    let mut processes = measure(processes);
    processes.sort_by(|a, b| b.cpu.unwrap_or(0.0).total_cmp(&a.cpu.unwrap_or(0.0)).then(a.pid.cmp(&b.pid)));
    let milliseconds = started.elapsed().as_secs_f64() * 1000.0;
    Listing { processes, looked_at, not_permitted, too_slow: left.into_iter().collect(), milliseconds }
}

/// What a process is.
enum Outcome {
    /// One with LuaJIT, and what it had used of the CPU at a moment.
    LuaJit(Box<ListedProcess>, Option<UsedTime>),
    Other,
    NotPermitted,
    /// A kernel thread, a zombie, or one that has just exited.
    NoProgram,
}

/// The CPU time of a process at a moment, in seconds.
#[derive(Clone, Copy, Debug)]
struct UsedTime {
    at: Instant,
    seconds: f64,
}

impl UsedTime {
    fn of(pid: u32) -> Option<Self> {
        let seconds = cpu_time(pid)?;
        Some(Self { at: Instant::now(), seconds })
    }
}

/// Measures what processes use of the CPU, since they were looked at.
fn measure(processes: Vec<(ListedProcess, Option<UsedTime>)>) -> Vec<ListedProcess> {
    // Looking at the others has taken some of the time.
    let last = processes.iter().filter_map(|(_, used)| Some(used.as_ref()?.at)).max();
    if let Some(last) = last {
        std::thread::sleep((last + CPU_INTERVAL).saturating_duration_since(Instant::now()));
    }
    let measured = processes.into_iter().map(|(mut process, before)| {
        let used = before.and_then(|before| {
            let now = UsedTime::of(process.pid)?;
            let time = now.at.saturating_duration_since(before.at).as_secs_f64();
            Some((now.seconds - before.seconds).max(0.0) / time)
        });
        // Another process may have the number by now: it is told apart by nothing that is cheap, and a list is of a moment.
        process.cpu = used.filter(|used| used.is_finite()).map(|used| (used * 1000.0).round() / 10.0);
        process
    });
    measured.collect()
}

fn look(pid: u32, files: &CodeFiles) -> Outcome {
    let process = match Process::open(pid) {
        Ok(process) => process,
        Err(TargetError::NotPermitted { .. }) => return Outcome::NotPermitted,
        Err(_) => return Outcome::NoProgram,
    };
    let Ok(maps) = process.maps() else { return Outcome::NoProgram };
    if !files.any_in(&process, &maps) {
        return Outcome::Other;
    }
    let (first, error) = match find_first_vms(&process, &maps) {
        Ok(first) => (first, None),
        // It has LuaJIT's code, but does not use it.
        Err(FindError::NoVm { .. } | FindError::Target(_)) => return Outcome::Other,
        Err(error) => (FirstVms { vms: Vec::new(), may_have_more: false }, Some(error.to_string())),
    };
    let maps = process.maps().unwrap_or(maps);
    let (command, line) = (process.command(), proc_file::read(format!("/proc/{pid}/cmdline")).unwrap_or_default());
    let listed = Box::new(ListedProcess {
        pid,
        role: role::role(&line, &command),
        command,
        cpu: None,
        arguments: arguments(&line),
        rss: process.rss(),
        vms: first.vms.iter().filter_map(|vm| listed(&process, &maps, vm)).collect(),
        may_have_more: first.may_have_more,
        error,
    });
    Outcome::LuaJit(listed, UsedTime::of(pid))
}

/// What a VM is and does; [`None`] if it was closed meanwhile.
fn listed(process: &Process, maps: &Maps, vm: &Vm) -> Option<ListedVm> {
    let memory = process.memory();
    let status = VmStatus::read(&memory, vm).ok()?;
    // Many small fields and strings that hardly ever change: each page is read once.
    let summary = VmSummary::read(&PageCache::new(&memory), maps, vm, Some(&status));
    Some(ListedVm { summary, activity: activity(&memory, vm, &status) })
}

/// What people know a process by: its command, with its role if its title says one: `nginx: worker`.
pub fn title(process: &Process) -> String {
    let line = proc_file::read(format!("/proc/{}/cmdline", process.pid())).unwrap_or_default();
    let command = process.command();
    match role::role(&line, &command) {
        Some(role) => format!("{command}: {role}"),
        None => command,
    }
}

fn arguments(line: &[u8]) -> Vec<String> {
    let bytes = line.strip_suffix(&[0]).unwrap_or(line);
    bytes.split(|byte| *byte == 0).map(|argument| String::from_utf8_lossy(argument).into_owned()).collect()
}
