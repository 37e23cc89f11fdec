//! `--alloc-stacks`: allocations carry their whole Lua and native stack.

use anyhow::{Result, ensure};
use lj_trace_tests::folded::{Folded, Stack};
use lj_trace_tests::programs::{ALL, Program, TARANTOOL};
use lj_trace_tests::tracer::{Outcome, Tracer, run};
use lj_trace_tests::workload::Workload;

/// Stacks that are recorded, of each of the workload's three tables. The buffer between the kernel and lj-trace has room
/// for a third more (16 MiB, with up to 14 KB of native stack each): so none is lost, however slow the machine is.
const STACKS: u64 = 300;

/// The size of an empty table, `sizeof(GCtab)`: only this one of the builds has narrow references.
fn table_size(program: &Program) -> u64 {
    if program.name == TARANTOOL { 32 } else { 64 }
}

/// The stacks of every `every`th allocation of a workload that makes each of its tables so often, and the summary.
/// lj-trace may be held up until all are made.
fn record(program: &Program, rounds: u64, every: u64, hold_up: bool) -> Result<(Folded, Outcome)> {
    let mut workload = Workload::start(program, "stacks.lua", &[&rounds.to_string()])?;
    let folder = tempfile::tempdir()?;
    let (folded, stream) = (folder.path().join("stacks.folded"), folder.path().join("stacks.bin"));
    let (pid, every) = (workload.pid().to_string(), every.to_string());
    let outputs = ["--output", &folded.to_string_lossy(), "--output", &stream.to_string_lossy()].map(str::to_owned);
    let arguments = ["--pid", &pid, "--mode", "memprof", "--no-limit", "--alloc-stacks", &every].map(str::to_owned);
    let mut tracer = Tracer::start(arguments.into_iter().chain(outputs))?;
    tracer.wait_until_attached()?;
    if hold_up {
        tracer.signal(libc::SIGSTOP)?;
    }
    workload.go()?;
    workload.expect("done")?;
    if hold_up {
        tracer.signal(libc::SIGCONT)?;
    }
    tracer.signal(libc::SIGINT)?;
    let outcome = tracer.wait()?;
    outcome.expect(0, &[]);
    Ok((Folded::parse(&std::fs::read_to_string(folded)?)?, outcome))
}

/// Whether these functions call each other, one right after the other, in a stack that is complete on both sides.
fn calls(stack: &Stack, chain: &[&str]) -> bool {
    let lua = stack.frames.windows(chain.len()).any(|frames| {
        frames.iter().zip(chain).all(|(frame, name)| {
            let function = frame.split('@').next().unwrap_or_default();
            function == *name || frame == name || (name.starts_with(':') && frame.ends_with(name))
        })
    });
    let entry = ["_start", "coro_init"].contains(&stack.frames[0].as_str());
    lua && entry && !stack.frames.iter().any(|frame| frame.contains("[unknown"))
}

/// What the workload does: the functions of each allocation, outermost first.
const CHAINS: [&[&str]; 3] = [
    &["main chunk", "outer", "middle", "inner"],
    &["main chunk", "string.gsub", ":28"],
    &["main chunk", "coroutine.resume", ":33"],
];

#[test]
fn every_allocation_has_its_stack() -> Result<()> {
    for program in ALL.into_iter().filter_map(Program::find) {
        let (folded, outcome) = record(&program, STACKS, 1, false)?;
        outcome.expect(0, &["lost               0"]);
        let table = table_size(&program);
        for chain in CHAINS {
            let bytes = folded.samples_where(|stack| calls(stack, chain));
            ensure!(bytes == STACKS * table, "{}: {chain:?} has {bytes} bytes: {folded:#?}", program.name);
        }
    }
    Ok(())
}

#[test]
fn every_seventh_stands_for_seven() -> Result<()> {
    const EVERY: u64 = 7;
    const ROUNDS: u64 = STACKS * EVERY;
    for program in ALL.into_iter().filter_map(Program::find) {
        let (folded, outcome) = record(&program, ROUNDS, EVERY, false)?;
        outcome.expect(0, &["lost               0"]);
        let table = table_size(&program);
        // Each CPU counts on its own, so that each may leave up to a turn unfinished, or begin with one.
        let cpus = std::thread::available_parallelism()?.get() as u64;
        // The three kinds follow each other, and 7 is no multiple of 3: each has the same share.
        for chain in CHAINS {
            let bytes = folded.samples_where(|stack| calls(stack, chain));
            let open = (ROUNDS * table).abs_diff(bytes);
            ensure!(open <= cpus * EVERY * table, "{}: {chain:?} has {bytes} bytes", program.name);
        }
    }
    Ok(())
}

#[test]
fn stacks_that_are_lost_are_counted() -> Result<()> {
    const ROUNDS: u64 = STACKS * 10;
    let program = Program::find(lj_trace_tests::programs::LUAJIT).expect("the demo's luajit is everywhere");
    let (folded, outcome) = record(&program, ROUNDS, 1, true)?;
    ensure!(
        outcome.stderr.contains(" allocation stacks lost: the ring buffer was full"),
        "none was lost: {outcome:#?}"
    );
    // A slow machine does not work off in time all that the buffer holds, and says so in a line of its own.
    let count = |line: &str| line.strip_prefix("LOST: ")?.split(' ').next()?.parse::<u64>().ok();
    let lost: u64 = outcome.stderr.lines().filter_map(count).sum();
    let there: u64 =
        folded.samples_where(|stack| CHAINS.iter().any(|chain| calls(stack, chain))) / table_size(&program);
    // Besides the tables, there is little that the workload allocates.
    let all = CHAINS.len() as u64 * ROUNDS;
    ensure!((all..all + 10).contains(&(there + lost)), "{there} stacks and {lost} lost ones: {outcome:#?}");
    Ok(())
}

#[test]
fn stacks_need_an_output_that_shows_them() -> Result<()> {
    let program = Program::find(lj_trace_tests::programs::LUAJIT).expect("the demo's luajit is everywhere");
    let workload = Workload::start(&program, "stacks.lua", &["1"])?;
    let folder = tempfile::tempdir()?;
    let stream = folder.path().join("x.bin").to_string_lossy().into_owned();
    let pid = workload.pid().to_string();
    let outcome = run(["--pid", &pid, "--mode", "memprof", "--no-limit", "--alloc-stacks", "1", "--output", &stream])?;
    outcome.expect(64, &["--output stacks.svg"]);
    Ok(())
}
