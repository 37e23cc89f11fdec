//! Several VMs in one process: each has its own streams and its own root, and one of them can be picked.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::chance::of_weighted_count;
use lj_trace_tests::folded::Folded;
use lj_trace_tests::pauses::Pauses;
use lj_trace_tests::programs::{LUAJIT, Program};
use lj_trace_tests::tracer::{Outcome, Tracer, exit_code, run};
use lj_trace_tests::usage::stolen;
use lj_trace_tests::workload::Workload;
use serde_json::Value;

/// Every thread runs in a VM of its own.
const THREADS: &str = "threads.lua";
const COUNT: usize = 3;
/// Samples a second.
const RATE: f64 = 499.0;

/// Threads that are started and wait.
fn start() -> Result<Workload> {
    let program = Program::find(LUAJIT).context("the demo's luajit is everywhere")?;
    let mut workload = Workload::start(&program, THREADS, &[&COUNT.to_string(), "0.5"])?;
    workload.go()?;
    workload.expect("started")?;
    Ok(workload)
}

/// The numbers of the threads whose code is in a profile; that of the main VM is in threads.lua.
fn chunks<'a>(frames: impl Iterator<Item = &'a String>) -> BTreeSet<String> {
    let chunk = |frame: &String| Some(frame.split_once("@thread")?.1.split_once(".lua")?.0.to_owned());
    frames.filter_map(chunk).filter(|number| number != "s").collect()
}

/// What a recording came to.
struct Recorded {
    folded: Folded,
    /// How lj-trace ended and what it said.
    outcome: Outcome,
    /// The CPU time of each thread, as the workload reports it.
    report: Vec<String>,
    /// How much of the CPUs was taken away meanwhile, in seconds.
    gone: f64,
}

fn record(workload: &mut Workload, folder: &Path, more: &[&str]) -> Result<Recorded> {
    let path = |name: &str| folder.join(name).to_string_lossy().into_owned();
    let (pid, stream, folded) = (workload.pid().to_string(), path("vms.bin"), path("vms.folded"));
    let arguments = ["--pid", &pid, "--rate", &RATE.to_string(), "--output", &stream, "--output", &folded];
    let mut tracer = Tracer::start(arguments.iter().chain(more))?;
    tracer.wait_until_attached()?;
    let (stolen_before, pauses) = (stolen()?, Pauses::watch());
    workload.go()?;
    let report = workload.report()?;
    let gone = pauses.end() + stolen()? - stolen_before;
    tracer.signal(libc::SIGINT)?;
    let outcome = tracer.wait()?;
    outcome.expect(0, &[]);
    let folded = Folded::parse(&std::fs::read_to_string(&folded)?)?;
    Ok(Recorded { folded, outcome, report, gone })
}

/// The VMs that `list` shows: their addresses, and the files that they execute.
fn listed(workload: &Workload) -> Result<Vec<(String, String)>> {
    let outcome = run(["list", "--json"])?;
    outcome.expect(0, &[]);
    let listing: Value = serde_json::from_str(&outcome.stdout)?;
    let process =
        listing["processes"].as_array().into_iter().flatten().find(|process| process["pid"] == workload.pid());
    let vms = process.and_then(|process| process["vms"].as_array()).with_context(|| format!("{listing:#}"))?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Ok(vms.iter().map(|vm| (text(&vm["address"]), text(&vm["doing"]["source"]))).collect())
}

#[test]
fn each_is_a_root_and_has_a_stream() -> Result<()> {
    let mut workload = start()?;
    let folder = tempfile::tempdir()?;
    let Recorded { folded, outcome: Outcome { stderr: said, .. }, .. } = record(&mut workload, folder.path(), &[])?;
    let mut seen = BTreeSet::new();
    for number in 1..=COUNT + 1 {
        ensure!(said.contains(&format!("VM {number} at 0x")), "{said}");
        let root = format!("VM {number}");
        let own = folded.stacks.iter().filter(|stack| stack.frames.first() == Some(&root));
        let of_root = chunks(own.flat_map(|stack| &stack.frames));
        let stream = folder.path().join(format!("vms-{number}.bin"));
        let report = run(["report", &stream.to_string_lossy(), "--format", "folded"])?;
        report.expect(0, &[]);
        let of_stream = Folded::parse(&report.stdout)?;
        // A stream has one VM, and no root: there is nothing to tell apart.
        ensure!(of_stream.stacks.iter().all(|stack| !stack.frames[0].starts_with("VM ")), "{of_stream:#?}");
        let of_stream = chunks(of_stream.stacks.iter().flat_map(|stack| &stack.frames));
        ensure!(of_root == of_stream && of_root.len() <= 1, "VM {number}: {of_root:?} and {of_stream:?}");
        seen.extend(of_root);
    }
    ensure!(seen.into_iter().eq(["1", "2", "3"]), "{folded:#?}");
    Ok(())
}

