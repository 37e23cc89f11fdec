//! Traces that live for some ten milliseconds: what is shown of them is right, and next to nothing is missing.

use anyhow::{Result, bail};
use lj_trace_tests::chance::of_percent;
use lj_trace_tests::folded::{Stack, line_in};
use lj_trace_tests::inlined::{examples, is_compiled, record};
use lj_trace_tests::pauses::Pauses;
use lj_trace_tests::programs::{LUAJIT, LUAJIT2, TARANTOOL};
use lj_trace_tests::usage::stolen;
use lj_trace_tests::workload::{TRACES, seconds};

/// CPU time that the workload uses up, in seconds.
const SECONDS: u32 = 4;
/// Samples a second: about ten of each trace.
const RATE: f64 = 999.0;
/// The largest share of the samples in traces that may lack the functions inlined there, in percent.
const UNRESOLVED: f64 = 2.0;

/// Where a tail call may have replaced the trace's own function: read in time, but not certain.
const NOT_CERTAIN: &str = "[unknown: function in a trace not certain]";

/// A trace without its functions, for a reason that follows.
fn is_unresolved(stack: &Stack) -> bool {
    stack.frames.iter().any(|frame| frame.starts_with("TRACE"))
        && !stack.frames.iter().any(|frame| frame == NOT_CERTAIN)
}

/// All traces are thrown away a hundred times a second, and compiled anew.
fn flush(program: &'static str) -> Result<()> {
    let arguments = [&*seconds(SECONDS), "flush"];
    let (stolen_before, pauses) = (stolen()?, Pauses::watch());
    let recorded = record(program, TRACES, &arguments, &["--rate", &RATE.to_string()])?;
    let gone = pauses.end() + stolen()? - stolen_before;
    let Some((functions, recorded)) = recorded else { return Ok(()) };
    let folded = &recorded.folded;
    let in_traces = folded.samples_where(|stack| is_compiled(stack) || is_unresolved(stack));
    // Not only those in traces: what is interpreted must not be taken for a trace either.
    let is_wrong = |stack: &&Stack| {
        stack.frames.iter().any(|frame| line_in(frame, TRACES).is_some()) && !functions.are_possible(stack)
    };
    let wrong = folded.samples_where(|stack| is_wrong(&stack));
    let shown = examples(folded.stacks.iter().filter(is_wrong));
    let unresolved = 100.0 * folded.samples_where(is_unresolved) as f64 / in_traces.max(1) as f64;
    // While lj-trace has no CPU, since the host has it, the program may go on, and its traces are gone afterwards.
    let most = UNRESOLVED + of_percent(UNRESOLVED, in_traces as f64) + 100.0 * gone * RATE / in_traces.max(1) as f64;
    let verdict = format!("of {in_traces} samples in traces {unresolved:.2}% are unresolved; {wrong} stacks are wrong");
    println!("{program}: {verdict}");
    if in_traces < folded.samples() / 4 || wrong > 0 || unresolved > most {
        bail!("{program}: {verdict}:{shown}");
    }
    Ok(())
}

#[test]
fn on_luajit() -> Result<()> {
    flush(LUAJIT)
}

#[test]
fn on_luajit2() -> Result<()> {
    flush(LUAJIT2)
}

#[test]
fn on_tarantool() -> Result<()> {
    flush(TARANTOOL)
}
