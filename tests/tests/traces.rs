//! Functions that were inlined into traces, in every way that there is, are on the stack where they belong.

use anyhow::{Context as _, Result, bail};
use lj_trace_tests::chance::of_percent;
use lj_trace_tests::inlined::{examples, is_certain, is_compiled, record};
use lj_trace_tests::programs::{LUAJIT, LUAJIT2, TARANTOOL};
use lj_trace_tests::shares::percent;
use lj_trace_tests::workload::TRACES;

/// CPU time that the workload uses up, in seconds.
const SECONDS: &str = "5";
/// Samples a second.
const RATE: &str = "999";
/// The least share of complete stacks, in percent.
const COMPLETE: f64 = 99.5;
/// The least share of the samples in traces whose innermost function is certain, in percent: 66 to 78 were measured
/// (`docs/traces.md` tells what is not certain, and why).
const CERTAIN: f64 = 45.0;

/// What a share of so many samples is at least, by all chance, if it is this one.
fn at_least(percent: f64, samples: u64) -> f64 {
    percent - of_percent(percent, samples as f64)
}

fn check(program: &'static str) -> Result<()> {
    let Some((functions, recorded)) = record(program, TRACES, &[SECONDS], &["--rate", RATE, "--traces"])? else {
        return Ok(());
    };
    let folded = &recorded.folded;
    let mut failures = Vec::new();
    for what in ["Lua complete", "native complete"] {
        let (share, least) = (recorded.share(what)?, at_least(COMPLETE, folded.samples()));
        if share < least {
            failures.push(format!("{what}: {share}%, less than {least}%"));
        }
    }
    let in_traces = folded.samples_where(is_compiled);
    let possible = folded.samples_where(|stack| is_compiled(stack) && functions.are_possible(stack));
    let certain = folded.samples_where(|stack| is_compiled(stack) && is_certain(stack));
    let share = percent(possible, in_traces);
    println!("{share:.2}% of {in_traces} stacks in traces are possible");
    if in_traces < folded.samples() / 4 || share < at_least(COMPLETE, in_traces) {
        let wrong = folded.stacks.iter().filter(|stack| is_compiled(stack) && !functions.are_possible(stack));
        failures.push(format!("{share:.2}% of {in_traces} stacks in traces are possible:{}", examples(wrong)));
    }
    let share = percent(certain, in_traces);
    println!("{share:.2}% of them are certain");
    if share < CERTAIN {
        let uncertain = folded.stacks.iter().filter(|stack| is_compiled(stack) && !is_certain(stack));
        failures.push(format!("{share:.2}% of the samples in traces are certain:{}", examples(uncertain)));
    }
    let different = recorded.folded_of_stream()?.differences(folded);
    if !different.is_empty() {
        failures.push(format!("the stream says other than the folded stacks: {different:#?}"));
    }
    if !recorded.outcome.stderr.contains("goes on to") {
        failures.push("--traces lists no traces".to_owned());
    }
    if !failures.is_empty() {
        bail!("{program}: {}", failures.join("; "));
    }
    Ok(())
}

#[test]
fn on_luajit() -> Result<()> {
    check(LUAJIT).context("luajit")
}

#[test]
fn on_luajit2() -> Result<()> {
    check(LUAJIT2).context("luajit2")
}

#[test]
fn on_tarantool() -> Result<()> {
    check(TARANTOOL).context("tarantool")
}
