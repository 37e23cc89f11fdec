//! Objects are followed to their death, and what is said of how long they live is what the program does with them.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use lj_trace_common::allocation::{AllocationEvent, AllocationKind, AllocationSource};
use lj_trace_engine::bounded::lifetimes::{Life, Lifetimes};
use lj_trace_engine::bounded::now;
use lj_trace_estimate::observation::SourceId;
use lj_trace_luajit::find_vms;
use lj_trace_probes::allocator::{AllocationProbes, AllocationRecord, Handlers};
use lj_trace_probes::calibrate;
use lj_trace_probes::harm::Harm;
use lj_trace_probes::programs::{Programs, Wanted};
use lj_trace_process::Process;
use lj_trace_streams::memprof::{Event, Source};
use lj_trace_tests::chance::{ERRORS, of_share};
use lj_trace_tests::estimates::staying;
use lj_trace_tests::programs::{LUAJIT, Program, TARANTOOL};
use lj_trace_tests::skips;
use lj_trace_tests::source::line_of;
use lj_trace_tests::tracer::{Tracer, run};
use lj_trace_tests::windows;
use lj_trace_tests::workload::Workload;

const WORKLOAD: &str = "lifetimes.lua";

/// What is said when watchpoints would cost too much.
const GIVEN_UP: &str = "so many collection cycles that watching each would cost it more than 1%";

/// Its chunkname.
const CHUNK: &[u8] = b"@lifetimes.lua";

/// Objects in its cache: each stays for as many turns.
const CACHED: u64 = 12_000;

/// Cycles that are waited for.
const CYCLES: u64 = 6;

/// Objects that figures are of, at least.
const FEWEST: u64 = 20;

/// The share of objects that may be in use when all of their like are garbage.
const RARE: f64 = 0.05;

/// Marks of lines whose objects all stay.
const IMMORTAL: [&str; 3] = ["leak", "table with parts", "larger hash part"];

/// Marks of lines whose objects are garbage at once.
const MORTAL: [&str; 5] = ["temporary", "text", "short table", "short part", "hash part"];

/// The event that a stream would have. Who it was does not matter here.
fn as_event(event: &AllocationEvent) -> Event {
    let &AllocationEvent { kind, pointer, result: addr, old_size, size, .. } = event;
    let source = Source::Internal;
    match AllocationKind::from_u8(kind) {
        Some(AllocationKind::Alloc) => Event::Alloc { source, addr, size },
        Some(AllocationKind::Realloc) => Event::Realloc { source, old_addr: pointer, old_size, addr, size },
        _ => Event::Free { source, addr: pointer, size: old_size },
    }
}

/// A run of the workload.
struct Run {
    /// What is found of each line.
    lives: HashMap<u64, Life>,
    /// How many turns it had made at each flip.
    flips: Vec<u64>,
}

impl Run {
    fn of(&self, mark: &str) -> Result<&Life> {
        let line = line_of(WORKLOAD, mark);
        self.lives.get(&line).with_context(|| format!("no object of line {line} was followed"))
    }

    /// What is so of objects that live for so many turns.
    fn truth(&self, turns: u64) -> Truth {
        let last = self.flips.last().copied().unwrap_or(0);
        let flips_before = |turn: u64| self.flips.partition_point(|&flip| flip <= turn) as f64;
        let survived: Vec<f64> = (0..last.saturating_sub(turns))
            .step_by(50)
            .map(|born| flips_before(born + turns) - flips_before(born))
            .collect();
        let count = survived.len() as f64;
        let some = survived.iter().filter(|&&cycles| cycles > 0.0).count() as f64;
        let mean = survived.iter().sum::<f64>() / count;
        let variance = survived.iter().map(|cycles| (cycles - mean).powi(2)).sum::<f64>() / count;
        Truth { cycle: mean + 1.0, deviation: variance.sqrt(), some: some / count }
    }
}

/// How long objects live.
struct Truth {
    /// In which cycle they die on average.
    cycle: f64,
    /// The standard deviation of that.
    deviation: f64,
    /// The share that survives a cycle.
    some: f64,
}

