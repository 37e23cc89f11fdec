//! All LuaJIT processes of this host.
//!
//! Searching all memory of all processes would take too long. So lj-trace examines only processes that contain LuaJIT's
//! code; `code` finds this out reliably, and only once for each file.

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
    /// The processes, highest CPU use first.
    pub processes: Vec<ListedProcess>,
    /// How many processes were examined.
    pub looked_at: usize,
    /// How many processes could not be examined for lack of privileges.
    pub not_permitted: usize,
    /// The processes that took longer than the time limit.
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
    /// The rest of its title, if the program has set one: `worker`, `shop.lua <running>`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Its CPU use in percent of one CPU, over some tenths of a second; [`None`] if it has exited meanwhile.
    pub cpu: Option<f64>,
    /// Its arguments, beginning with the program.
    pub arguments: Vec<String>,
    /// Its resident memory, in bytes.
    pub rss: u64,
    /// Its VMs, by address.
    pub vms: Vec<ListedVm>,
    /// Whether it may have more VMs, because not all of its memory was searched.
    pub may_have_more: bool,
    /// Why its VMs are unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A VM.
#[derive(Clone, Debug, Serialize)]
pub struct ListedVm {
    /// The VM's kind and contents.
    #[serde(flatten)]
    pub summary: VmSummary,
    /// What it is executing; [`None`] if its host is not calling into it at the moment.
    #[serde(rename = "doing")]
    pub activity: Option<Activity>,
}

/// The time limit for the list: a process may stall whoever reads it, or have memory full of data that looks like VMs.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// The least time over which CPU use is measured.
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
        // Not joined: a thread that takes too long ends with this program.
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

/// The result of examining a process.
enum Outcome {
    /// A process with LuaJIT, and its CPU time at a moment.
    LuaJit(Box<ListedProcess>, Option<UsedTime>),
    Other,
    NotPermitted,
    /// A kernel thread, a zombie, or a process that has just exited.
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

/// Measures the CPU use of processes since they were examined.
fn measure(processes: Vec<(ListedProcess, Option<UsedTime>)>) -> Vec<ListedProcess> {
    // Examining the other processes has taken a part of the interval.
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
        // Another process may have the number by now. No cheap check could tell them apart, and a list shows a moment
        // only.
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
        // The process has LuaJIT's code, but does not use it.
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

/// The kind of a VM, and what it is executing; [`None`] if it was closed meanwhile.
fn listed(process: &Process, maps: &Maps, vm: &Vm) -> Option<ListedVm> {
    let memory = process.memory();
    let status = VmStatus::read(&memory, vm).ok()?;
    // This reads many small fields and strings that hardly ever change, so it reads each page once.
    let summary = VmSummary::read(&PageCache::new(&memory), maps, vm, Some(&status));
    Some(ListedVm { summary, activity: activity(&memory, vm, &status) })
}

/// The name by which people know a process: its command, with its role if its title has one: `nginx: worker`.
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
