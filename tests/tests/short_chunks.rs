//! Chunks that are collected while lj-trace reads their names: a name is shown whole, or not at all. LuaJIT's allocator writes into
//! the end of a string that it frees, and leaves the rest as it was.

use anyhow::{Result, ensure};
use lj_trace_tests::programs::{LUAJIT, LUAJIT2, Program, TARANTOOL};
use lj_trace_tests::recording::Recording;
use lj_trace_tests::workload::Workload;

/// Whether the name of a chunk is one that the program gives: see `tests/lua/short_chunks.lua`.
fn is_whole(name: &str) -> bool {
    let Some((digits, digest)) = name.strip_suffix('.').and_then(|name| name.split_once('-')) else { return false };
    let own = digits.chars().try_fold(7, |digest, digit| Some((digest * 31 + digit.to_digit(16)?) % 9973));
    digest.len() == 4 && own.is_some() && digest.parse().ok() == own
}

/// The name of the chunk of a frame, if its function is of none of the program's own files.
fn chunk(frame: &str) -> Option<&str> {
    let (_, place) = frame.split_once('@')?;
    let (name, _) = place.rsplit_once(':')?;
    (frame.starts_with("main chunk") && !name.contains(".lua")).then_some(name)
}

/// How many samples have a chunk whose name is whole, of one program and seed.
fn check(name: &'static str, seed: u64, seconds: u32) -> Result<u64> {
    let Some(program) = Program::find(name) else { return Ok(0) };
    let mut workload = Workload::start(&program, "short_chunks.lua", &[&seconds.to_string(), &seed.to_string()])?;
    let recording = Recording::attached(&workload, &["--rate", "1999", "--no-limit"])?;
    workload.go()?;
    workload.report()?;
    let recorded = recording.stop()?;
    let chunks = recorded.folded.stacks.iter().filter_map(|stack| {
        let name = stack.frames.iter().find_map(|frame| chunk(frame))?;
        Some((name, stack.samples))
    });
    let (mut whole, mut torn) = (0, Vec::new());
    for (name, samples) in chunks {
        if is_whole(name) { whole += samples } else { torn.push(name) }
    }
    println!("{}, seed {seed}: {whole} samples in chunks with names", name);
    ensure!(torn.is_empty(), "{}, seed {seed}: {} of {whole}: {torn:#?}", name, torn.len());
    ensure!(whole > 50, "{}, seed {seed}: {whole} samples in chunks with names", name);
    Ok(whole)
}

#[test]
fn names_of_chunks_are_whole() -> Result<()> {
    for name in [LUAJIT, LUAJIT2, TARANTOOL] {
        check(name, 1, 2)?;
    }
    Ok(())
}

/// As many seeds as `LJ_TRACE_CHUNK_SEEDS` says.
#[test]
#[ignore = "takes some minutes"]
fn names_of_many_chunks_are_whole() -> Result<()> {
    let seeds = std::env::var("LJ_TRACE_CHUNK_SEEDS").ok().and_then(|count| count.parse().ok()).unwrap_or(20);
    let mut whole = 0;
    for seed in 100..100 + seeds {
        for name in [LUAJIT, LUAJIT2, TARANTOOL] {
            whole += check(name, seed, 5)?;
        }
        println!("so far: {whole} samples in chunks with names, all whole");
    }
    Ok(())
}