/// As how many objects of equal weight those of a line count. Where events were drained at long intervals, as on a busy machine, some
/// stand for many others. It follows from the error that is told of the share that is alive, which is Agresti and Coull's
/// (`life.rs` of the estimates).
fn of_equal_weight(life: &Life) -> f64 {
    let (share, told) = (life.alive.value, life.alive.error.unwrap_or(1.0));
    let error = |count: f64| {
        let middle = (share * count + 2.0) / (count + 4.0);
        2.0 * (middle * (1.0 - middle) / (count + 4.0)).sqrt() + (middle - share).abs()
    };
    let (mut few, mut many) = (1.0, life.followed as f64);
    for _ in 0..60 {
        let middle = (few + many) / 2.0;
        if error(middle) > told { few = middle } else { many = middle }
    }
    few
}

fn follow(program: &Program) -> Result<Run> {
    let mut workload = Workload::start(program, WORKLOAD, &[&CACHED.to_string()])?;
    let process = Process::open(workload.pid())?;
    let maps = process.maps()?;
    let vms = find_vms(&process, &maps)?;
    let wanted = Wanted { memory: true, ..Wanted::nothing() };
    let mut programs = Programs::load(wanted, &vms.iter().map(|vm| vm.config()).collect::<Vec<_>>())?;
    let mut lifetimes = Lifetimes::attach(&mut programs, &process, &vms)?;
    let mut probes = AllocationProbes::attach(&mut programs, &process, &maps, &vms, Handlers::RECORD)?;
    workload.go()?;
    let (mut turns, mut flips) = (0, Vec::new());
    let each_turn = line_of(WORKLOAD, "temporary");
    let mut own = HashSet::new();
    let mut since = now();
    let begin = Instant::now();
    // The last of them are to find the cache full. How many objects are followed depends on how soon this here is
    // scheduled after an event: what a flip comes before is too late.
    while lifetimes.cycles() < CYCLES || turns < 3 * CACHED || !are_followed(&mut lifetimes) {
        if begin.elapsed() > lj_trace_tests::patience(60) {
            bail!("{} cycles and {turns} turns in a minute: {:?}", lifetimes.cycles(), lifetimes.lives());
        }
        std::thread::sleep(Duration::from_millis(2));
        let drained = now();
        probes.drain(100_000, |record| {
            match record {
                AllocationRecord::Prototype(seen) if seen.name() == Some(CHUNK) => _ = own.insert(seen.prototype),
                AllocationRecord::Prototype(seen) => _ = own.remove(&seen.prototype),
                AllocationRecord::Trace(_) | AllocationRecord::Request(_) | AllocationRecord::Fiber(_) => {}
                AllocationRecord::Event(event) => {
                    let is_own = event.source == AllocationSource::Lua as u8 && own.contains(&event.place);
                    let line = if is_own { event.line } else { 0 };
                    turns += u64::from(u64::from(line) == each_turn && event.kind == AllocationKind::Alloc as u8);
                    lifetimes.event(SourceId(line), usize::from(event.vm), &as_event(&event));
                }
            }
            ControlFlow::Continue(())
        });
        lifetimes.follow(since);
        since = drained;
        flips.resize(usize::try_from(lifetimes.cycles())?, turns);
    }
    probes.detach(&programs);
    let lives = lifetimes.lives().into_iter().map(|life| (u64::from(life.source.0), life)).collect();
    Ok(Run { lives, flips })
}

/// Whether as many objects of each line that is looked at were followed as its figures need, and all that may die have begun
/// to.
fn are_followed(lifetimes: &mut Lifetimes) -> bool {
    let lives = lifetimes.lives();
    let has = |mark: &str, dies: bool| {
        let line = line_of(WORKLOAD, mark);
        let life = lives.iter().find(|life| u64::from(life.source.0) == line);
        life.is_some_and(|life| life.followed >= FEWEST && (!dies || life.cycles.is_some()))
    };
    IMMORTAL.iter().all(|mark| has(mark, false)) && MORTAL.iter().chain(&["cache"]).all(|mark| has(mark, true))
}

