//! Functions that were inlined into traces, in every way that there is, are on the stack where they belong.

use anyhow::{Context as _, Result, bail};
use lj_trace_tests::folded::Stack;
use lj_trace_tests::inlined::{Functions, examples, is_certain, is_compiled, record};
use lj_trace_tests::programs::{LUAJIT, LUAJIT2, TARANTOOL};
use lj_trace_tests::recording::Recorded;

/// CPU time that the workload uses up, in seconds.
const SECONDS: &str = "8";
/// Samples a second.
const RATE: &str = "999";
/// The least share of complete stacks, in percent.
const COMPLETE: f64 = 99.5;
/// The least share of the samples in traces whose innermost function is certain, in percent.
const CERTAIN: f64 = 80.0;

fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 }
}

fn check(program: &'static str) -> Result<()> {
    let Some((functions, recorded)) = record(program, &[SECONDS], &["--rate", RATE, "--traces"])? else {
        return Ok(());
    };
    let folded = &recorded.folded;
    let mut failures = Vec::new();
    for what in ["Lua complete", "native complete"] {
        let share = recorded.share(what)?;
        if share < COMPLETE {
            failures.push(format!("{what}: {share}%, less than {COMPLETE}%"));
        }
    }
    let in_traces = folded.samples_where(is_compiled);
    let possible = folded.samples_where(|stack| is_compiled(stack) && functions.are_possible(stack));
    let certain = folded.samples_where(|stack| is_compiled(stack) && is_certain(stack));
    let share = percent(possible, in_traces);
    println!("{share:.2}% of {in_traces} stacks in traces are possible");
    if in_traces < folded.samples() / 4 || share < COMPLETE {
        let wrong = folded.stacks.iter().filter(|stack| is_compiled(stack) && !functions.are_possible(stack));
        failures.push(format!("{share:.2}% of {in_traces} stacks in traces are possible:{}", examples(wrong)));
    }
    let share = percent(certain, in_traces);
    println!("{share:.2}% of them are certain");
    if share < CERTAIN {
        let uncertain = folded.stacks.iter().filter(|stack| is_compiled(stack) && !is_certain(stack));
        failures.push(format!("{share:.2}% of the samples in traces are certain:{}", examples(uncertain)));
    }
    failures.extend(wrong_shares(&functions, &recorded));
    if recorded.folded_of_stream()?.sorted() != folded.sorted() {
        failures.push("the stream says other than the folded stacks".to_owned());
    }
    if !recorded.outcome.stderr.contains("goes on to") {
        failures.push("--traces lists no traces".to_owned());
    }
    if !failures.is_empty() {
        bail!("{program}: {}", failures.join("; "));
    }
    Ok(())
}

/// Functions whose share of their part is not what it must be.
fn wrong_shares(functions: &Functions, recorded: &Recorded) -> Vec<String> {
    let mut failures = Vec::new();
    for (name, part, expected) in &functions.shares {
        let in_part = |stack: &Stack| {
            is_compiled(stack) && is_certain(stack) && functions.on(stack).contains(&Some(part.as_str()))
        };
        let all = recorded.folded.samples_where(in_part);
        let own = recorded
            .folded
            .samples_where(|stack| in_part(stack) && functions.on(stack).last() == Some(&Some(name.as_str())));
        let share = percent(own, all);
        let expectation = expected / 100.0;
        // Three points for what is not division, and four standard deviations of a share of so many samples.
        let tolerance = 3.0 + 400.0 * (expectation * (1.0 - expectation) / all.max(1) as f64).sqrt();
        let verdict =
            format!("{name}: {share:.1}% of {all} samples in {part}, expected {expected:.1}% ± {tolerance:.1}");
        println!("{verdict}");
        if (share - expected).abs() > tolerance {
            failures.push(verdict);
        }
    }
    failures
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
