//! Samples and waits of Tarantool have the labels of the fiber that runs, or are marked.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::consumers::Pprof;
use lj_trace_tests::fibers::{CheckedFibers, FiberSite, own_id};
use lj_trace_tests::folded::Folded;
use lj_trace_tests::labelled::{record_computing, record_grouped};
use lj_trace_tests::programs::{LUAJIT, Program, TARANTOOL};
use lj_trace_tests::tracer::{Outcome, Tracer};
use lj_trace_tests::workload::Workload;

/// Records a process for some seconds.
fn record(pid: u32, seconds: u64, more: &[&str], output: &Path) -> Result<Outcome> {
    let (pid, time, output) = (pid.to_string(), format!("{seconds}s"), output.display().to_string());
    let whom = ["--pid", &pid, "--duration", &time, "--force", "-v", "--output", &output];
    let outcome = Tracer::start(whom.iter().chain(more))?.wait_for(Duration::from_secs(seconds + 60))?;
    outcome.expect(0, &[]);
    Ok(outcome)
}

/// Records the fibers of a seed, grouped by their names; gives how many samples are right, and how many marked.
fn check_names(site: &FiberSite, seed: u64, seconds: f64) -> Result<[u64; 2]> {
    let folder = tempfile::tempdir()?;
    let grouped = ["--group-by", "fiber"];
    let (folded, outcome) = record_grouped(site.workload.pid(), seconds, &grouped, folder.path())?;
    let checked = site.check(&folded)?;
    let CheckedFibers { right, unknown, others, wrong, labels } = checked;
    println!("seed {seed}: {right} right, {unknown} marked, {others} elsewhere: {labels:?}");
    ensure!(wrong.is_empty(), "seed {seed}: {}\n{}", wrong.join("\n"), outcome.stderr);
    ensure!(right > unknown * 20 && labels.len() > 3, "seed {seed}: {}", outcome.stderr);
    Ok([right, unknown])
}

/// Records what the fibers of a seed allocate, by their names; gives how many bytes are right, and how many are marked.
fn check_memory(site: &FiberSite, seed: u64, seconds: u64) -> Result<[u64; 2]> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("memory.folded");
    let grouped = ["--mode", "memprof", "--no-limit", "--group-by", "fiber"];
    let outcome = record(site.workload.pid(), seconds, &grouped, &file)?;
    let checked = site.check(&Folded::parse(&std::fs::read_to_string(file)?)?)?;
    let CheckedFibers { right, unknown, others, wrong, labels } = checked;
    println!("seed {seed}: {right} bytes right, {unknown} marked, {others} elsewhere: {labels:?}");
    ensure!(wrong.is_empty(), "seed {seed}: {}\n{}", wrong.join("\n"), outcome.stderr);
    ensure!(right > unknown * 20 && labels.len() > 3, "seed {seed}: {}", outcome.stderr);
    let has_table = outcome.stderr.lines().any(|line| line.contains("allocated") && line.ends_with("  fiber"));
    ensure!(has_table && !outcome.stderr.contains("LOST"), "seed {seed}: {}", outcome.stderr);
    Ok([right, unknown])
}

/// Records the fibers of a seed with all labels, and compares names and ids with what the stacks tell.
fn check_ids(site: &FiberSite, seed: u64, pprof: &Pprof) -> Result<u64> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("fibers.pb.gz");
    let outcome = record_computing(site.workload.pid(), 1.5, &[], &file)?;
    let (mut names, mut right, mut wrong) = (CheckedFibers::default(), 0, Vec::new());
    for sample in traces(&pprof.print(&file, &["-traces"])?) {
        let value = |key: &str| sample.labels.iter().find(|(own, _)| own == key).map(|(_, value)| value.as_str());
        if let (Some(label), Some(found)) = (site.truth(sample.frames.iter()), value("fiber")) {
            names.note(found, label, 1, || sample.frames.join(";"));
        }
        let (Some(own), Some(id)) = (sample.frames.iter().find_map(|frame| own_id(frame)), value("fiber_id")) else {
            continue;
        };
        if id == own.to_string() {
            right += 1;
        } else {
            wrong.push(format!("{own} has the id {id}: {}", sample.frames.join(";")));
        }
    }
    println!("seed {seed}: {right} stacks with the right id, {} with the right name", names.right);
    ensure!(
        wrong.is_empty() && names.wrong.is_empty(),
        "seed {seed}: {wrong:#?} {:#?}\n{}",
        names.wrong,
        outcome.stderr
    );
    Ok(right)
}

/// A sample of `pprof -traces`: its labels, and its frames from the innermost outward.
#[derive(Default)]
struct Trace {
    labels: Vec<(String, String)>,
    frames: Vec<String>,
}

fn traces(text: &str) -> Vec<Trace> {
    let mut traces = Vec::new();
    for block in text.split("-----------+-----").skip(1) {
        let mut trace = Trace::default();
        for line in block.lines().skip(1) {
            let label = line.split_once(": ").filter(|(key, _)| trace.frames.is_empty() && is_word(key.trim()));
            match label {
                Some((key, value)) => trace.labels.push((key.trim().to_owned(), value.trim_start().to_owned())),
                None if trace.frames.is_empty() => {
                    // The first frame comes after the value.
                    trace.frames.extend(line.trim().split_once(' ').map(|(_, frame)| frame.trim().to_owned()));
                }
                None => trace.frames.push(line.trim().to_owned()),
            }
        }
        traces.push(trace);
    }
    traces
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_lowercase() || c == '_')
}

