//! `--alloc-stacks`: allocations carry their whole Lua and native stack.

use anyhow::{Result, ensure};
use lj_trace_tests::folded::{Folded, Stack};
use lj_trace_tests::programs::{ALL, Program, TARANTOOL};
use lj_trace_tests::tracer::{Tracer, run};
use lj_trace_tests::workload::Workload;

/// How often the workload makes each of its three tables.
const ROUNDS: u64 = 3000;

/// The size of an empty table, `sizeof(GCtab)`: only this one of the builds has narrow references.
fn table_size(program: &Program) -> u64 {
    if program.name == TARANTOOL { 32 } else { 64 }
}

/// The stacks of every `every`th allocation.
fn record(program: &Program, every: u64) -> Result<Folded> {
    let mut workload = Workload::start(program, "stacks.lua", &[&ROUNDS.to_string()])?;
    let folder = tempfile::tempdir()?;
    let (folded, stream) = (folder.path().join("stacks.folded"), folder.path().join("stacks.bin"));
    let (pid, every) = (workload.pid().to_string(), every.to_string());
    let outputs = ["--output", &folded.to_string_lossy(), "--output", &stream.to_string_lossy()].map(str::to_owned);
    let arguments = ["--pid", &pid, "--mode", "memprof", "--alloc-stacks", &every].map(str::to_owned);
    let mut tracer = Tracer::start(arguments.into_iter().chain(outputs))?;
    tracer.wait_until_attached()?;
    workload.go()?;
    workload.expect("done")?;
    tracer.signal(libc::SIGINT)?;
    let outcome = tracer.wait()?;
    outcome.expect(0, &["lost               0"]);
    Folded::parse(&std::fs::read_to_string(folded)?)
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
        let (folded, table) = (record(&program, 1)?, table_size(&program));
        for chain in CHAINS {
            let bytes = folded.samples_where(|stack| calls(stack, chain));
            ensure!(bytes == ROUNDS * table, "{}: {chain:?} has {bytes} bytes: {folded:#?}", program.name);
        }
    }
    Ok(())
}

#[test]
fn every_seventh_stands_for_seven() -> Result<()> {
    const EVERY: u64 = 7;
    for program in ALL.into_iter().filter_map(Program::find) {
        let (folded, table) = (record(&program, EVERY)?, table_size(&program));
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
fn stacks_need_an_output_that_shows_them() -> Result<()> {
    let program = Program::find(lj_trace_tests::programs::LUAJIT).expect("the demo's luajit is everywhere");
    let workload = Workload::start(&program, "stacks.lua", &["1"])?;
    let folder = tempfile::tempdir()?;
    let stream = folder.path().join("x.bin").to_string_lossy().into_owned();
    let pid = workload.pid().to_string();
    let outcome = run(["--pid", &pid, "--mode", "memprof", "--alloc-stacks", "1", "--output", &stream])?;
    outcome.expect(64, &["--output stacks.svg"]);
    Ok(())
}
