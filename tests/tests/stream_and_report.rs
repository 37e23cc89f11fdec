//! A stream of CPU samples says what the reports of the same recording say: every sample of the one is held against the
//! other, frame by frame, as the reference parser shows the stream.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use lj_trace_profile::reference::sysprof;
use lj_trace_streams::{Body, Stream, reserved};
use lj_trace_tests::folded::Folded;
use lj_trace_tests::nginx::Nginx;
use lj_trace_tests::programs::{LUAJIT, LUAJIT2, Program, TARANTOOL};
use lj_trace_tests::recording::Recording;
use lj_trace_tests::tracer::{Tracer, run};
use lj_trace_tests::workload::{TRUTH, Workload, seconds};

/// The workload that has chunks with names of every kind.
const CHUNKNAMES: &str = "chunknames.lua";

/// How often each stack was seen, outermost frame first.
type Stacks = BTreeMap<Vec<String>, u64>;

/// The stacks of a stream as the reference parser shows them, without what it says of each frame beyond its name: where
/// native code lies. And how many there are whose mark for the parser is no frame.
fn as_parsed(stream: &[u8]) -> Result<(Stacks, u64)> {
    let Stream { symbols, body, .. } = Stream::open(stream)?;
    let Body::Sysprof(mut reader) = body else { bail!("no sysprof stream") };
    let (lines, cut) = sysprof::read(symbols, &mut reader)?;
    ensure!(cut.is_none(), "the stream is cut off: {cut:?}");
    let (mut stacks, mut marked) = (Stacks::new(), 0);
    for (line, count) in lines {
        let line = String::from_utf8(line)?;
        let line = line.strip_suffix(';').context("a stack without its end")?;
        let frames: Vec<_> = line.split(';').map(without_address).collect();
        let all = frames.len();
        let frames: Vec<_> =
            frames.into_iter().filter(|frame| *frame != reserved::SPLICE_NAME).map(str::to_owned).collect();
        ensure!(all - frames.len() <= 1, "more than one mark: {line}");
        if frames.len() < all {
            marked += count;
        }
        *stacks.entry(frames).or_default() += count;
    }
    Ok((stacks, marked))
}

/// A frame without `:0x1234` behind its name.
fn without_address(frame: &str) -> &str {
    match frame.rsplit_once(":0x") {
        Some((name, address)) if address.bytes().all(|byte| byte.is_ascii_hexdigit()) => name,
        _ => frame,
    }
}

/// The stacks of a report, without what the stream's format has no room for: the names of Lua functions, and whether
/// they were compiled.
fn as_reported(folded: &Folded) -> Stacks {
    let mut stacks = Stacks::new();
    for stack in &folded.stacks {
        let frames = stack.frames.iter().map(|frame| {
            let name = frame.strip_suffix("_[j]").unwrap_or(frame);
            let is_at_line = || name.rsplit_once(':').is_some_and(|(_, line)| line.parse::<u32>().is_ok());
            match name.find('@') {
                Some(at) if !name.starts_with("TRACE") && is_at_line() => name[at..].to_owned(),
                _ => name.to_owned(),
            }
        });
        *stacks.entry(frames.collect()).or_default() += stack.samples;
    }
    stacks
}

/// Holds a stream against the folded stacks of the same samples, and these against what is read back from the stream.
/// Gives the stacks, and how many samples have a mark for the parser.
fn compare(name: &str, stream: &Path, folded: &Folded) -> Result<(Stacks, u64)> {
    let (parsed, marked) = as_parsed(&fs::read(stream)?)?;
    let reported = as_reported(folded);
    let samples: u64 = reported.values().sum();
    let differences: Vec<_> = parsed
        .keys()
        .chain(reported.keys())
        .filter(|stack| parsed.get(*stack) != reported.get(*stack))
        .map(|stack| format!("{:?} {:?} {}", parsed.get(stack), reported.get(stack), stack.join(";")))
        .take(10)
        .collect();
    println!("{name}: {samples} samples, {} stacks, {marked} samples marked", reported.len());
    ensure!(differences.is_empty(), "{name}: parsed, reported: {differences:#?}");
    let again = run(["report", &stream.to_string_lossy(), "--format", "folded"])?;
    again.expect(0, &[]);
    let stacks = |folded: &Folded| {
        let stacks = folded.stacks.iter().map(|stack| (stack.frames.clone(), stack.samples));
        stacks.collect::<BTreeMap<_, _>>()
    };
    ensure!(stacks(&Folded::parse(&again.stdout)?) == stacks(folded), "{name}: read back, it differs");
    Ok((parsed, marked))
}

fn check(program: &'static str) -> Result<()> {
    let Some(program) = Program::find(program) else { return Ok(()) };
    for script in [CHUNKNAMES, TRUTH] {
        let name = format!("{} {script}", program.name);
        let mut workload = Workload::start(&program, script, &[&seconds(4)])?;
        let recording = Recording::attached(&workload, &["--rate", "1999", "--kernel"])?;
        workload.go()?;
        workload.report()?;
        let stream = recording.stream();
        let recorded = recording.stop()?;
        let (stacks, _) = compare(&name, &stream, &recorded.folded)?;
        let samples: u64 = stacks.values().sum();
        ensure!(samples > 2000, "{name}: {samples} samples");
        if script == CHUNKNAMES {
            for what in [
                "[GC]",
                "[JIT compiler]",
                "table.sort",
                "@lib/file.lua:0",
                "@(made):0",
                "@[string \"plain\"]:0",
                "@[string \"-- the first line...\"]:0",
            ] {
                ensure!(stacks.keys().flatten().any(|frame| frame == what), "{name}: no {what}");
            }
        }
    }
    Ok(())
}

/// All that it runs is in coroutines, which C resumes: the parser needs the mark.
#[test]
fn on_nginx() -> Result<()> {
    let Some(nginx) = Nginx::start(1)? else { return Ok(()) };
    let worker = nginx.workers()[0];
    let folder = tempfile::tempdir()?;
    let [stream, folded] = ["cpu.bin", "cpu.folded"].map(|name| folder.path().join(name));
    let mut tracer = Tracer::start([
        "--pid",
        &worker.to_string(),
        "--rate",
        "999",
        "--output",
        &stream.to_string_lossy(),
        "--output",
        &folded.to_string_lossy(),
    ])?;
    tracer.wait_until_attached()?;
    nginx.let_work(worker, 1.0)?;
    tracer.signal(libc::SIGINT)?;
    tracer.wait()?.expect(0, &[]);
    let (_, marked) = compare("nginx", &stream, &Folded::parse(&fs::read_to_string(&folded)?)?)?;
    ensure!(marked > 100, "{marked} samples marked");
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