#[test]
fn labels_are_those_of_the_function_that_runs() -> Result<()> {
    let Some(program) = Program::find(TARANTOOL) else { return Ok(()) };
    for seed in 1..=3 {
        check_names(&FiberSite::start(&program, seed)?, seed, 1.0)?;
    }
    Ok(())
}

#[test]
fn bytes_are_those_of_the_fiber_that_allocates() -> Result<()> {
    let Some(program) = Program::find(TARANTOOL) else { return Ok(()) };
    for seed in 1..=2 {
        check_memory(&FiberSite::start(&program, seed)?, seed, 2)?;
    }
    Ok(())
}

/// As many random programs as `LJ_TRACE_REQUEST_SEEDS` says.
#[test]
#[ignore = "takes some minutes"]
fn bytes_of_many_programs() -> Result<()> {
    let Some(program) = Program::find(TARANTOOL) else { return Ok(()) };
    let seeds = std::env::var("LJ_TRACE_REQUEST_SEEDS").ok().and_then(|count| count.parse().ok()).unwrap_or(20);
    let (mut right, mut unknown) = (0, 0);
    for seed in 100..100 + seeds {
        let [of_seed, marked] = check_memory(&FiberSite::start(&program, seed)?, seed, 3)?;
        (right, unknown) = (right + of_seed, unknown + marked);
        println!("so far: {right} bytes right, {unknown} marked, 0 wrong");
    }
    Ok(())
}

#[test]
fn ids_are_those_of_the_fiber_that_runs() -> Result<()> {
    let (Some(program), Some(pprof)) = (Program::find(TARANTOOL), Pprof::find()) else { return Ok(()) };
    for seed in 1..=3 {
        let right = check_ids(&FiberSite::start(&program, seed)?, seed, &pprof)?;
        ensure!(right > 50, "seed {seed}: hardly any ids");
    }
    Ok(())
}

/// As many samples as `LJ_TRACE_FIBER_SAMPLES` says, of as many random programs as it takes.
#[test]
#[ignore = "takes a minute for some ten thousand samples"]
fn labels_of_many_samples() -> Result<()> {
    let number = |name: &str, usual| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual);
    let Some(program) = Program::find(TARANTOOL) else { return Ok(()) };
    let (mut right, mut unknown) = (0, 0);
    for seed in number("LJ_TRACE_FIBER_SEED", 100).. {
        let site = FiberSite::start(&program, seed)?;
        let [of_seed, marked] = check_names(&site, seed, 10.0)?;
        (right, unknown) = (right + of_seed, unknown + marked);
        println!("so far: {right} right, {unknown} marked, 0 wrong");
        if right >= number("LJ_TRACE_FIBER_SAMPLES", 20_000) {
            break;
        }
    }
    Ok(())
}

#[test]
fn waits_have_the_fiber_that_waits() -> Result<()> {
    let Some(program) = Program::find(TARANTOOL) else { return Ok(()) };
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("waits.folded");
    let (mut right, mut kinds) = (0, 0);
    for seed in 11..=12 {
        let site = FiberSite::start_waiting(&program, seed)?;
        let outcome =
            record(site.workload.pid(), 4, &["--mode", "waits", "--group-by", "fiber", "--interval", "200ms"], &file)?;
        let checked = site.check(&Folded::parse(&std::fs::read_to_string(&file)?)?)?;
        ensure!(checked.wrong.is_empty(), "seed {seed}: {}\n{}", checked.wrong.join("\n"), outcome.stderr);
        ensure!(outcome.stderr.contains("with a fiber"), "{}", outcome.stderr);
        println!("seed {seed}: {checked:?}");
        (right, kinds) = (right + checked.right, kinds + checked.labels.len());
    }
    ensure!(right > 0 && kinds > 3, "hardly any waits");
    Ok(())
}

#[test]
fn only_what_is_asked_for_is_kept_and_the_table_names_fibers() -> Result<()> {
    let Some(program) = Program::find(TARANTOOL) else { return Ok(()) };
    let site = FiberSite::start(&program, 4)?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("only.folded");
    // Fibers whose functions never run while a sample is taken are rare.
    let label = site.labels().find(|label| label.len() < 20).context("no short name")?.to_owned();
    let only = format!("fiber={label}");
    let (folded, outcome) = record_grouped(site.workload.pid(), 2.0, &["--only", &only], folder.path())?;
    for stack in &folded.stacks {
        if let Some(truth) = site.truth(stack.frames.iter().rev()) {
            ensure!(truth == label, "{truth:?}: {}\n{}", stack.frames.join(";"), outcome.stderr);
        }
    }
    ensure!(folded.samples() > 0 && outcome.stderr.contains("which --only leaves out"), "{}", outcome.stderr);
    let (pid, output) = (site.workload.pid().to_string(), file.display().to_string());
    let whole = ["--pid", &pid, "--duration", "2s", "--rate", "499", "--force", "--output", &output];
    let table = Tracer::start(whole)?.wait()?;
    table.expect(0, &[]);
    ensure!(table.stderr.contains(&label) || table.stderr.contains("more fiber"), "{}", table.stderr);
    Ok(())
}

#[test]
fn a_program_without_fibers_says_so() -> Result<()> {
    let Some(program) = Program::find(LUAJIT) else { return Ok(()) };
    let mut workload = Workload::start(&program, "truth.lua", &["60"])?;
    workload.go()?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("none.folded");
    let outcome = record(workload.pid(), 1, &["--group-by", "fiber"], &file)?;
    ensure!(outcome.stderr.contains("it has no fibers of Tarantool"), "{}", outcome.stderr);
    workload.kill()?;
    Ok(())
}
