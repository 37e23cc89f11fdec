//! A workload that knows every call of the VM's allocator is recorded on every build; what lj-trace says is held
//! against what the workload knows, line by line, and to the byte.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use anyhow::{Context as _, Result, bail};
use lj_trace_tests::allocations::{Allocation, Allocations, Counts, Kind, Place, count, growth};
use lj_trace_tests::programs::{ALL, Program};
use lj_trace_tests::tracer::Tracer;
use lj_trace_tests::workload::{MEMORY, Workload};

/// What the workload knows.
#[derive(Debug, Default)]
struct Known {
    /// Events of its lines and of C functions.
    counts: Counts,
    /// Growth of the heap by lines of which only that is known.
    sums: BTreeMap<u64, i64>,
    /// Lengths of the strings that mark the beginning and the end.
    marks: (u64, u64),
    /// Growth of the heap between them.
    heap: i64,
}

/// A recorded run of the workload.
struct Run {
    known: Known,
    recorded: Allocations,
    summary: String,
}

/// The chunkname of the workload.
fn chunk() -> String {
    format!("@{MEMORY}")
}

impl Known {
    fn read(lines: &[String]) -> Result<Self> {
        let mut known = Self::default();
        for line in lines {
            known.add(line).with_context(|| format!("the workload reported {line:?}"))?;
        }
        Ok(known)
    }

    fn add(&mut self, line: &str) -> Result<()> {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["event", source, kind, count, old, new] => {
                let place =
                    source.parse().map_or_else(|_| Place::C(source.to_owned()), |line| Place::Lua(chunk(), line));
                let kind = match kind {
                    "alloc" => Kind::Alloc,
                    "realloc" => Kind::Realloc,
                    "free" => Kind::Free,
                    _ => bail!("an unknown kind of event"),
                };
                let key = (place, kind, old.parse()?, new.parse()?);
                *self.counts.entry(key).or_default() += count.parse::<u64>()?;
            }
            ["sum", line, growth] => {
                self.sums.insert(line.parse()?, growth.parse()?);
            }
            ["round", chunk, line, count, size] => {
                let key = (Place::Lua(format!("={chunk}"), line.parse()?), Kind::Alloc, 0, size.parse()?);
                self.counts.insert(key, count.parse()?);
            }
            ["mark", begin, end] => self.marks = (begin.parse()?, end.parse()?),
            ["heap", growth] => self.heap = growth.parse()?,
            _ => bail!("it is not understood"),
        }
        Ok(())
    }
}

impl Run {
    fn of(program: &'static str, mode: &str, more: &[&str]) -> Result<Option<Self>> {
        let Some(program) = Program::find(program) else { return Ok(None) };
        let folder = tempfile::tempdir()?;
        let output = folder.path().join("memory.bin");
        // If both are recorded, each file's name says what is in it.
        let stream = folder.path().join(if mode == "all" { "memory.memprof.bin" } else { "memory.bin" });
        let mut workload = Workload::start(&program, MEMORY, &[])?;
        let (pid, output_name) = (workload.pid().to_string(), output.to_string_lossy());
        let arguments = ["--pid", &pid, "--mode", mode, "--output", &output_name];
        let mut tracer = Tracer::start(arguments.iter().chain(more))?;
        tracer.wait_until_attached()?;
        workload.go()?;
        let known = Known::read(&workload.report()?)?;
        tracer.signal(libc::SIGINT)?;
        let outcome = tracer.wait()?;
        outcome.expect(0, &[]);
        Ok(Some(Self { known, recorded: Allocations::read(&stream)?, summary: outcome.stderr }))
    }

    fn events(&self) -> Result<&[Allocation]> {
        self.recorded.between(self.known.marks.0, self.known.marks.1)
    }
}

/// Runs a check on every build. A build is recorded once, by the first check that wants it.
#[track_caller]
fn on_every_build(check: impl Fn(&Run) -> Result<Vec<String>>) {
    static RUNS: [OnceLock<Result<Option<Run>, String>>; ALL.len()] = [const { OnceLock::new() }; ALL.len()];
    let mut failures = Vec::new();
    for (program, run) in ALL.into_iter().zip(&RUNS) {
        match run.get_or_init(|| Run::of(program, "memprof", &[]).map_err(|error| format!("{error:#}"))) {
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
    on_every_build(|run| {
        let known = &run.known;
        let by_sum = |place: &Place| matches!(place, Place::Lua(name, line) if *name == chunk() && known.sums.contains_key(line));
        // What the VM does by itself is not known in numbers, only that the heap balances in the end.
        let own = |event: &&Allocation| event.place != Place::Internal && !by_sum(&event.place);
        let mut seen = count(run.events()?.iter().filter(own));
        let mut failures = Vec::new();
        for (key, expected) in &known.counts {
            let count = seen.remove(key).unwrap_or(0);
            if count != *expected {
                failures.push(format!("{key:?}: {count} events instead of {expected}"));
            }
        }
        failures.extend(seen.iter().map(|(key, count)| format!("{key:?}: {count} events instead of none")));
        Ok(failures)
    });
}

#[test]
fn lines_that_are_known_by_their_sum_add_up() {
    on_every_build(|run| {
        let events = run.events()?;
        let sums = run.known.sums.iter().filter_map(|(&line, &expected)| {
            let place = Place::Lua(chunk(), line);
            let sum = growth(events.iter().filter(|event| event.place == place));
            (sum != expected).then(|| format!("line {line}: {sum} bytes instead of {expected}"))
        });
        Ok(sums.collect())
    });
}

#[test]
fn the_heap_balances_to_the_byte() {
    on_every_build(|run| {
        let sum = growth(run.events()?);
        let expected = run.known.heap;
        Ok((sum != expected).then(|| format!("{sum} bytes instead of {expected}")).into_iter().collect())
    });
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
        let Some(run) = Run::of(program, "all", &["--rate", "19999"])? else { continue };
        assert_eq!(growth(run.events()?), run.known.heap, "{program}");
        assert!(!run.summary.contains("NOT ACCOUNTED FOR"), "{}", run.summary);
    }
    Ok(())
}

#[test]
fn every_version_of_the_stream_says_the_same() -> Result<()> {
    for version in 1..=3 {
        let wanted = version.to_string();
        let Some(run) = Run::of(ALL[0], "memprof", &["--stream-version", &wanted])? else { return Ok(()) };
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
