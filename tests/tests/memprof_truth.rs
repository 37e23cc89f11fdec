//! A workload that knows every call of the VM's allocator is recorded on every build; what lj-trace says is held
//! against what the workload knows, line by line, and to the byte.

use std::sync::OnceLock;

use anyhow::Result;
use lj_trace_tests::allocations::{Kind, Place, count, growth};
use lj_trace_tests::memory_truth::{MemoryRun, chunk};
use lj_trace_tests::programs::{ALL, Program};
use lj_trace_tests::workload::{MEMORY, Workload};

/// Records the workload on a program.
fn record(program: &'static str, mode: &str, more: &[&str]) -> Result<Option<MemoryRun>> {
    let Some(program) = Program::find(program) else { return Ok(None) };
    let folder = tempfile::tempdir()?;
    let mut workload = Workload::start(&program, MEMORY, &[])?;
    MemoryRun::of(&mut workload, mode, more, folder.path()).map(Some)
}

/// Runs a check on every build. A build is recorded once, by the first check that wants it.
#[track_caller]
fn on_every_build(check: impl Fn(&MemoryRun) -> Result<Vec<String>>) {
    static RUNS: [OnceLock<Result<Option<MemoryRun>, String>>; ALL.len()] = [const { OnceLock::new() }; ALL.len()];
    let mut failures = Vec::new();
    for (program, run) in ALL.into_iter().zip(&RUNS) {
        match run.get_or_init(|| record(program, "memprof", &[]).map_err(|error| format!("{error:#}"))) {
            Ok(Some(run)) => {
                let found = check(run).unwrap_or_else(|error| vec![format!("{error:#}")]);
                failures.extend(found.into_iter().map(|failure| format!("{program}: {failure}")));
            }
            Ok(None) => {}
            Err(error) => failures.push(format!("{program}: {error}")),
        }
    }
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}

#[test]
fn every_line_does_what_it_says() {
    on_every_build(MemoryRun::check_counts);
}

#[test]
fn lines_that_are_known_by_their_sum_add_up() {
    on_every_build(MemoryRun::check_sums);
}

#[test]
fn the_heap_balances_to_the_byte() {
    on_every_build(MemoryRun::check_balance);
}

#[test]
fn addresses_are_consistent() {
    on_every_build(|run| {
        run.recorded.check_addresses()?;
        Ok(Vec::new())
    });
}

#[test]
fn the_summary_counts_what_the_stream_holds() {
    on_every_build(|run| {
        let of = |kind| run.recorded.events.iter().filter(|event| event.kind == kind).count();
        let lines = [
            format!("{} allocation events", run.recorded.events.len()),
            "lost               0".to_owned(),
            format!("allocations        {}", of(Kind::Alloc)),
            format!("reallocations      {}", of(Kind::Realloc)),
            format!("frees              {}", of(Kind::Free)),
            format!("growth of the heap {}", growth(&run.recorded.events)),
        ];
        let missing = lines.iter().filter(|line| !run.summary.contains(*line));
        let mut failures: Vec<_> = missing.map(|line| format!("no {line:?} in {}", run.summary)).collect();
        if run.summary.contains("NOT ACCOUNTED FOR") {
            failures.push(run.summary.clone());
        }
        Ok(failures)
    });
}

/// The sampler's timer hits while the allocation probes work.
#[test]
fn samples_cost_no_events() -> Result<()> {
    for program in ALL {
        let Some(run) = record(program, "all", &["--rate", "19999"])? else { continue };
        assert_eq!(growth(run.events()?), run.known.heap, "{program}");
        assert!(!run.summary.contains("NOT ACCOUNTED FOR"), "{}", run.summary);
    }
    Ok(())
}

#[test]
fn every_version_of_the_stream_says_the_same() -> Result<()> {
    for version in 1..=3 {
        let wanted = version.to_string();
        let Some(run) = record(ALL[0], "memprof", &["--stream-version", &wanted])? else { return Ok(()) };
        assert_eq!(run.recorded.version, version);
        let events = run.events()?;
        assert_eq!(growth(events), run.known.heap, "version {version}");
        // Before version 3 there are no names of C functions, nor of chunks that are loaded later.
        let chunk = chunk();
        let named = |(place, ..): &&(Place, Kind, u64, u64)| matches!(place, Place::Lua(name, _) if *name == chunk);
        let seen = count(events);
        for key in run.known.counts.keys().filter(named) {
            assert_eq!(seen.get(key), run.known.counts.get(key), "version {version}: {key:?}");
        }
    }
    Ok(())
}
