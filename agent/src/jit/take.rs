//! Makes a JIT report: watches a process for a while, then reads everything.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use lj_trace_engine::Recording;
use lj_trace_engine::error::EngineError;
use lj_trace_engine::recording::budget::{self, Budget};
use lj_trace_luajit::jit::{AbortWatch, JitQuery, JitReport};
use lj_trace_luajit::status::VmSummary;
use lj_trace_luajit::{Vm, VmStatus, prove_again};
use lj_trace_process::{Process, TargetError};

use super::samples::TimeSamples;
use super::shares::TimeReport;
use super::{JitDump, VmJit};

/// The time between two readings of the penalties. A reading takes some µs.
const BETWEEN_READINGS: Duration = Duration::from_millis(1);

/// How long to search a VM's heap for functions.
const HEAP_LIMIT: Duration = Duration::from_secs(2);

/// What watching a process for some time has shown.
#[derive(Default)]
pub struct WatchedProcess {
    /// How long it was watched.
    pub time: Duration,
    /// The aborts, by the address of their VM.
    pub aborts: Vec<(u64, AbortWatch)>,
    /// The samples, if there are any.
    pub samples: Option<WatchedSamples>,
    /// Why there are no samples.
    pub no_samples: Option<String>,
}

/// CPU samples from that time.
pub struct WatchedSamples {
    /// Samples a second.
    pub rate: u32,
    /// All samples.
    pub samples: TimeSamples,
    /// Samples that were lost, by reason.
    pub lost: Vec<(&'static str, u64)>,
}

/// Watches `vms` for `duration`, until the process ends, or until `interrupted` returns true; `interrupted` also does
/// the waiting between checks. With a `recording`, all its samples are read. `ready` is called once watching has begun.
///
/// # Errors
/// Samples cannot be taken any more.
pub fn watch(
    process: &Process,
    vms: &[Vm],
    duration: Duration,
    mut recording: Option<&mut Recording>,
    ready: impl FnOnce(),
    interrupted: impl Fn(Duration) -> bool,
) -> Result<(TimeSamples, WatchedProcess), EngineError> {
    let (began, over) = (Instant::now(), AtomicBool::new(false));
    let mut samples = TimeSamples::default();
    let mut outcome = Ok(());
    let memory = process.memory();
    let watches: Vec<_> = vms.iter().map(|vm| AbortWatch::start(&memory, vm).ok()).collect();
    ready();
    // A thread of its own: resolving a sample takes longer than the time between two readings of the penalties.
    let aborts = thread::scope(|scope| {
        let aborts = scope.spawn(|| watch_aborts(process, vms, watches, &over));
        while outcome.is_ok() && began.elapsed() < duration && process.is_alive() {
            let rest = duration.saturating_sub(began.elapsed());
            let interval = Recording::until_next_poll(recording.as_deref()).unwrap_or(Duration::from_millis(50));
            if interrupted(interval.min(rest)) {
                break;
            }
            if let Some(recording) = recording.as_deref_mut() {
                outcome = recording.drain(Some(&mut samples), Budget::new(budget::LOOK)).map(drop);
            }
        }
        over.store(true, Ordering::Relaxed);
        if let Some(recording) = recording {
            recording.detach();
            let drained = recording.drain_all(Some(&mut samples), Budget::new(budget::END));
            outcome = std::mem::replace(&mut outcome, Ok(())).and(drained);
        }
        aborts.join().unwrap_or_default()
    });
    outcome?;
    Ok((samples, WatchedProcess { time: began.elapsed(), aborts, ..WatchedProcess::default() }))
}

/// Watches all VMs whose penalties can be read, until the time is over.
fn watch_aborts(
    process: &Process,
    vms: &[Vm],
    mut watches: Vec<Option<AbortWatch>>,
    over: &AtomicBool,
) -> Vec<(u64, AbortWatch)> {
    let memory = process.memory();
    while !over.load(Ordering::Relaxed) {
        sleep(BETWEEN_READINGS);
        for (vm, watch) in vms.iter().zip(&mut watches) {
            if let Some(watch) = watch {
                // The data of a VM that is gone stays as it was.
                let _ = watch.look(&memory, vm);
            }
        }
    }
    vms.iter().zip(watches).filter_map(|(vm, watch)| Some((vm.global, watch?))).collect()
}

/// Reads `vms` of `process`, after what was `watched`; includes the lines of `file`.
///
/// # Errors
/// [`TargetError`] if the process cannot be read, or is gone.
pub fn take(
    process: &Process,
    mut vms: Vec<Vm>,
    watched: Option<WatchedProcess>,
    file: Option<&str>,
) -> Result<JitDump, TargetError> {
    let (memory, maps) = (process.memory(), process.maps()?);
    let began = Instant::now();
    let mut shown = Vec::with_capacity(vms.len());
    let samples = watched.as_ref().and_then(|watched| watched.samples.as_ref());
    for vm in &mut vms {
        // Traces that it has compiled since it was found may settle the rest of its layout.
        if vm.leaves_traces_open()
            && let Ok(proven) = prove_again(process, &maps, vm)
        {
            *vm = proven;
        }
        let watch = watched.iter().flat_map(|watched| &watched.aborts).find(|(address, _)| *address == vm.global);
        let query = JitQuery {
            limit: HEAP_LIMIT,
            watch: watch.map(|(_, watch)| watch),
            samples: samples.map(|samples| &samples.samples.code),
            file,
        };
        let jit_compiler = JitReport::read(&memory, &maps, vm, query);
        let status = VmStatus::read(&memory, vm).ok();
        let summary =
            VmSummary { traces: jit_compiler.traces.len(), ..VmSummary::read(&memory, &maps, vm, status.as_ref()) };
        shown.push(VmJit { summary, jit_compiler });
    }
    let milliseconds = began.elapsed().as_secs_f64() * 1000.0;
    let watched_seconds = watched.as_ref().map(|watched| watched.time.as_secs_f64());
    let no_samples = watched.as_ref().and_then(|watched| watched.no_samples.clone());
    let time = watched.and_then(|watched| watched.samples).map(|WatchedSamples { rate, samples, lost }| {
        let found = shown.iter_mut().map(|vm| std::mem::take(&mut vm.jit_compiler.interpreted));
        TimeReport::new(rate, &samples, lost, found.collect())
    });
    let (pid, command) = (process.pid(), process.command());
    Ok(JitDump { pid, command, watched_seconds, time, no_samples, vms: shown, milliseconds })
}
