//! Threads that start after lj-trace, or while it attaches, are sampled, and each once.

use std::thread;

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::chance::{of_percent, of_weighted_count};
use lj_trace_tests::pauses::Pauses;
use lj_trace_tests::programs::{LUAJIT, Program};
use lj_trace_tests::recording::{Recorded, Recording};
use lj_trace_tests::usage::{cpu_time, stolen};
use lj_trace_tests::workload::Workload;

/// Every thread runs in a VM of its own and uses a known CPU time.
const THREADS: &str = "threads.lua";
/// Samples a second.
const RATE: u32 = 999;

fn start(count: u32, seconds: f64) -> Result<Workload> {
    let program = Program::find(LUAJIT).expect("the demo's luajit is everywhere");
    Workload::start(&program, THREADS, &[&count.to_string(), &seconds.to_string()])
}

/// What a process has used so far.
#[derive(Clone, Copy)]
struct Used {
    /// CPU time, in seconds.
    cpu: f64,
    /// The time that the machine's CPUs were taken away, in seconds.
    stolen: f64,
    /// The time that all of the machine stood still, in seconds.
    paused: f64,
}

impl Used {
    fn by(workload: &Workload) -> Result<Self> {
        Ok(Self { cpu: cpu_time(workload.pid())?, stolen: stolen()?, paused: 0.0 })
    }

    fn since(self, before: Self) -> Self {
        Self { cpu: self.cpu - before.cpu, stolen: self.stolen - before.stolen, paused: 0.0 }
    }
}

/// Checks that a thread's samples are as many as its CPU time has: for each thread, and for all of the process.
fn expect_each_once(recorded: &Recorded, report: &[String], process: Used) -> Result<()> {
    let mut failures = Vec::new();
    let cpus = thread::available_parallelism()?.get() as f64;
    let mut check = |what: &str, seconds: f64, samples: u64, at_once: f64| {
        let least = (seconds - process.paused * at_once).max(0.0);
        let [least, most] = [least, seconds + process.stolen].map(|seconds| seconds * f64::from(RATE));
        // As if the samples fell at random: they do better, but the scheduler cuts a thread's time into pieces of which none may
        // hold a whole period.
        let tolerance = of_weighted_count(most, recorded.outcome.weight());
        let verdict = format!("{what}: {samples} samples, expected {least:.0} to {most:.0}, tolerance {tolerance:.0}");
        println!("{verdict}");
        if !(least - tolerance..=most + tolerance).contains(&(samples as f64)) {
            failures.push(verdict);
        }
    };
    for line in report {
        let numbers = line.strip_prefix("thread ").and_then(|line| line.split_once(' '));
        let (number, seconds) = numbers.with_context(|| format!("the workload reported {line:?}"))?;
        let file = format!("@thread{number}.lua:");
        let is_its = |frame: &String| frame.contains(&file);
        let samples = recorded.folded.samples_where(|stack| stack.frames.iter().any(is_its));
        check(&format!("thread {number}"), seconds.parse()?, samples, 1.0);
    }
    check("all threads", process.cpu, recorded.folded.samples(), cpus);
    ensure!(failures.is_empty(), "\n{}\n{}", failures.join("\n"), recorded.outcome.stderr);
    for what in ["Lua complete", "native complete"] {
        let share = recorded.share(what)?;
        let least = 99.5 - of_percent(99.5, recorded.taken());
        ensure!(share >= least, "{what}: {share}%, less than {least}%");
    }
    Ok(())
}

#[test]
fn with_vms_that_come_into_being_after_lj_trace() -> Result<()> {
    check_late("auto")
}

#[test]
fn with_such_vms_where_events_are_on_threads() -> Result<()> {
    check_late("threads")
}

fn check_late(events: &str) -> Result<()> {
    /// How long it may take to find them, together, once they run.
    const SEARCH: f64 = 1.0;
    let program = Program::find(LUAJIT).expect("the demo's luajit is everywhere");
    let (count, seconds) = (4, 1.0);
    let mut workload = Workload::start(&program, THREADS, &[&count.to_string(), &seconds.to_string(), "late"])?;
    let recording = Recording::attached(&workload, &["--rate", &RATE.to_string(), "--events", events])?;
    workload.go()?;
    workload.expect("started")?;
    let (before, pauses) = (stolen()?, Pauses::watch());
    workload.go()?;
    let report = workload.report()?;
    let (paused, stolen) = (pauses.end() * thread::available_parallelism()?.get() as f64, stolen()? - before);
    let recorded = recording.stop()?;
    let is_late = |frame: &String| frame.contains("@thread");
    let samples = recorded.folded.samples_where(|stack| stack.frames.iter().any(is_late));
    let used: f64 = report.iter().filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum();
    let [least, most] = [used - SEARCH - paused, used + stolen].map(|seconds| seconds * f64::from(RATE));
    let tolerance = of_weighted_count(most, recorded.outcome.weight());
    let samples = samples as f64;
    let is_right = (least - tolerance..most + tolerance).contains(&samples);
    ensure!(is_right, "{samples} samples of {least:.0} to {most:.0}\n{}", recorded.outcome.stderr);
    // Each has a stream of its own, after that of the VM that was there.
    for number in 1..=count + 1 {
        let name = if number == 1 { "profile.bin".to_owned() } else { format!("profile-{number}.bin") };
        ensure!(recorded.outcome.stderr.contains(&name), "no {name}:\n{}", recorded.outcome.stderr);
    }
    Ok(())
}

#[test]
fn that_start_after_lj_trace() -> Result<()> {
    let mut workload = start(8, 0.5)?;
    let recording = Recording::attached(&workload, &["--rate", &RATE.to_string()])?;
    let (before, pauses) = (Used::by(&workload)?, Pauses::watch());
    workload.go()?;
    workload.expect("started")?;
    workload.go()?;
    let report = workload.report()?;
    let used = Used { paused: pauses.end(), ..Used::by(&workload)?.since(before) };
    expect_each_once(&recording.stop()?, &report, used)
}

#[test]
fn that_start_while_lj_trace_attaches() -> Result<()> {
    // One a millisecond, so that they start for longer than it takes to attach.
    let mut workload = start(200, 0.05)?;
    workload.go()?;
    let mut recording = Recording::start(&workload, &["--rate", &RATE.to_string()])?;
    workload.expect("started")?;
    recording.tracer.wait_until_attached()?;
    // So far they have only waited.
    let (before, pauses) = (Used::by(&workload)?, Pauses::watch());
    workload.go()?;
    let report = workload.report()?;
    let used = Used { paused: pauses.end(), ..Used::by(&workload)?.since(before) };
    expect_each_once(&recording.stop()?, &report, used)
}
