//! Attaching to programs with many functions: it does not wait for their names.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use lj_trace_streams::memprof::{Event, Source};
use lj_trace_streams::{Annotation, Body, Stream, Symbol};
use lj_trace_tests::attach_time::quickest;
use lj_trace_tests::programs::{LUAJIT, Program};
use lj_trace_tests::tracer::run;
use lj_trace_tests::workload::Workload;

/// A memory profile of a program with many functions: what its stream says at first does not grow with them, so attaching does
/// not wait for them; those that allocate have their names all the same.
#[test]
fn for_a_memory_profile_to_many_prototypes() -> Result<()> {
    /// Names of as many had no room when all of them were kept.
    const PROTOTYPES: &str = "300000";
    let Some(program) = Program::find(LUAJIT) else { return Ok(()) };
    let folder = tempfile::tempdir()?;
    let file = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let workload = Workload::start(&program, "prototypes.lua", &[PROTOTYPES, "allocating"])?;
    let (pid, report, stream) = (workload.pid().to_string(), file("report.folded"), file("stream.bin"));
    let arguments =
        ["--pid", &pid, "--mode", "memprof", "--duration", "2s", "--no-limit", "-o", &report, "-o", &stream];
    let said = run(arguments)?;
    said.expect(0, &["finished: recorded"]);
    println!("{}", said.stderr.lines().next().unwrap_or_default());

    let Stream { symbols, body, .. } = Stream::open(std::fs::File::open(&stream)?)?;
    let lua = |symbol: &Symbol| match symbol {
        Symbol::Lua { addr, .. } => Some(*addr),
        _ => None,
    };
    let mut known: HashSet<u64> = symbols.iter().filter_map(lua).collect();
    ensure!(known.len() < 100, "{} prototypes were read before the first event", known.len());
    let Body::Memprof(mut events) = body else { bail!("no memprof stream") };
    let mut allocations = 0;
    while let Some(event) = events.next_event()? {
        match event {
            Event::Symbol(symbol) => {
                known.extend(lua(&symbol));
                if let Some(Annotation::Property { key, value }) = Annotation::from_symbol(&symbol) {
                    // The first walk over the heap takes longer than the buffers hold what is allocated meanwhile.
                    ensure!(!key.contains("ring buffer was full"), "{key}: {value}");
                }
            }
            Event::Alloc { source: Source::Lua { proto, .. }, .. } => {
                ensure!(known.contains(&proto), "an event of {proto:#x}, which was not named before");
                allocations += 1;
            }
            _ => {}
        }
    }
    let text = std::fs::read_to_string(&report)?;
    let lost = text.lines().find(|line| line.contains("its name was lost"));
    ensure!(allocations > 1000 && lost.is_none(), "{allocations} allocations, {lost:?}");
    // Each of the two hundred has its name, in both chunks.
    let last = format!("made{}", PROTOTYPES.parse::<u32>()? / 100);
    let mut named = BTreeSet::new();
    for line in text.lines() {
        for frame in line.split(';').filter(|frame| frame.starts_with("own.f")) {
            let (name, place) = frame.split_once('@').context("no place")?;
            named.insert((name.to_owned(), place.starts_with(&last)));
        }
    }
    ensure!(named.len() == 200, "{} functions are named: {}", named.len(), &text[..text.len().min(2000)]);
    Ok(())
}

/// Names are looked for once a function was sampled: attaching does not wait for them.
#[test]
fn attaching_takes_no_longer_with_many_prototypes() -> Result<()> {
    let Some(host) = Program::find(LUAJIT) else { return Ok(()) };
    let [few, many] = ["100", "100000"].map(|count| Workload::start(&host, "prototypes.lua", &[count]));
    let (few, many) = (few?, many?);
    // The quickest of several, in turns: others use the machine, too.
    let mut times = [Duration::MAX; 2];
    for _ in 0..2 {
        for (time, workload) in times.iter_mut().zip([&few, &many]) {
            *time = quickest(workload)?.min(*time);
        }
    }
    println!("attached in {:?} to 100 prototypes, in {:?} to 100,000", times[0], times[1]);
    // What is larger takes longer to be searched for VMs: a tenth of a second is for that.
    ensure!(times[1] < 2 * times[0] + Duration::from_millis(100), "{times:?}");
    Ok(())
}
