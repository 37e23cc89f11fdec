//! Memory streams of programs whose traces are thrown away all the time: each event names the trace that allocated, and
//! not the one that had its number before.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use lj_trace_streams::memprof::{Event, Source};
use lj_trace_streams::symtab::own_number;
use lj_trace_streams::{Body, Stream, Symbol, reserved};
use lj_trace_tests::programs::{LUAJIT, LUAJIT2, Program, TARANTOOL};
use lj_trace_tests::recording::Recording;
use lj_trace_tests::tracer::run;
use lj_trace_tests::workload::{Workload, seconds};

/// The workload, and the lengths of tables that tell what it knows.
const SCRIPT: &str = "renumbered.lua";
const NUMBERS: u64 = 2000;
const LINES: u64 = 5000;
/// The largest number of a trace that it can tell.
const MOST_TRACES: u64 = 1000;
/// The largest share of the events on traces whose start may be lost, in percent.
const LOST: f64 = 0.1;

/// Where a trace starts: a chunk and a line.
type Start = (String, u64);

/// A stream's events on traces.
#[derive(Debug, Default)]
struct Checked {
    /// All of them.
    events: u64,
    /// Those that say that the start is lost.
    lost: u64,
    /// Those that name another start than the trace has: what they say, and what is so.
    wrong: BTreeMap<(u64, Option<Start>, Option<Start>), u64>,
    /// New allocations, and their bytes, by the true start.
    allocated: BTreeMap<Start, (u64, u64)>,
    /// Traces that the workload told of.
    traces: u64,
}

/// What a stream says and what the workload knows, at one moment.
#[derive(Default)]
struct Moment {
    chunks: HashMap<u64, String>,
    /// What the stream says.
    said: HashMap<u64, (u64, u64)>,
    /// What the workload knows, and the number and chunk of which it will tell the line.
    known: HashMap<u64, Start>,
    next: Option<(u64, &'static str)>,
}

impl Moment {
    fn symbol(&mut self, symbol: Symbol) {
        match symbol {
            Symbol::Lua { addr, chunk, .. } => {
                self.chunks.insert(addr, String::from_utf8_lossy(&chunk).into_owned());
            }
            Symbol::Trace(trace) => {
                self.said.insert(trace.number, (trace.proto, trace.line));
            }
            Symbol::C { .. } => {}
        }
    }

    /// Takes what the workload says by the size of a table; whether that is all of a trace.
    fn mark(&mut self, size: u64) -> bool {
        // Element 0 comes with the others.
        let within = |from: u64, most: u64| {
            (size / 8).checked_sub(from + 1).filter(|rest| size.is_multiple_of(8) && *rest < most)
        };
        if let Some(line) = within(LINES, 1000) {
            if let Some((number, chunk)) = self.next.take() {
                self.known.insert(number, (chunk.to_owned(), line));
                return true;
            }
        } else if let Some(rest) = within(NUMBERS, 2 * MOST_TRACES) {
            self.next = Some((rest / 2, if rest % 2 == 1 { "@made.lua" } else { "@renumbered.lua" }));
        }
        false
    }
}

/// Holds a stream against what the workload says within it.
fn check_stream(path: &Path) -> Result<Checked> {
    let Stream { symbols, body, .. } = Stream::open(std::fs::File::open(path)?)?;
    let Body::Memprof(mut reader) = body else { bail!("{} is no memprof stream", path.display()) };
    let mut moment = Moment::default();
    symbols.into_iter().for_each(|symbol| moment.symbol(symbol));
    let mut checked = Checked::default();
    while let Some(event) = reader.next_event()? {
        let (source, new) = match event {
            Event::Symbol(symbol) => {
                moment.symbol(symbol);
                continue;
            }
            Event::Alloc { source, size, .. } => (source, size),
            Event::Realloc { source, .. } | Event::Free { source, .. } => (source, 0),
        };
        let Source::Trace { number, .. } = source else {
            checked.traces += u64::from(moment.mark(new));
            continue;
        };
        checked.events += 1;
        let said = moment.said.get(&number);
        if said.is_some_and(|(proto, _)| *proto == reserved::LOST_START) {
            checked.lost += 1;
            continue;
        }
        let said = said.map(|(proto, line)| (moment.chunks.get(proto).cloned().unwrap_or_default(), *line));
        let known = moment.known.get(&own_number(number)).cloned();
        if said.is_none() || said != known {
            *checked.wrong.entry((number, said, known)).or_default() += 1;
        } else if let Some(start) = known.filter(|_| new > 0) {
            let (events, bytes) = checked.allocated.entry(start).or_default();
            *events += 1;
            *bytes += new;
        }
    }
    Ok(checked)
}

/// The new allocations on traces, and their bytes, by their starts, as the reference parser prints them.
fn as_printed(text: &str) -> Result<BTreeMap<Start, (u64, u64)>> {
    let allocations = text.split("\n\n").find(|part| part.contains("ALLOCATIONS")).context("no allocations")?;
    let mut printed = BTreeMap::new();
    for line in allocations.lines().filter(|line| line.starts_with("TRACE [")) {
        // TRACE [7] started at @a.lua:12: 34 events	+560B	-0B
        let (place, rest) =
            line.split_once(" started at ").context(line.to_owned())?.1.split_once(": ").context(line.to_owned())?;
        let (chunk, start) = place.rsplit_once(':').context(line.to_owned())?;
        let mut words = rest.split_whitespace();
        let events: u64 = words.next().context(line.to_owned())?.parse()?;
        let bytes = words.nth(1).context(line.to_owned())?.trim_start_matches('+');
        let bytes: u64 = bytes.trim_end_matches(char::is_alphabetic).parse().with_context(|| line.to_owned())?;
        let sum: &mut (u64, u64) = printed.entry((chunk.to_owned(), start.parse()?)).or_default();
        *sum = (sum.0 + events, sum.1 + bytes);
    }
    Ok(printed)
}

fn check(program: &'static str) -> Result<()> {
    let Some(program) = Program::find(program) else { return Ok(()) };
    for seed in ["1", "2"] {
        let mut workload = Workload::start(&program, SCRIPT, &[&seconds(2), seed])?;
        let recording = Recording::attached(&workload, &["--mode", "memprof", "--no-limit"])?;
        workload.go()?;
        workload.report()?;
        let stream = recording.stream();
        let recorded = recording.stop()?;
        let checked = check_stream(&stream)?;
        let Checked { events, lost, wrong, allocated, traces } = &checked;
        let wrong_events: u64 = wrong.values().sum();
        let verdict = format!(
            "{}, seed {seed}: {events} events on {traces} traces: {wrong_events} with a wrong start, {lost} with none",
            program.name
        );
        println!("{verdict}");
        if *events < 10_000 || *traces < 200 || wrong_events > 0 || *lost as f64 > *events as f64 * LOST / 100.0 {
            let examples: Vec<_> = wrong.iter().take(10).collect();
            bail!("{verdict}: {examples:#?}\n{}", recorded.outcome.stderr);
        }
        // The reference parser keeps the first start that it sees of a number.
        let report = run(["report", &stream.to_string_lossy()])?;
        report.expect(0, &[]);
        let mut printed = as_printed(&report.stdout)?;
        printed.remove(&("=[unknown: its start was lost]".to_owned(), 0));
        assert_eq!(printed, *allocated, "{}, seed {seed}", program.name);
    }
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
