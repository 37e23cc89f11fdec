//! What is allocated in compiled code counts for the line that allocates, though a trace has it inlined.

use anyhow::{Result, bail};
use lj_trace_tests::folded::{COMPILED, Folded};
use lj_trace_tests::programs::{LUAJIT, LUAJIT2, Program, TARANTOOL};
use lj_trace_tests::recording::Recording;
use lj_trace_tests::workload::Workload;

/// The workload.
const SCRIPT: &str = "trace_allocations.lua";

/// The bytes that a line allocates in compiled code.
fn bytes_at(folded: &Folded, line: &str) -> u64 {
    let place = format!("{SCRIPT}:{line}");
    let is_there = |frames: &[String]| {
        frames.last() == Some(&place) && frames.iter().rev().nth(1).is_some_and(|function| function.ends_with(COMPILED))
    };
    folded.samples_where(|stack| is_there(&stack.frames))
}

fn check(program: &'static str) -> Result<()> {
    let Some(program) = Program::find(program) else { return Ok(()) };
    let mut workload = Workload::start(&program, SCRIPT, &[])?;
    let recording = Recording::attached(&workload, &["--mode", "memprof"])?;
    workload.go()?;
    let report = workload.report()?;
    let recorded = recording.stop()?;
    let mut failures = Vec::new();
    for line in &report {
        let words: Vec<&str> = line.split(' ').collect();
        let ["line", line, least, most] = words[..] else { bail!("the workload reported {line:?}") };
        let found = bytes_at(&recorded.folded, line);
        let verdict = format!("{found} bytes at line {line}, expected {least} to {most}");
        println!("{}: {verdict}", program.name);
        if !(least.parse()?..=most.parse()?).contains(&found) {
            failures.push(verdict);
        }
    }
    if report.is_empty() || !failures.is_empty() {
        let stacks: Vec<_> = recorded
            .folded
            .stacks
            .iter()
            .map(|stack| format!("{} {}", stack.samples, stack.frames.join(";")))
            .collect();
        bail!("{}: {}\n{}", program.name, failures.join("; "), stacks.join("\n"));
    }
    Ok(())
}

#[test]
fn on_luajit() -> Result<()> {
    check(LUAJIT)
}

#[test]
fn on_luajit2() -> Result<()> {
    check(LUAJIT2)
}

#[test]
fn on_tarantool() -> Result<()> {
    check(TARANTOOL)
}
