//! Chunks that are collected while lj-trace reads their names: a name is shown whole, or not at all. LuaJIT's allocator writes into
//! the end of a string that it frees, and leaves the rest as it was.

use anyhow::{Result, ensure};
use lj_trace_tests::programs::{LUAJIT, LUAJIT2, Program, TARANTOOL};
use lj_trace_tests::recording::Recording;
use lj_trace_tests::workload::Workload;

/// The digest of the digits of a name, if they are digits: see `tests/lua/short_chunks.lua`.
fn digest(digits: &str) -> Option<String> {
    let digest = digits.chars().try_fold(7, |digest, digit| Some((digest * 31 + digit.to_digit(16)?) % 9973));
    digest.map(|digest| format!("{digest:04}"))
}

/// Whether the name of a chunk is one that the program gives.
fn is_whole(name: &str) -> bool {
    let Some((digits, own)) = name.strip_suffix('.').and_then(|name| name.split_once('-')) else { return false };
    digest(digits).is_some_and(|digest| digest == own)
}

/// Whether it is the beginning of such a name.
fn is_cut(name: &str) -> bool {
    let Some(begin) = name.strip_suffix("...") else { return false };
    let (digits, own) = begin.split_once('-').unwrap_or((begin, ""));
    digest(digits).is_some_and(|digest| digest.starts_with(own.trim_end_matches('.')))
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
    let mut workload = Workload::start(&program, "short_chunks.lua", &[&seconds.to_string(), &seed.to_string(), "90"])?;
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

/// Events of memory profiles have the beginning of a name. The rest is read later, or left out.
#[test]
fn long_names_of_chunks_in_memory_profiles_are_whole_or_cut() -> Result<()> {
    for name in [LUAJIT, LUAJIT2, TARANTOOL] {
        let Some(program) = Program::find(name) else { continue };
        let mut workload = Workload::start(&program, "short_chunks.lua", &["1", "1", "400"])?;
        let recording = Recording::attached(&workload, &["--mode", "memprof", "--no-limit"])?;
        workload.go()?;
        workload.report()?;
        let recorded = recording.stop()?;
        let frames = recorded.folded.stacks.iter().flat_map(|stack| &stack.frames);
        let names: Vec<&str> = frames.filter_map(|frame| chunk(frame)).collect();
        let cut = names.iter().filter(|name| is_cut(name)).count();
        let torn: Vec<_> = names.iter().filter(|name| !is_whole(name) && !is_cut(name)).collect();
        println!("{name}: {} names, {cut} of them cut", names.len());
        ensure!(torn.is_empty(), "{name}: {} of {}: {torn:#?}", torn.len(), names.len());
        ensure!(names.len() > 50, "{name}: {} names", names.len());
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
