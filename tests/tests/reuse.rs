//! Functions that are collected while lj-trace records: another function in the same memory is never taken for
//! one of them, and a name that is gone is said to be.

use anyhow::Result;
use lj_trace_tests::folded::Stack;
use lj_trace_tests::programs::{LUAJIT, LUAJIT2, Program, TARANTOOL};
use lj_trace_tests::recording::Recording;
use lj_trace_tests::workload::Workload;

/// Loads one chunk after the other; see there for what tells one from the other.
const REUSE: &str = "reuse.lua";

/// The number in the name of a frame's chunk, and the line of its function.
fn chunk(frame: &str) -> Option<(u32, u32)> {
    let (_, place) = frame.split_once("@gen/")?;
    let (number, line) = place.split_once(".lua:")?;
    Some((number.parse().ok()?, line.parse().ok()?))
}

/// The function that called a chunk's, by its line: these are never collected.
fn driver(stack: &Stack) -> Option<u32> {
    stack.frames.iter().find_map(|frame| frame.split_once("@driver.lua:")?.1.parse().ok()).filter(|&line| line > 0)
}

/// What is wrong with the chunks' names in a stack.
fn contradiction(stack: &Stack) -> Option<&'static str> {
    let driver = driver(stack)?;
    for (number, line) in stack.frames.iter().filter_map(|frame| chunk(frame)) {
        if number % 8 + 1 != driver {
            return Some("another driver calls that chunk");
        }
        // The function that burns, and two lines below it the one that calls it.
        let first = if number % 2 == 1 { number % 997 + 2 } else { 1 };
        if line != first && line != first + 3 {
            return Some("that chunk's functions are in other lines");
        }
    }
    None
}

fn is_unresolved(frame: &str) -> bool {
    frame.starts_with("[unknown: ")
}

fn profile(program: &'static str) -> Result<()> {
    let Some(program) = Program::find(program) else { return Ok(()) };
    let mut workload = Workload::start(&program, REUSE, &["6"])?;
    let recording = Recording::attached(&workload, &["--rate", "999"])?;
    workload.go()?;
    workload.report()?;
    let recorded = recording.stop()?;

    let in_chunks = |stack: &Stack| driver(stack).is_some();
    let named = |stack: &Stack| in_chunks(stack) && stack.frames.iter().any(|frame| chunk(frame).is_some());
    let (all, named) = (recorded.folded.samples_where(in_chunks), recorded.folded.samples_where(named));
    println!("{named} of {all} samples in chunks have names");
    assert!(all > 1000 && named > all / 4, "{named} of {all} samples in chunks have names");
    let mut failures = Vec::new();
    for stack in recorded.folded.stacks.iter().filter(|stack| in_chunks(stack)) {
        if let Some(contradiction) = contradiction(stack) {
            failures.push(format!("{} times {contradiction}: {}", stack.samples, stack.frames.join(";")));
        }
        // Nothing but the call of the chunk's function itself, where it has not been entered yet or has been left.
        let below = stack.frames.iter().position(|frame| frame.contains("@driver.lua:")).unwrap_or(0);
        // The kernel may be entered there, too.
        let above = || stack.frames[below + 1..].iter().filter(|frame| !frame.ends_with("_[k]"));
        let marked = above().any(|frame| chunk(frame).is_some() || is_unresolved(frame));
        if !marked && above().count() > 0 {
            failures.push(format!("{} times a function is left out: {}", stack.samples, stack.frames.join(";")));
        }
    }
    let different = recorded.folded_of_stream()?.differences(&recorded.folded);
    if !different.is_empty() {
        failures.push(format!("the stream says other than the folded stacks: {different:#?}"));
    }
    let count = failures.len();
    failures.truncate(10);
    assert!(failures.is_empty(), "{count} contradictions:\n{}", failures.join("\n"));
    Ok(())
}

#[test]
fn on_luajit() -> Result<()> {
    profile(LUAJIT)
}

#[test]
fn on_luajit2() -> Result<()> {
    profile(LUAJIT2)
}

#[test]
fn on_tarantool() -> Result<()> {
    profile(TARANTOOL)
}
