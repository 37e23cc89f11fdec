//! VMs that come into being while a memory profile is recorded, on threads of their own: on an allocator that is known, on
//! one that nothing has used before, and in a LuaJIT that was not there.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::allocations::{Allocations, Kind, Place};
use lj_trace_tests::folded::Folded;
use lj_trace_tests::patience;
use lj_trace_tests::programs::{INSTALLED_LIBRARY, LUAJIT_LIBRARY, folder as package_folder};
use lj_trace_tests::skips;
use lj_trace_tests::tracer::{Outcome, Tracer};
use lj_trace_tests::windows;
use lj_trace_tests::workload::Workload;

/// How long VMs are recorded after they were found.
const RECORDED: Duration = Duration::from_millis(1500);

/// How many seconds it may take to find them: it takes some tenths of one.
const FOUND: u64 = 30;

/// Waits until there are streams of so many VMs.
fn wait_for_streams(folder: &Path, count: usize) -> Result<()> {
    let begin = Instant::now();
    while !folder.join(format!("all-{count}.bin")).exists() {
        ensure!(begin.elapsed() < patience(FOUND), "no stream of VM {count}");
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Records the host while it starts its VMs, with options, into `all.bin` and `all.txt` in `folder`, until some time after
/// there are streams of so many VMs.
fn record(folder: &Path, arguments: &[&str], options: &[&str], streams: usize) -> Result<Outcome> {
    let arguments: Vec<&str> = [INSTALLED_LIBRARY].iter().chain(arguments).copied().collect();
    let mut host = Workload::start_host("newcomers.c", folder, &arguments)?;
    let [stream, text] = ["all.bin", "all.txt"].map(|name| folder.join(name).display().to_string());
    let pid = host.pid().to_string();
    let fixed = ["--pid", &pid, "--mode", "memprof", "-o", &stream, "-o", &text];
    let mut tracer = Tracer::start(fixed.iter().chain(options))?;
    tracer.wait_until_attached()?;
    host.go()?;
    host.report()?;
    wait_for_streams(folder, streams)?;
    if arguments.contains(&"anonymous") {
        tracer.wait_until("is not recorded")?;
    }
    std::thread::sleep(RECORDED * lj_trace_tests::slower() as u32);
    host.go()?;
    host.report()?;
    tracer.signal(libc::SIGINT)?;
    let outcome = tracer.wait()?;
    outcome.expect(0, &[]);
    Ok(outcome)
}

/// Events in lines 3 and 4 of each chunk, by streams.
fn tables(folder: &Path) -> Result<HashMap<String, [usize; 2]>> {
    let mut tables = HashMap::new();
    for file in std::fs::read_dir(folder)? {
        let path = file?.path();
        if path.extension().is_some_and(|ending| ending == "bin") {
            let stream = Allocations::read(&path)?;
            let mut own: HashMap<String, [usize; 2]> = HashMap::new();
            for event in &stream.events {
                if let (Place::Lua(name, line @ 3..=4), Kind::Alloc) = (&event.place, event.kind) {
                    own.entry(name.clone()).or_default()[*line as usize - 3] += 1;
                }
            }
            ensure!(own.len() <= 1, "{}: {own:?}", path.display());
            tables.extend(own);
        }
    }
    Ok(tables)
}

#[test]
fn new_vms_on_new_allocators_are_recorded() -> Result<()> {
    record_newcomers(&["--no-limit"])
}

/// As on kernels without `uprobe_multi` links.
#[test]
fn new_vms_on_new_allocators_are_recorded_by_classic_probes() -> Result<()> {
    record_newcomers(&["--no-limit", "--no-uprobe-multi"])
}

fn record_newcomers(options: &[&str]) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let outcome = record(folder.path(), &[], options, 3)?;
    let tables = tables(folder.path())?;
    for name in ["@first.lua", "@second.lua", "@third.lua"] {
        let lines = tables.get(name).with_context(|| format!("{tables:?}: {}", outcome.stderr))?;
        let [small, large] = lines.map(|count| count as f64);
        // Whole turns, but for the first one.
        ensure!(small > 1000.0 && (small - large).abs() <= 500.0, "{tables:?}");
    }
    ensure!(!outcome.stderr.contains("NOT ACCOUNTED FOR"), "{}", outcome.stderr);
    ensure!(!outcome.stderr.contains("could not be recorded"), "{}", outcome.stderr);
    Ok(())
}

#[test]
fn a_vm_of_a_luajit_that_is_loaded_later_is_recorded() -> Result<()> {
    // OpenResty's fork, which is not that of the other VMs.
    let other = package_folder("libluajit2-5.1-2").join(LUAJIT_LIBRARY);
    if !other.exists() {
        skips::skip("this system has no second LuaJIT");
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let outcome = record(folder.path(), &[&*other.to_string_lossy()], &["--no-limit"], 3)?;
    let tables = tables(folder.path())?;
    for name in ["@first.lua", "@second.lua", "@third.lua"] {
        let [small, large] = *tables.get(name).with_context(|| format!("{tables:?}: {}", outcome.stderr))?;
        ensure!(small > 1000 && small.abs_diff(large) <= 500, "{tables:?}");
    }
    ensure!(!outcome.stderr.contains("could not be recorded"), "{}", outcome.stderr);
    Ok(())
}

#[test]
fn an_allocator_in_anonymous_memory_is_told() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let outcome = record(folder.path(), &["anonymous"], &["--no-limit"], 2)?;
    let tables = tables(folder.path())?;
    ensure!(tables.contains_key("@second.lua") && !tables.contains_key("@third.lua"), "{tables:?}");
    for said in ["is not recorded", "anonymous memory", "VMs that came into being and could not be recorded: 1"] {
        ensure!(outcome.stderr.contains(said), "no {said:?} in {}", outcome.stderr);
    }
    Ok(())
}

#[test]
fn windows_see_new_vms_as_well() -> Result<()> {
    if !windows::are_possible() {
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let folded = folder.path().join("all.folded");
    let outcome = record(folder.path(), &[], &["--overhead", "50%", "-o", &folded.to_string_lossy()], 3)?;
    let text = std::fs::read_to_string(folder.path().join("all.txt"))?;
    let folded = Folded::parse(&std::fs::read_to_string(folded)?)?;
    let total = folded.samples() as f64;
    // What they do is the same, but two of them are known a little later.
    for chunk in ["first.lua", "second.lua", "third.lua"] {
        let share = |line: u32| {
            let name = format!("{chunk}:{line}");
            let own = folded.stacks.iter().filter(|stack| stack.frames.last() == Some(&name));
            own.map(|stack| stack.samples).sum::<u64>() as f64 / total
        };
        let (small, large) = (share(3), share(4));
        ensure!(small > 0.0 && large > small, "{chunk}: {small} and {large}\n{text}\n{}", outcome.stderr);
    }
    // Objects of new VMs are followed by polling.
    ensure!(text.contains("objects were followed") && text.contains("seen by polling"), "{text}");
    Ok(())
}
