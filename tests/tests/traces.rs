//! Functions that were inlined into traces, in every way that there is, are on the stack where they belong.

use std::collections::{HashMap, HashSet};

use anyhow::{Context as _, Result, bail};
use lj_trace_tests::folded::{COMPILED, Stack, line_in};
use lj_trace_tests::programs::{LUAJIT, LUAJIT2, Program, TARANTOOL};
use lj_trace_tests::recording::{Recorded, Recording};
use lj_trace_tests::workload::{TRACES, Workload};

/// CPU time that the workload uses up, in seconds.
const SECONDS: &str = "8";
/// Samples a second.
const RATE: &str = "999";
/// The least share of complete stacks, in percent.
const COMPLETE: f64 = 99.5;
/// The least share of the samples in traces whose innermost function is certain, in percent.
const CERTAIN: f64 = 80.0;
/// What is said where it is not.
const UNCERTAIN: &str = "[unknown: inlined function not certain]";

/// What the workload says of its functions.
#[derive(Debug, Default)]
struct Functions {
    /// Names by line.
    names: HashMap<u32, String>,
    /// Who calls whom.
    calls: HashSet<(String, String)>,
    /// Function, part of the workload, percent of the part's time.
    shares: Vec<(String, String, f64)>,
}

impl Functions {
    fn read(lines: &[String]) -> Result<Self> {
        let mut functions = Self::default();
        for line in lines {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["function", name, line] => {
                    functions.names.insert(line.parse()?, name.to_owned());
                }
                ["calls", caller, callee] => {
                    functions.calls.insert((caller.to_owned(), callee.to_owned()));
                }
                ["share", name, part, percent] => {
                    functions.shares.push((name.to_owned(), part.to_owned(), percent.parse()?));
                }
                _ => bail!("the workload reported {line:?}"),
            }
        }
        Ok(functions)
    }

    /// The names of the workload's functions on a stack, outermost first; `None` for those that it does not name.
    fn on(&self, stack: &Stack) -> Vec<Option<&str>> {
        let lines = stack.frames.iter().filter_map(|frame| line_in(frame, TRACES));
        lines.map(|line| self.names.get(&line).map(String::as_str)).collect()
    }

    /// Whether a stack can be: it begins in the main chunk, and each function is called by one that does call it.
    fn are_possible(&self, stack: &Stack) -> bool {
        let Some(names) = self.on(stack).into_iter().collect::<Option<Vec<_>>>() else {
            // The main chunk has functions without a name: the loops that declare.
            return false;
        };
        let is_call = |pair: &[&str]| self.calls.contains(&(pair[0].to_owned(), pair[1].to_owned()));
        // Coroutines of Tarantool's and of `coroutine.wrap` stand on those who resume them.
        let linked = |pair: &[&str]| is_call(pair) || pair == ["coroutines", "generate"];
        names.first() == Some(&"main") && names.windows(2).all(linked)
    }
}

fn record(program: &'static str) -> Result<Option<(Functions, Recorded)>> {
    let Some(program) = Program::find(program) else { return Ok(None) };
    let mut workload = Workload::start(&program, TRACES, &[SECONDS])?;
    let recording = Recording::attached(&workload, &["--rate", RATE, "--traces"])?;
    workload.go()?;
    let functions = Functions::read(&workload.report()?)?;
    let recorded = recording.stop()?;
    println!("{}: {}", program.name, recorded.outcome.stderr);
    Ok(Some((functions, recorded)))
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 }
}

fn is_compiled(stack: &Stack) -> bool {
    stack.frames.iter().any(|frame| frame.ends_with(COMPILED))
}

fn is_certain(stack: &Stack) -> bool {
    !stack.frames.iter().any(|frame| frame == UNCERTAIN)
}

/// Shows some of the stacks that are not as they should be.
fn examples<'a>(stacks: impl Iterator<Item = &'a Stack>) -> String {
    let mut wrong: Vec<&Stack> = stacks.collect();
    wrong.sort_by_key(|stack| std::cmp::Reverse(stack.samples));
    wrong.iter().take(8).map(|stack| format!("\n  {} {}", stack.samples, stack.frames.join(";"))).collect()
}

fn check(program: &'static str) -> Result<()> {
    let Some((functions, recorded)) = record(program)? else { return Ok(()) };
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
