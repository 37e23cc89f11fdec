//! The guide's stories say what they are told for.

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::folded::Folded;
use lj_trace_tests::stories::{Teller, fallback, leak, worker};
use lj_trace_tests::tracer::run;

fn teller() -> Result<(Teller, tempfile::TempDir)> {
    let folder = tempfile::tempdir()?;
    Ok((Teller { folder: folder.path().to_owned(), seconds: 2 }, folder))
}

fn report(teller: &Teller, file: &str, format: &str) -> Result<String> {
    let outcome = run(["report", &teller.file(file).to_string_lossy(), "--format", format])?;
    outcome.expect(0, &[]);
    Ok(outcome.stdout)
}

/// The share, in percent, that a report gives to a VM state.
fn state(text: &str, state: &str) -> f64 {
    let row = text.lines().find(|line| line.starts_with(state));
    let percent = row.and_then(|row| row.split_whitespace().find(|word| word.ends_with('%')));
    percent.and_then(|percent| percent.trim_end_matches('%').parse().ok()).unwrap_or(0.0)
}

#[test]
fn a_worker_at_full_load() -> Result<()> {
    let (teller, _folder) = teller()?;
    if worker(&teller)?.is_none() {
        return Ok(());
    }
    let slow = Folded::parse(&report(&teller, "slow.bin", "folded")?)?;
    let appending = slow.samples_where(|stack| stack.frames.iter().any(|frame| frame.starts_with("append_rows@")));
    ensure!(appending * 2 > slow.samples(), "{appending} of {} samples append rows", slow.samples());
    let [slow, fixed] = ["slow.bin", "fixed.bin"].map(|file| report(&teller, file, "text"));
    let (slow, fixed) = (state(&slow?, "GC"), state(&fixed?, "GC"));
    ensure!(slow > 10.0 && fixed < slow / 2.0, "{slow}% in the garbage collector before, {fixed}% after");
    ensure!(std::fs::read_to_string(teller.file("worker-diff.svg"))?.contains("join_rows@"));
    Ok(())
}

#[test]
fn the_line_that_leaks() -> Result<()> {
    let (teller, _folder) = teller()?;
    leak(&teller)?.context("Debian's luajit is everywhere")?;
    // What traces allocate has lines there; a stream knows only the trace.
    let text = std::fs::read_to_string(teller.file("leak.txt"))?;
    let (_, held) = text.split_once("Still held").with_context(|| format!("nothing is held: {text}"))?;
    // The note and its text; the garbage that is not collected yet is less.
    let first = held.lines().nth(2).context("no line holds anything")?;
    // The line, or where it is not certain, the trace that it runs in.
    let is_named =
        first.contains("stories/leak.lua:27") || first.contains("TRACE") && first.contains("@stories/leak.lua");
    ensure!(is_named, "{first} in\n{text}");
    // Most of the heap are these notes, in one list.
    let heap = std::fs::read_to_string(teller.file("heap.txt"))?;
    ensure!(heap.contains("main coroutine") && heap.contains("[*]"), "{heap}");
    Ok(())
}

#[test]
fn the_compiler_that_gave_up() -> Result<()> {
    let (teller, _folder) = teller()?;
    fallback(&teller)?.context("Debian's luajit is everywhere")?;
    let [slow, fixed] = ["interpreted.bin", "compiled.bin"].map(|file| report(&teller, file, "text"));
    let (slow, fixed) = (slow?, fixed?);
    ensure!(state(&slow, "compiled") < 50.0 && state(&slow, "interpreter") > 20.0, "{slow}");
    ensure!(state(&fixed, "compiled") > 60.0 && state(&fixed, "interpreter") < 10.0, "{fixed}");
    Ok(())
}