#[test]
fn one_can_be_picked() -> Result<()> {
    let mut workload = start()?;
    let vms = listed(&workload)?;
    let (address, _) = vms.iter().find(|(_, source)| source == "thread2.lua").with_context(|| format!("{vms:?}"))?;
    let folder = tempfile::tempdir()?;
    let Recorded { folded, outcome, report, gone } = record(&mut workload, folder.path(), &["--vm", address])?;
    let said = &outcome.stderr;
    ensure!(chunks(folded.stacks.iter().flat_map(|stack| &stack.frames)).into_iter().eq(["2"]), "{folded:#?}");
    ensure!(folded.stacks.iter().all(|stack| !stack.frames[0].starts_with("VM ")), "{folded:#?}");
    // Half a second, of this thread alone: all three have three times as many.
    let seconds: f64 = report.iter().find_map(|line| line.strip_prefix("thread 2 ")).context("no time")?.parse()?;
    let (samples, expected) = (folded.samples() as f64, seconds * RATE);
    let tolerance = of_weighted_count(expected, outcome.weight()) + gone * RATE;
    ensure!((samples - expected).abs() <= tolerance, "{samples} samples of {expected} +-{tolerance}: {said}");
    ensure!(said.contains(&format!(" at {address}: ")), "{said}");
    ensure!(said.contains("(left out)"), "{said}");
    let mut files: Vec<String> = Vec::new();
    for file in std::fs::read_dir(folder.path())? {
        files.push(file?.file_name().to_string_lossy().into_owned());
    }
    files.sort();
    ensure!(files == ["vms.bin", "vms.folded"], "{files:?}");
    Ok(())
}

#[test]
fn memory_of_one_can_be_picked() -> Result<()> {
    let mut workload = start()?;
    let vms = listed(&workload)?;
    let (address, _) = vms.iter().find(|(_, source)| source == "thread3.lua").with_context(|| format!("{vms:?}"))?;
    let folder = tempfile::tempdir()?;
    let Recorded { folded, outcome: Outcome { stderr: said, .. }, .. } =
        record(&mut workload, folder.path(), &["--mode", "memprof", "--no-limit", "--vm", address])?;
    // It makes boxed numbers of the FFI's; the main VM, which prints, is left out.
    ensure!(chunks(folded.stacks.iter().flat_map(|stack| &stack.frames)).into_iter().eq(["3"]), "{folded:#?}: {said}");
    ensure!(!folded.stacks.iter().flat_map(|stack| &stack.frames).any(|frame| frame.contains("threads.lua")), "{said}");
    ensure!(!said.contains("NOT ACCOUNTED FOR"), "{said}");
    Ok(())
}

#[test]
fn a_wrong_address_is_told_the_right_ones() -> Result<()> {
    let workload = start()?;
    let pid = workload.pid().to_string();
    let addresses: Vec<String> = listed(&workload)?.into_iter().map(|(address, _)| address).collect();
    let expected: Vec<&str> = addresses.iter().map(String::as_str).chain(["has no VM at 0x1000"]).collect();
    run(["--pid", &pid, "--vm", "0x1000"])?.expect(exit_code::NO_LUAJIT, &expected);
    run(["--pid", &pid, "--vm", "first"])?.expect(exit_code::USAGE, &["0x7f30c8a193f0"]);
    run(["--pid", &pid, "--vm", "0x1000", "--children"])?.expect(exit_code::USAGE, &["--children"]);
    Ok(())
}

#[test]
fn dump_shows_each_on_its_thread() -> Result<()> {
    let workload = start()?;
    let outcome = run(["dump", "--pid", &workload.pid().to_string(), "--json"])?;
    outcome.expect(0, &[]);
    let dump: Value = serde_json::from_str(&outcome.stdout)?;
    ensure!(dump["vms"].as_array().is_some_and(|vms| vms.len() == COUNT + 1), "{dump:#}");
    let threads = dump["threads"].as_array().context("no threads")?;
    let functions = |thread: &Value| -> Vec<String> {
        let frames = thread["frames"].as_array().into_iter().flatten();
        frames.filter_map(|frame| Some(frame["function"].as_str()?.to_owned())).collect()
    };
    let of_threads: Vec<BTreeSet<String>> = threads.iter().map(|thread| chunks(functions(thread).iter())).collect();
    ensure!(of_threads.iter().all(|chunks| chunks.len() <= 1), "{of_threads:?} {dump:#}");
    ensure!(
        of_threads.iter().flatten().map(String::as_str).collect::<BTreeSet<_>>().len() == COUNT,
        "{of_threads:?} {dump:#}"
    );
    Ok(())
}
