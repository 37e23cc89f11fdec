//! Time off the CPU: the program that sees context switches, attached once for all processes that share it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::sync::Arc;

use anyhow::Context as _;
use aya::programs::BtfTracePoint;
use aya::programs::iter::Iter;
use aya::{Btf, Ebpf};
use lj_trace_common::off_cpu::{DEFAULT_THRESHOLD, OffCpuProcess, WaitingTask};
use lj_trace_process::{Process, namespace};

use super::error::ProbeError;
use super::kernel_places;
use super::off_cpu_threads;
use super::programs::Programs;
use super::sample::plain;
use super::set::{Set, lock, map_mut};
use super::switching_processes;

/// A process whose time off the CPU is recorded as long as this value lives.
pub struct OffCpu {
    set: Arc<Set>,
    pid: u32,
    number: u32,
    threshold: u64,
    began: u64,
    /// An iterator of the kernel: reading it lists the threads that are off the CPU. It can be read once.
    tasks: Option<File>,
}

/// A thread that was off the CPU when recording ended.
#[derive(Clone, Debug)]
pub struct UnderWay {
    /// Its registers and its kernel stack.
    pub task: WaitingTask,
    /// Since when it was off the CPU, in nanoseconds of `CLOCK_MONOTONIC`; not before recording began.
    pub since: u64,
    /// For how many more nanoseconds its stack stands: those of earlier waits whose stacks were not walked in time.
    pub pending: u64,
    /// Whether it was off the CPU during the whole recording.
    pub all_the_time: bool,
    /// The turn of its event loop that it is in; 0 if it is in none, or turns are not recorded.
    pub turn: u64,
}

impl OffCpu {
    /// Prepares to record `process`; [`begin`](Self::begin) starts it.
    ///
    /// # Errors
    /// [`ProbeError::Refused`] by the kernel: before Linux 6.18, or from within a PID namespace.
    pub fn attach(programs: &Programs, process: &Process) -> Result<Self, ProbeError> {
        let (set, number) = programs.set();
        attach_once(&set).map_err(ProbeError::sort)?;
        // Open the iterator now: lj-trace may give up the privileges for it later.
        let tasks = Some(tasks_file(&mut set.ebpf()).map_err(ProbeError::sort)?);
        Ok(Self { set, pid: process.pid(), number, threshold: DEFAULT_THRESHOLD, began: 0, tasks })
    }

    /// Starts recording: time off the CPU counts from `now` on, in nanoseconds of `CLOCK_MONOTONIC`.
    ///
    /// # Errors
    /// [`ProbeError::Refused`] if the kernel does not take it.
    pub fn begin(&mut self, now: u64) -> Result<(), ProbeError> {
        self.began = now;
        let process = OffCpuProcess {
            began: now,
            threshold: self.threshold,
            over: 0,
            turn_after: 0,
            number: self.number,
            pid: self.pid,
        };
        let mut ebpf = self.set.ebpf();
        switching_processes::add(&mut ebpf, &process).map_err(ProbeError::sort)
    }

    /// Waits shorter than this many nanoseconds are sampled at random; longer ones are all recorded.
    pub fn threshold(&self) -> u64 {
        self.threshold
    }

    /// When recording began, in nanoseconds of `CLOCK_MONOTONIC`.
    pub fn began(&self) -> u64 {
        self.began
    }

    /// Ends recording: no context switch counts from here on.
    pub fn end(&self) {
        forget_process(&self.set, self.pid);
    }

    /// For each thread that is alive: how often it has been off the CPU, and for how many nanoseconds. Waits that have
    /// not ended do not count.
    pub fn waited(&self) -> BTreeMap<u32, (u64, u64)> {
        let own = off_cpu_threads::of_process(&mut self.set.ebpf(), self.number);
        own.into_iter().map(|(tid, of)| (tid, (of.waits, of.waited))).collect()
    }

    /// The threads that were off the CPU when recording ended and still are. Only the first call returns them.
    ///
    /// # Errors
    /// The kernel does not list the threads.
    pub fn under_way(&mut self) -> anyhow::Result<Vec<UnderWay>> {
        let Some(file) = self.tasks.take() else { return Ok(Vec::new()) };
        let mut ebpf = self.set.ebpf();
        let tasks = waiting_tasks(&mut ebpf, self.pid, file)?;
        let mut of = |task: WaitingTask| match off_cpu_threads::get(&mut ebpf, task.tid) {
            // The thread was running when recording ended.
            Some(known) if known.since == 0 => None,
            Some(known) => {
                let (since, pending) = (known.since.max(self.began), known.pending);
                let turn = if known.turn_began == 0 { 0 } else { known.turn };
                Some(UnderWay { since, pending, task, all_the_time: false, turn })
            }
            // The programs never saw the thread: it has been waiting since before recording, or since it started.
            None => {
                let all_the_time = task.started <= self.began;
                let since = task.started.max(self.began);
                Some(UnderWay { since, pending: 0, task, all_the_time, turn: 0 })
            }
        };
        Ok(tasks.into_iter().filter_map(&mut of).collect())
    }
}

impl Drop for OffCpu {
    fn drop(&mut self) {
        self.end();
        forget_threads(&self.set, self.number);
    }
}

/// Stops counting context switches and turns of a process.
pub(super) fn forget_process(set: &Set, pid: u32) {
    // An error means that the process never began.
    let _ = switching_processes::remove(&mut set.ebpf(), pid);
}

/// Forgets the threads of the process with this number in the set.
pub(super) fn forget_threads(set: &Set, number: u32) {
    off_cpu_threads::forget(&mut set.ebpf(), number);
}

/// Checks that this kernel and this PID namespace allow recording time off the CPU.
///
/// # Errors
/// They do not, and why.
pub fn check() -> anyhow::Result<()> {
    anyhow::ensure!(
        namespace::is_initial(),
        "lj-trace is in a PID namespace of its own, where numbers of threads are not the kernel's: in a container, give it that \
         of the host (--pid host, hostPID)"
    );
    kernel_places::try_it()
}

/// Attaches the program for context switches, unless it is attached, and loads the iterator's program.
///
/// # Errors
/// The kernel refuses one of them, and why.
fn attach_once(set: &Set) -> anyhow::Result<()> {
    let mut switches = lock(&set.switches);
    if switches.is_none() {
        let mut ebpf = set.ebpf();
        let types = Btf::from_sys_fs()?;
        let program: &mut Iter = ebpf.program_mut("waiting_tasks").context("no waiting_tasks")?.try_into()?;
        program.load("task", &types)?;
        let program: &mut BtfTracePoint =
            ebpf.program_mut("off_cpu_switch").context("no off_cpu_switch")?.try_into()?;
        program.load("sched_switch", &types)?;
        let link = program.attach()?;
        *switches = Some(program.take_link(link)?);
    }
    Ok(())
}

/// The threads of a process that are off the CPU now.
fn waiting_tasks(ebpf: &mut Ebpf, pid: u32, mut file: File) -> anyhow::Result<Vec<WaitingTask>> {
    let mut wanted = aya::maps::Array::<_, u32>::try_from(map_mut(ebpf, "ITERATED")?)?;
    wanted.set(0, &pid, 0)?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes.chunks_exact(size_of::<WaitingTask>()).filter_map(plain).collect())
}

/// Opens the file that lists threads when it is read.
fn tasks_file(ebpf: &mut Ebpf) -> anyhow::Result<File> {
    let program: &mut Iter = ebpf.program_mut("waiting_tasks").context("no waiting_tasks")?.try_into()?;
    let link = program.attach()?;
    Ok(program.take_link(link)?.into_file()?)
}