fn check(name: &'static str) -> Result<()> {
    let program = Program::find(name).with_context(|| name.to_owned())?;
    let run = follow(&program)?;
    let (leak, cache) = (run.of("leak")?, run.of("cache")?);
    // Some, and what chance makes of that: a few of the objects may stand for many.
    let some_at_most = |share: f64, life: &Life| share + of_share(share, of_equal_weight(life));
    for life in [leak, cache, run.of("temporary")?, run.of("text")?] {
        let most = some_at_most(0.02, life);
        ensure!(life.lost < most, "at most {most} may be lost: {life:?}");
    }
    // All of it, without exception; the parts of its tables with them.
    for mark in IMMORTAL {
        let life = run.of(mark)?;
        ensure!(life.alive.value == 1.0 && life.cycles.is_none(), "{mark}: {life:?}");
        ensure!(life.survival.iter().all(|share| share.value == 1.0), "{mark}: {life:?}");
    }
    // Whose they are is nearly always found.
    for mark in ["hash part", "larger hash part", "short part"] {
        let life = run.of(mark)?;
        ensure!(life.parts < some_at_most(0.1, life), "{mark}: {life:?}");
    }
    println!("{name}: the list's slots: {:?}", run.of("list")?);
    // Dead at the next flip, but for those that are in use right then: a string that is made as the mark phase begins or ends,
    // and the first hash part, which is replaced by the larger one. Such are rare, one in 20 at most, and as many as chance makes
    // of them among so few.
    for mark in MORTAL {
        let life = run.of(mark)?;
        let cycles = life.cycles.with_context(|| format!("{mark}: none has died: {life:?}"))?;
        ensure!(cycles.error.is_some(), "{mark}: an error is told: {life:?}");
        let count = of_equal_weight(life);
        let most = some_at_most(RARE, life);
        let survive = life.survival.first().map_or(0.0, |share| share.value);
        println!("{name}: {mark}: {} objects that count as {count:.0}, {survive:.3} survive", life.followed);
        ensure!((0.0..most).contains(&(cycles.value - 1.0)) && survive < most, "{mark}, {most}: {life:?}");
    }
    let cycles = cache.cycles.with_context(|| format!("none of the cache has died: {cache:?}"))?;
    let (Truth { cycle: truth, deviation, some }, count) = (run.truth(CACHED), of_equal_weight(cache));
    println!(
        "{name}: the cache's objects die in cycle {:.2}, in truth {truth:.2}; they count as {count:.0}",
        cycles.value
    );
    // Flips are known to some milliseconds, cycles grow longer with what leaks, and nothing is followed that was allocated
    // right before a flip: that is 0.4 of the cycle, and a third of the share. The rest is chance.
    let tolerance = 0.4 * truth + ERRORS * deviation / count.sqrt();
    ensure!((cycles.value - truth).abs() < tolerance, "{truth} +-{tolerance} in truth: {cache:?}");
    let tolerance = 0.35 + of_share(some, count);
    ensure!(
        cache.survival.first().is_some_and(|share| (share.value - some).abs() < tolerance),
        "{some} +-{tolerance} in truth: {cache:?}"
    );
    Ok(())
}

#[test]
fn deaths_on_gc64() -> Result<()> {
    check(LUAJIT)
}

#[test]
fn deaths_on_tarantool() -> Result<()> {
    check(TARANTOOL)
}

/// The same at a bounded cost: the leak comes first, and the stream says all of it, too.
#[test]
fn a_leak_is_named() -> Result<()> {
    if !windows::are_possible() {
        return Ok(());
    }
    let text = name_the_leak(&["--watchpoint", "always"])?;
    if text.contains("seen by polling") {
        skips::skip("this machine has no watchpoints");
    }
    Ok(())
}

