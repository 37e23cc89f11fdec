//! With the JIT compiler on, stacks are as complete as without it.

use anyhow::{Result, bail};
use lj_trace_tests::chance::{of_percent, of_share};
use lj_trace_tests::folded::COMPILED;
use lj_trace_tests::programs::{LUAJIT, LUAJIT2, Program, TARANTOOL};
use lj_trace_tests::recording::Recording;
use lj_trace_tests::usage::let_work;
use lj_trace_tests::workload::{TRUTH, Workload};

/// CPU time that the workload uses up, in seconds.
const SECONDS: &str = "3";
/// Samples a second.
const RATE: &str = "999";
/// The least share of complete stacks, in percent.
const COMPLETE: f64 = 99.5;
/// The same where nothing is compiled.
const COMPLETE_INTERPRETED: f64 = 99.9;
/// The least share of samples in compiled code, in percent: less would mean that little was compiled.
const LEAST_COMPILED: f64 = 5.0;

fn profile(program: &'static str, more: &[&str]) -> Result<()> {
    let Some(program) = Program::find(program) else { return Ok(()) };
    let arguments: Vec<_> = [SECONDS, "jit"].iter().chain(more).copied().collect();
    let mut workload = Workload::start(&program, TRUTH, &arguments)?;
    let recording = Recording::attached(&workload, &["--rate", RATE])?;
    workload.go()?;
    workload.truth()?;
    let recorded = recording.stop()?;
    println!("{}", recorded.outcome.stderr);

    let mut failures = Vec::new();
    for (what, least) in [("Lua complete", COMPLETE), ("native complete", COMPLETE), ("Lua, compiled", LEAST_COMPILED)]
    {
        let share = recorded.share(what)?;
        let least = least - of_percent(least, recorded.taken());
        if share < least {
            failures.push(format!("{what}: {share}%, less than {least}%"));
        }
    }
    // What a trace executes are functions, marked as compiled, not the trace.
    let is_trace = |frame: &String| frame.starts_with("TRACE");
    let is_compiled = |frame: &String| frame.ends_with(COMPILED);
    let in_traces = recorded.folded.samples_where(|stack| stack.frames.iter().any(is_trace));
    let in_functions = recorded.folded.samples_where(|stack| stack.frames.iter().any(is_compiled));
    let compiled = (in_traces + in_functions) as f64;
    if in_functions == 0
        || in_traces as f64 > compiled * (0.005 + of_share(0.005, compiled / recorded.outcome.weight()))
    {
        failures.push(format!("{in_functions} of {} samples in traces have their functions", in_traces + in_functions));
    }
    if recorded.folded_of_stream()?.sorted() != recorded.folded.sorted() {
        failures.push("the stream says other than the folded stacks".to_owned());
    }
    if !failures.is_empty() {
        bail!("{}: {}", program.name, failures.join("; "));
    }
    Ok(())
}

#[test]
fn on_luajit() -> Result<()> {
    profile(LUAJIT, &[])
}

#[test]
fn on_luajit2() -> Result<()> {
    profile(LUAJIT2, &[])
}

#[test]
fn on_tarantool() -> Result<()> {
    profile(TARANTOOL, &[])
}

#[test]
fn on_tarantool_in_fibers() -> Result<()> {
    profile(TARANTOOL, &["fibers"])
}

/// Where nothing is done but to switch between coroutines, compiled or not, on every fork.
#[test]
fn stacks_are_complete_while_coroutines_switch() -> Result<()> {
    let mut failures = Vec::new();
    for name in [LUAJIT, LUAJIT2, TARANTOOL] {
        let Some(program) = Program::find(name) else { continue };
        for (jit, least) in [("on", COMPLETE), ("off", COMPLETE_INTERPRETED)] {
            for kind in ["ring", "wrap", "pair"] {
                let mut workload = Workload::start(&program, "coroutine_switches.lua", &[kind, jit])?;
                let recording = Recording::attached(&workload, &["--rate", "1999"])?;
                workload.go()?;
                // However busy the machine is, that makes some thousand samples.
                let_work(workload.pid(), 0.6)?;
                let recorded = recording.stop()?;
                let (share, samples) = (recorded.share("Lua complete")?, recorded.folded.samples() as f64);
                let tolerance = of_percent(least, recorded.taken());
                println!("{name}, {kind}, JIT {jit}: {share}% of {samples} complete");
                if samples < 300.0 || share < least - tolerance {
                    failures.push(format!("{name}, {kind}, JIT {jit}: {share}% of {samples}, less than {least}%"));
                }
            }
        }
    }
    if failures.is_empty() { Ok(()) } else { bail!("{}", failures.join("; ")) }
}
