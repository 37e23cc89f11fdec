//! Several VMs in one process: each event belongs to the right one.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::allocations::{Allocations, Kind, Place, growth};
use lj_trace_tests::programs::INSTALLED_LIBRARY;
use lj_trace_tests::skips::skip_without;
use lj_trace_tests::tracer::{Tracer, run};
use lj_trace_tests::workload::Workload;

/// What the host's allocator refuses, and what its chunks try to get.
const TOO_LARGE: u64 = 8 << 20;
/// Lengths of the strings that mark the beginning and the end.
const MARKS: (u64, u64) = (50_021, 60_037);
/// A table without anything in it (GC64).
const TABLE: u64 = 64;

/// The streams by the name of the VM's chunk, how much each heap has grown, and the summary.
type Recorded = (HashMap<String, Allocations>, HashMap<String, i64>, String);

/// Records the host, compiled with options, with options for lj-trace.
fn record(options: &[&str], arguments: &[&str], more: &[&str]) -> Result<Option<Recorded>> {
    if !Path::new(INSTALLED_LIBRARY).exists() {
        skip_without("luajit", &format!("there is no {INSTALLED_LIBRARY}"));
        return Ok(None);
    }
    let folder = tempfile::tempdir()?;
    let arguments: Vec<&str> = [INSTALLED_LIBRARY].iter().chain(arguments).copied().collect();
    let mut host = Workload::start_host_with(options, "vms.c", folder.path(), &arguments)?;
    let (pid, output) = (host.pid().to_string(), folder.path().join("vms.bin"));
    let arguments =
        ["--pid", &pid, "--mode", "memprof", "--no-limit", "--verbose", "--output", &output.to_string_lossy()];
    let mut tracer = Tracer::start(arguments.iter().chain(more))?;
    tracer.wait_until_attached()?;
    host.go()?;
    let mut heaps = HashMap::new();
    for line in host.report()? {
        let words = line.strip_prefix("vm ").and_then(|line| line.split_once(' '));
        let (name, growth) = words.with_context(|| format!("the host reported {line:?}"))?;
        heaps.insert(name.to_owned(), growth.parse()?);
    }
    tracer.signal(libc::SIGINT)?;
    let outcome = tracer.wait()?;
    outcome.expect(0, &["lost               0"]);
    let mut streams = HashMap::new();
    for file in std::fs::read_dir(folder.path())? {
        let path = file?.path();
        if path.extension().is_some_and(|ending| ending == "bin") {
            let stream = Allocations::read(&path)?;
            let name = stream.events.iter().find_map(|event| match &event.place {
                Place::Lua(name, _) => Some(name.clone()),
                _ => None,
            });
            let name = name.with_context(|| format!("no Lua in {}: {}", path.display(), outcome.stderr))?;
            streams.insert(name, stream);
        }
    }
    Ok(Some((streams, heaps, outcome.stderr)))
}

/// Records the host, and checks all that it does; gives what lj-trace said.
fn check(options: &[&str], arguments: &[&str], more: &[&str]) -> Result<Option<String>> {
    let Some((streams, heaps, summary)) = record(options, arguments, more)? else { return Ok(None) };
    // a and b run twice; e, f and g come and go while they are recorded.
    for (vm, runs) in [("=a", 2), ("=b", 2), ("=c", 1), ("=d", 1), ("=e", 1), ("=f", 1), ("=g", 1)] {
        let stream = streams.get(vm).with_context(|| format!("no stream of {vm}: {summary}"))?;
        stream.check_addresses()?;
        let foreign = stream.events.iter().find(|event| matches!(&event.place, Place::Lua(name, _) if name != vm));
        ensure!(foreign.is_none(), "in the stream of {vm}: {foreign:?}");
        let events = stream.between(MARKS.0, MARKS.1)?;
        for line in [2, 5] {
            let place = Place::Lua(vm.to_owned(), line);
            let tables = events.iter().filter(|event| event.place == place && event.new == TABLE);
            ensure!(tables.count() == 500 * runs, "{vm}:{line} has not made {} tables", 500 * runs);
        }
        ensure!(growth(events) == heaps[vm], "{vm}: {} bytes instead of {}", growth(events), heaps[vm]);
        let large = events.iter().filter(|event| event.new >= TOO_LARGE).count();
        let expected = if ["=c", "=d", "=f"].contains(&vm) { 0 } else { large.max(1) };
        ensure!(large == expected, "{vm}: {large} events of what cannot be had");
    }
    // These were closed: whatever they had is freed, their own state last.
    for vm in ["=b", "=e", "=f", "=g"] {
        let last = streams[vm].events.last();
        ensure!(last.is_some_and(|event| event.kind == Kind::Free), "{vm}: {last:?}");
    }
    // And these are known from their first block on.
    for vm in ["=e", "=f", "=g"] {
        let first = streams[vm].events.first();
        let is_first = first.is_some_and(|event| event.kind == Kind::Alloc && event.place == Place::Internal);
        ensure!(is_first, "{vm}: {first:?}");
    }
    // Of f even that one is given back by the allocator that is recorded.
    let left: i64 = growth(&streams["=f"].events);
    ensure!(left == 0, "f has left {left} bytes");
    ensure!(streams.len() == 7, "{} streams", streams.len());
    ensure!(summary.contains("allocations that failed: "), "{summary}");
    ensure!(!summary.contains("NOT ACCOUNTED FOR"), "{summary}");
    Ok(Some(summary))
}

#[test]
fn vms_with_data_of_their_own() -> Result<()> {
    check(&[], &[], &[]).map(drop)
}

/// Not optimized, the allocator begins with an instruction that all calls pass, and comes to no better one: frees pass the
/// instruction that results are taken at.
const FREES_PASS_RETURNS: &[&str] = &["-O0"];

#[test]
fn vms_whose_allocator_cannot_tell_frees_apart_early() -> Result<()> {
    let Some(said) = check(FREES_PASS_RETURNS, &[], &[])? else { return Ok(()) };
    ensure!(said.contains("all calls, "), "{said}");
    Ok(())
}

/// As kernels before 6.13 need it.
#[test]
fn vms_with_separate_programs_for_calls_and_returns() -> Result<()> {
    let Some(said) = check(FREES_PASS_RETURNS, &[], &["--no-uprobe-session"])? else { return Ok(()) };
    ensure!(said.contains("one program sees calls and another returns"), "{said}");
    Ok(())
}

/// As kernels before 6.6 need it.
#[test]
fn vms_with_a_perf_event_for_each_probe() -> Result<()> {
    let Some(said) = check(&[], &[], &["--no-uprobe-multi"])? else { return Ok(()) };
    ensure!(said.contains("each probe is a perf event"), "{said}");
    Ok(())
}

#[test]
fn an_allocator_in_memory_of_no_file_is_refused() -> Result<()> {
    if !Path::new(INSTALLED_LIBRARY).exists() {
        skip_without("luajit", &format!("there is no {INSTALLED_LIBRARY}"));
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let host = Workload::start_host("vms.c", folder.path(), &[INSTALLED_LIBRARY, "anonymous"])?;
    let pid = host.pid().to_string();
    let output = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let refused = run(["--pid", &pid, "--mode", "memprof", "--output", &output("m.bin")])?;
    refused.expect(69, &["anonymous memory", "--mode sysprof"]);
    // Its CPU profile can be had, as the message says.
    run(["--pid", &pid, "--duration", "100ms", "--output", &output("s.bin")])?.expect(0, &[]);
    Ok(())
}

#[test]
fn vms_whose_allocator_has_no_data() -> Result<()> {
    check(&[], &["same-data"], &[]).map(drop)
}
