//! Of stacks that are deeper than what a sample keeps of one, both ends are there, and what is left out is counted.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, bail, ensure};
use lj_trace_tests::chance::of_percent;
use lj_trace_tests::folded::{COMPILED, Stack};
use lj_trace_tests::programs::{LUAJIT, LUAJIT2, Program, TARANTOOL};
use lj_trace_tests::recording::{Recorded, Recording};
use lj_trace_tests::workload::Workload;

/// The workload that calls itself as deep as it is told.
const DEEP: &str = "deep.lua";
/// CPU time that it uses up at its depth, in seconds.
const SECONDS: &str = "1";
/// Samples a second.
const RATE: &str = "999";
/// The least share of samples whose stack is whole, or has both ends, in percent. Some fewer of these samples may have by chance.
const COMPLETE: f64 = 99.5;
/// The most Lua frames of a stack that are kept.
const KEPT: usize = 1000;

/// Its text.
const TEXT: &str = include_str!("../lua/deep.lua");

/// Whether it is the function that the workload defines by this name: how a frame is called depends on its caller.
fn is(frame: &str, function: &str) -> bool {
    let begins = |line: &str| line.contains(&format!("function {function}("));
    let line = TEXT.lines().position(begins).map_or(0, |index| index + 1);
    let frame = frame.strip_suffix(COMPILED).unwrap_or(frame);
    frame.split_once('@').is_some_and(|(_, place)| place == format!("{DEEP}:{line}"))
}

/// Whether it is a mark of frames that are left out.
fn is_mark(frame: &str) -> bool {
    frame.ends_with(" left out]")
}

fn record(program: &Program, arguments: &[&str], more: &[&str]) -> Result<Recorded> {
    let mut workload = Workload::start(program, DEEP, arguments)?;
    let recording = Recording::attached(&workload, &[&["--rate", RATE], more].concat())?;
    workload.go()?;
    workload.expect("done")?;
    let recorded = recording.stop()?;
    println!("{} {}:\n{}", program.name, arguments.join(" "), recorded.outcome.stderr);
    let different = recorded.folded_of_stream()?.differences(&recorded.folded);
    ensure!(different.is_empty(), "the stream says other than the folded stacks: {different:#?}");
    Ok(recorded)
}

/// The stacks of samples at full depth.
fn at_depth(recorded: &Recorded) -> impl Iterator<Item = &Stack> {
    recorded.folded.stacks.iter().filter(|stack| stack.frames.iter().any(|frame| is(frame, "work")))
}

/// Checks each stack at full depth, of which so many there must be.
fn check(recorded: &Recorded, mut test: impl FnMut(&[String]) -> Result<()>) -> Result<()> {
    let mut samples = 0;
    for stack in at_depth(recorded) {
        test(&stack.frames).with_context(|| stack.frames.join(";"))?;
        samples += stack.samples;
    }
    ensure!(samples > 600, "{samples} samples at full depth");
    for complete in ["both ends of Lua", "native complete"] {
        let (share, least) =
            (recorded.share(complete)?, 95.0 - of_percent(95.0, samples as f64 / recorded.outcome.weight()));
        ensure!(share >= least, "{complete}: {share}%, less than {least}%");
    }
    Ok(())
}

/// Both ends are there: nothing but what calls the first function is below it, and nothing else is missing.
fn expect_both_ends(frames: &[String], mark: &str) -> Result<()> {
    let marks: Vec<_> = frames.iter().filter(|frame| is_mark(frame)).collect();
    ensure!(marks == [mark], "{marks:?}");
    ensure!(frames.iter().any(|frame| is(frame, "main chunk")), "no main chunk");
    ensure!(!frames.iter().any(|frame| frame.starts_with("[unknown: Lua")), "the Lua stack is not whole");
    Ok(())
}

/// Stacks of one function that calls itself `4000` times, and so many other frames: those of the main chunk, of what
/// works, and C frames.
fn plain(program: &'static str, kind: &str, more: &[&str]) -> Result<()> {
    let Some(program) = Program::find(program) else { return Ok(()) };
    let recorded = record(&program, &[&[kind, "4000", SECONDS], more].concat(), &[])?;
    let function = format!("kinds.{kind}");
    // How many frames there are of it, and what works meanwhile.
    let mut numbers = BTreeMap::<usize, BTreeSet<String>>::new();
    check(&recorded, |frames| {
        let mark =
            if kind == "pcall" { "[4096 to 8191 Lua frames left out]" } else { "[2048 to 4095 Lua frames left out]" };
        expect_both_ends(frames, mark)?;
        let main = frames.iter().position(|frame| is(frame, "main chunk")).context("no main chunk")?;
        let end = frames.iter().position(|frame| is(frame, "work")).context("nothing works")?;
        let lua = &frames[main + 1..end];
        let allowed = |frame: &String| is(frame, &function) || is_mark(frame) || kind == "pcall" && frame == "pcall";
        if let Some(other) = lua.iter().find(|frame| !allowed(frame)) {
            bail!("{other} is between them");
        }
        numbers.entry(lua.len()).or_default().insert(frames[end..].join(";"));
        Ok(())
    })?;
    let most = numbers.keys().last().copied().unwrap_or(0);
    // The library's C function in which it works may be a frame as well, and the JIT compiler at work.
    let differ = most - numbers.keys().next().copied().unwrap_or(0);
    ensure!(differ <= 2 && (KEPT - 20..=KEPT).contains(&most), "frames of a stack: {numbers:#?}");
    Ok(())
}

