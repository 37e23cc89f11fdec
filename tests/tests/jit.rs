//! With the JIT compiler on, stacks are as complete as without it.

use anyhow::{Result, bail};
use lj_trace_tests::programs::{LUAJIT, LUAJIT2, Program, TARANTOOL};
use lj_trace_tests::recording::Recording;
use lj_trace_tests::workload::{TRUTH, Workload};

/// CPU time that the workload uses up, in seconds.
const SECONDS: &str = "8";
/// Samples a second.
const RATE: &str = "999";
/// The least share of complete stacks, in percent.
const COMPLETE: f64 = 99.5;
/// The least share of samples in compiled code, in percent: less would mean that little was compiled.
const COMPILED: f64 = 5.0;

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
    for (what, least) in [("Lua complete", COMPLETE), ("native complete", COMPLETE), ("Lua, compiled", COMPILED)] {
        let share = recorded.share(what)?;
        if share < least {
            failures.push(format!("{what}: {share}%, less than {least}%"));
        }
    }
    // A trace is a frame of its own, in the function that it was compiled from.
    let is_trace = |frame: &String| frame.starts_with("TRACE");
    let in_traces = recorded.folded.samples_where(|stack| stack.frames.iter().any(is_trace));
    let in_functions = recorded.folded.samples_where(|stack| {
        stack.frames.iter().position(is_trace).is_some_and(|trace| trace > 0 && stack.outermost_lua().is_some())
    });
    if in_traces == 0 || in_functions < in_traces * 995 / 1000 {
        failures.push(format!("{in_functions} of {in_traces} samples in traces have their functions"));
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
