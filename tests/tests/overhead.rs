//! What recording costs the program is said at the end, as it is; and a memory profile that costs too much ends.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::allocations::Allocations;
use lj_trace_tests::code;
use lj_trace_tests::programs::{LUAJIT, Program};
use lj_trace_tests::tracer::{Outcome, Tracer};
use lj_trace_tests::workload::{PACE, STORM, Workload};

/// What the summary begins with when it was too dear.
const STOPPED: &str = "stopped because it cost the process too much";

/// A program at work, and lj-trace that records it.
struct Recorded {
    workload: Workload,
    tracer: Tracer,
    folder: tempfile::TempDir,
}

impl Recorded {
    fn start(script: &str, arguments: &[&str], mode: &str, more: &[&str]) -> Result<Self> {
        let program = Program::find(LUAJIT).expect("the demo's luajit is everywhere");
        let folder = tempfile::tempdir()?;
        let workload = Workload::start(&program.copy_to(folder.path())?, script, arguments)?;
        Self::attach(workload, folder, mode, more)
    }

    fn attach(mut workload: Workload, folder: tempfile::TempDir, mode: &str, more: &[&str]) -> Result<Self> {
        let (pid, output) = (workload.pid().to_string(), folder.path().join("profile.bin"));
        let arguments = ["--pid", &pid, "--mode", mode, "--output", &output.to_string_lossy()];
        let mut tracer = Tracer::start(arguments.iter().chain(more))?;
        tracer.wait_until_attached()?;
        workload.go()?;
        Ok(Self { workload, tracer, folder })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

/// The shares of its CPU time that the summary says it has cost the program, in the order of the profiles.
fn told(outcome: &Outcome) -> Result<Vec<f64>> {
    let share = |line: &str| {
        let (_, rest) = line.strip_prefix("  cost to it ")?.split_once(" s, ")?;
        rest.split_once('%')?.0.parse::<f64>().ok().map(|percent| percent / 100.0)
    };
    let shares: Vec<f64> = outcome.stderr.lines().filter_map(share).collect();
    ensure!(!shares.is_empty(), "the summary does not tell the cost: {}", outcome.stderr);
    Ok(shares)
}

#[test]
fn a_program_that_does_nothing_but_allocate_is_spared() -> Result<()> {
    let recorded = Recorded::start(STORM, &[], "memprof", &[])?;
    let stream = recorded.file("profile.bin");
    let outcome = recorded.tracer.wait()?;
    // What there is, is whole.
    outcome.expect(0, &[STOPPED, "--overhead 5%", "--max-overhead", "--no-limit", "lost               0"]);
    let events = Allocations::read(&stream)?;
    events.check_addresses()?;
    println!("{} events, {:.0}% told", events.events.len(), told(&outcome)?[0] * 100.0);
    ensure!(!events.events.is_empty());
    let left = code::differences(recorded.workload.pid())?;
    ensure!(left.is_empty(), "left behind: {left:?}");
    Ok(())
}

#[test]
fn the_cpu_profile_goes_on_without_the_memory_profile() -> Result<()> {
    let recorded = Recorded::start(STORM, &[], "all", &["--duration", "4s"])?;
    let streams = [recorded.file("profile.sysprof.bin"), recorded.file("profile.memprof.bin")];
    let outcome = recorded.tracer.wait()?;
    outcome.expect(0, &["finished: recorded 4", STOPPED]);
    let [cpu, memory] = told(&outcome)?[..] else { anyhow::bail!("not two costs: {}", outcome.stderr) };
    ensure!(cpu < memory, "{cpu} of the CPU profile, {memory} of the other");
    for stream in streams {
        let report = lj_trace_tests::tracer::run(["report", &stream.to_string_lossy()])?;
        report.expect(0, &[]);
        ensure!(!report.stderr.contains("warning"), "{}", report.stderr);
    }
    Ok(())
}

#[test]
fn the_cost_is_what_the_program_feels() -> Result<()> {
    let program = Program::find(LUAJIT).expect("the demo's luajit is everywhere");
    let folder = tempfile::tempdir()?;
    let mut workload = Workload::start(&program.copy_to(folder.path())?, PACE, &["500"])?;
    workload.go()?;
    let alone = workload.fastest_turn()?;
    let mut recorded = Recorded::attach(workload, folder, "memprof", &["--no-limit"])?;
    let during = recorded.workload.fastest_turn()?;
    recorded.tracer.signal(libc::SIGINT)?;
    let outcome = recorded.tracer.wait()?;
    outcome.expect(0, &["stopped by a signal", "lost               0"]);
    let (felt, told) = (1.0 - alone / during, told(&outcome)?[0]);
    println!("a turn took {alone} s, and {during} s recorded: {felt:.3} of that felt, {told:.3} told");
    ensure!(felt > 0.1, "the workload does not feel it at all");
    // Other work on this machine makes both uncertain, but not by as much as this.
    ensure!((0.5..2.0).contains(&(told / felt)), "{felt:.3} of its CPU time, and {told:.3} told: {}", outcome.stderr);
    Ok(())
}

#[test]
fn a_program_that_allocates_now_and_then_is_recorded_to_the_end() -> Result<()> {
    let recorded = Recorded::start(PACE, &["50000"], "memprof", &["--duration", "3s"])?;
    let outcome = recorded.tracer.wait_for(Duration::from_secs(30))?;
    outcome.expect(0, &["finished: recorded 3"]);
    ensure!(!outcome.stderr.contains(STOPPED), "{}", outcome.stderr);
    let told = told(&outcome)?;
    let told = told.first().context("no cost")?;
    ensure!(*told > 0.0 && *told < 0.3, "{told}");
    Ok(())
}