/// As machines without watchpoints need it.
#[test]
fn a_leak_is_named_by_polling() -> Result<()> {
    if !windows::are_possible() {
        return Ok(());
    }
    let text = name_the_leak(&["--watchpoint", "never"])?;
    ensure!(text.contains("seen by polling"), "{text}");
    Ok(())
}

/// A watchpoint that slows the program as long as it is there, or may end it, is not used.
#[test]
fn a_leak_is_named_without_harmful_watchpoints() -> Result<()> {
    if !windows::are_possible() {
        return Ok(());
    }
    let text = name_the_leak(&[])?;
    match Harm::here() {
        Some(Harm::Slows(factor)) if factor < 1.2 => println!("this machine's watchpoints may do or not: {factor}"),
        Some(harm) => ensure!(text.contains("seen by polling"), "{harm}: {text}"),
        None => match calibrate::armed() {
            Ok(factor) if factor < 1.05 => ensure!(!text.contains("seen by polling"), "{factor}: {text}"),
            other => println!("this machine's watchpoints may do or not: {other:?}"),
        },
    }
    Ok(())
}

/// Where a VM has thousands of cycles a second, a stop at each to look at objects is what would cost most of all.
#[test]
fn too_many_cycles_are_not_watched() -> Result<()> {
    if !windows::are_possible() {
        return Ok(());
    }
    let mut workload = Workload::start(&Program::find(LUAJIT).context(LUAJIT)?, "small_heap.lua", &[])?;
    workload.go()?;
    let pid = workload.pid().to_string();
    let memprof = ["--pid", &pid, "--mode", "memprof", "--overhead", "5%", "--duration", "5s", "-o", "txt:/dev/null"];
    let outcome = Tracer::start(memprof.iter().chain(&["--watchpoint", "always"]))?.wait()?;
    if outcome.stderr.contains("from polling instead of watchpoints") {
        skips::skip("this machine has no watchpoints");
        return Ok(());
    }
    outcome.expect(0, &[GIVEN_UP, "collection cycles"]);
    Ok(())
}

/// Records the workload, with options; gives the report.
fn name_the_leak(options: &[&str]) -> Result<String> {
    let program = Program::find(LUAJIT).context(LUAJIT)?;
    let folder = tempfile::tempdir()?;
    let [stream, text] = ["a.bin", "a.txt"].map(|name| folder.path().join(name).display().to_string());
    let mut workload = Workload::start(&program, WORKLOAD, &[&CACHED.to_string()])?;
    workload.go()?;
    let pid = workload.pid().to_string();
    let memprof =
        ["--pid", &pid, "--mode", "memprof", "--overhead", "5%", "--duration", "6s", "-o", &stream, "-o", &text];
    let outcome = Tracer::start(memprof.iter().chain(options))?.wait()?;
    outcome.expect(0, &["what stays of that"]);
    ensure!(!outcome.stderr.contains(GIVEN_UP), "{}", outcome.stderr);
    let text = std::fs::read_to_string(text)?;
    let place = |mark| format!("{WORKLOAD}:{} ", line_of(WORKLOAD, mark));
    let rows = staying(&text);
    ensure!(rows.first().is_some_and(|row| row.contains(&place("leak"))), "{text}");
    let of = |mark| rows.iter().find(|row| row.contains(&place(mark))).with_context(|| format!("no {mark} in {text}"));
    // All of it survives, and nothing of what is temporary does. (How many windows there were depends on what else the
    // machine does.)
    let survive = |mark| -> Result<Vec<f64>> {
        let row = of(mark)?;
        let figures = row.split_once(WORKLOAD).map_or("", |(figures, _)| figures);
        Ok(figures.split_whitespace().rev().map_while(|share| share.parse().ok()).collect())
    };
    ensure!(survive("leak")?.iter().all(|&share| share == 1.0), "{text}");
    for mark in ["temporary", "text"] {
        ensure!(survive(mark)?.iter().all(|&share| share < 0.3), "{text}");
    }
    let report = run(["report", &stream])?;
    report.expect(0, &[]);
    ensure!(staying(&report.stdout) == rows, "{}\nis not\n{text}", report.stdout);
    Ok(text)
}