/// Which frames may follow upon each other, outermost first, where functions call each other through `kind`.
fn is_legal(caller: &str, callee: &str, kind: &str) -> bool {
    let (through, called) = match kind {
        "sort" => ("table.sort", "compare"),
        _ => ("coroutine.wrap_aux", "body"),
    };
    let recursive = format!("kinds.{kind}");
    let kind = recursive.as_str();
    let is_native = |frame: &str| !frame.contains(DEEP) && frame != through && !is_mark(frame);
    let is_called = |frame: &str| is(frame, called);
    match (caller, callee) {
        (mark, _) | (_, mark) if is_mark(mark) => true,
        (caller, callee) if is(caller, kind) => is(callee, kind) || callee == through || is(callee, "work"),
        (caller, callee) if caller == through => is_called(callee) || through == "table.sort" && is_native(callee),
        (caller, callee) if is_called(caller) => is(callee, kind),
        (caller, callee) if is(caller, "main chunk") => is(callee, kind),
        (caller, callee) if is_native(caller) => is_called(callee) || through == "table.sort" && is_native(callee),
        _ => false,
    }
}

/// Stacks that go through C code or coroutines, of which some are among the frames that are left out.
fn mixed(program: &'static str, kind: &str, depth: &str, mark: &str) -> Result<()> {
    let Some(program) = Program::find(program) else { return Ok(()) };
    let recorded = record(&program, &[kind, depth, SECONDS], &[])?;
    check(&recorded, |frames| {
        expect_both_ends(frames, mark)?;
        let main = frames.iter().position(|frame| is(frame, "main chunk")).context("no main chunk")?;
        let end = frames.iter().position(|frame| is(frame, "work")).context("nothing works")?;
        for pair in frames[main..=end].windows(2) {
            ensure!(is_legal(&pair[0], &pair[1], kind), "{} calls {}", pair[0], pair[1]);
        }
        Ok(())
    })
}

/// Ackermann's function, which is as deep as the result is large: 2045 frames, and more and less.
fn ackermann(program: &'static str, more: &[&str]) -> Result<()> {
    let Some(program) = Program::find(program) else { return Ok(()) };
    let recorded = record(&program, &[&["ack", "8", SECONDS], more].concat(), &[])?;
    let (mut lua, mut deep, mut rootless) = (0, 0, 0);
    for stack in &recorded.folded.stacks {
        let has = |test: fn(&str) -> bool| stack.frames.iter().any(|frame| test(frame));
        if has(|frame| is(frame, "ackermann")) {
            lua += stack.samples;
            deep += if has(is_mark) { stack.samples } else { 0 };
            rootless += if has(|frame| is(frame, "main chunk")) { 0 } else { stack.samples };
        }
    }
    println!("{lua} samples, {deep} of them deep, {rootless} without a root");
    ensure!(lua > 500 && deep * 10 > lua && rootless == 0, "{deep} of {lua} are deep, {rootless} have no root");
    let complete = recorded.share("Lua complete")? + recorded.share("both ends of Lua")?;
    let least = COMPLETE - of_percent(COMPLETE, recorded.taken());
    ensure!(complete >= least, "{complete}% have both ends, less than {least}%");
    Ok(())
}

#[test]
fn recursion() -> Result<()> {
    for program in [LUAJIT, LUAJIT2, TARANTOOL] {
        plain(program, "plain", &[])?;
    }
    plain(LUAJIT, "pcall", &[])
}

#[test]
fn recursion_that_is_compiled() -> Result<()> {
    for program in [LUAJIT, LUAJIT2, TARANTOOL] {
        plain(program, "plain", &["jit"])?;
    }
    Ok(())
}

#[test]
fn recursion_through_c_code() -> Result<()> {
    for program in [LUAJIT, LUAJIT2, TARANTOOL] {
        mixed(program, "sort", "1200", "[512 to 1023 Lua frames left out]")?;
    }
    Ok(())
}

#[test]
fn recursion_through_coroutines() -> Result<()> {
    for program in [LUAJIT, LUAJIT2, TARANTOOL] {
        mixed(program, "wrap", "1400", "[512 to 1023 Lua frames left out]")?;
    }
    Ok(())
}

#[test]
fn ackermanns_function() -> Result<()> {
    for more in [&[][..], &["jit"]] {
        ackermann(LUAJIT, more)?;
    }
    Ok(())
}
