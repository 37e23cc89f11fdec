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

/// The bytes that all lines allocate in compiled code.
fn compiled(folded: &Folded) -> u64 {
    folded.samples_where(|stack| stack.frames.iter().any(|frame| frame.ends_with(COMPILED)))
}

/// The bytes of all rows of the summary's table of traces: a number, and a share.
fn in_table(summary: &str) -> u64 {
    let rows = summary.lines().skip_while(|line| !line.trim_start().starts_with("bytes  ")).skip(1);
    let numbers = rows.map_while(|row| {
        let mut words = row.split_whitespace();
        let bytes = words.next()?.parse::<u64>().ok()?;
        words.next()?.ends_with('%').then_some(bytes)
    });
    numbers.sum()
}

fn check(program: &'static str) -> Result<()> {
    let Some(program) = Program::find(program) else { return Ok(()) };
    let mut workload = Workload::start(&program, SCRIPT, &[])?;
    let recording = Recording::attached(&workload, &["--mode", "memprof", "--no-limit", "--traces"])?;
    workload.go()?;
    let report = workload.report()?;
    let recorded = recording.stop()?;
    let mut failures = Vec::new();
    let mut missing = 0;
    for line in &report {
        let words: Vec<&str> = line.split(' ').collect();
        let ["line", line, least, most] = words[..] else { bail!("the workload reported {line:?}") };
        let found = bytes_at(&recorded.folded, line);
        let verdict = format!("{found} bytes at line {line}, expected {least} to {most}");
        println!("{}: {verdict}", program.name);
        // What is not certain stays with its trace: a line may have less than it allocates, never more.
        let (least, most): (u64, u64) = (least.parse()?, most.parse()?);
        missing += least.saturating_sub(found);
        if found > most {
            failures.push(verdict);
        }
    }
    // The table of --traces has the same bytes, and more: some lines are not certain.
    let [in_lines, in_table] = [compiled(&recorded.folded), in_table(&recorded.outcome.stderr)];
    println!("{}: {in_lines} bytes in compiled lines, {in_table} in the table of traces", program.name);
    if in_table < in_lines + missing {
        failures.push(format!("{in_table} bytes in the table of traces, {in_lines} in compiled lines"));
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
