//! Random programs: every sample is under the functions that called there, or marked.

use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Mutex;
use std::thread;

use anyhow::{Result, anyhow, bail};
use lj_trace_tests::chance::of_count;
use lj_trace_tests::oracle::generate::Interface;
use lj_trace_tests::oracle::{Figures, Settings, generate, native, record, truth};
use lj_trace_tests::programs::{LUAJIT, LUAJIT2, Program, TARANTOOL};
use lj_trace_tests::slower;

/// The seeds whose programs are recorded with the JIT compiler on; `cargo xtask oracle` has more.
const COMPILED: RangeInclusive<u64> = 1..=3;
/// Those with the JIT compiler off.
const INTERPRETED: RangeInclusive<u64> = 1..=2;
/// How long each is recorded, in seconds: an emulated machine takes longer to come to as many samples.
fn seconds() -> f64 {
    0.8 * slower().min(5) as f64
}
/// Samples a second.
const RATE: u32 = 1999;
/// With fewer samples in each recording the verdict means nothing.
const LEAST_SAMPLES: u64 = 100;

/// Programs that were wrong once, and by how many percent of their samples may be marked when they are compiled. None of
/// them may be wrong. Where calls of C functions through FFI are compiled, nothing tells the functions apart yet.
const KEPT: [(&str, f64); 11] = [
    ("call_calls_add.lua", 100.0),
    ("coroutines.lua", 20.0),
    ("empty_loop.lua", 0.1),
    ("exits.lua", 20.0),
    ("index_function.lua", 100.0),
    ("inlined_leaf.lua", 100.0),
    ("results.lua", 100.0),
    ("returned.lua", 40.0),
    ("sort.lua", 2.0),
    ("stale_base.lua", 100.0),
    ("vararg.lua", 100.0),
];
/// How many percent of the samples may be marked when they are interpreted.
const MARKED_INTERPRETED: f64 = 0.1;

/// A folder with the C functions of the programs.
fn scratch() -> Result<tempfile::TempDir> {
    let folder = tempfile::tempdir()?;
    for interface in [Interface::Ffi, Interface::Module] {
        native::build(interface, folder.path())?;
    }
    Ok(folder)
}

/// What recordings came to.
#[derive(Default)]
struct Sums {
    recordings: u64,
    samples: u64,
    marked: u64,
    wrong: u64,
    failures: String,
}

impl Sums {
    fn add(&mut self, name: &str, figures: &Figures) {
        self.recordings += 1;
        self.samples += figures.samples();
        self.marked += figures.marked();
        self.wrong += figures.wrong();
        for (samples, wrong, stack) in figures.failures.iter().take(3) {
            self.fail(name, &format!("{samples} {wrong:?}: {stack}"));
        }
        // A machine that is busy, or taken away, makes it later, but not by this much; a backlog that is worked off does.
        if figures.overrun > 4.0 * slower() as f64 {
            self.fail(name, &format!("it took {:.1} s too long", figures.overrun));
        }
    }

    fn fail(&mut self, name: &str, what: &str) {
        self.failures.push_str(&format!("\n  {name}: {what}"));
    }

    fn verdict(&self, program: &str) -> Result<()> {
        let verdict =
            format!("{program}: of {} samples {} are marked, {} are wrong", self.samples, self.marked, self.wrong);
        println!("{verdict}");
        if !self.failures.is_empty() || self.samples < self.recordings * LEAST_SAMPLES {
            bail!("{verdict}:{}", self.failures);
        }
        Ok(())
    }
}

/// Takes cases two at a time: nothing here is about time.
fn check_each<T: Send>(
    program: &str,
    cases: impl Iterator<Item = T> + Send,
    check: impl Fn(T, &Path, &Mutex<Sums>) -> Result<()> + Sync,
) -> Result<()> {
    let (sums, next) = (Mutex::new(Sums::default()), Mutex::new(cases));
    let take = || next.lock().ok()?.next();
    let check_some = || -> Result<()> {
        let folder = scratch()?;
        std::iter::from_fn(take).try_for_each(|case| check(case, folder.path(), &sums))
    };
    thread::scope(|scope| {
        let other = scope.spawn(check_some);
        check_some().and(other.join().map_err(|_| anyhow!("it panicked"))?)
    })?;
    sums.into_inner().map_err(|_| anyhow!("a thread has panicked"))?.verdict(program)
}

fn check(program: &'static str, seeds: RangeInclusive<u64>, jit: bool) -> Result<()> {
    let Some(host) = Program::find(program) else { return Ok(()) };
    check_each(program, seeds, |seed, folder, sums| {
        let settings = Settings { seconds: seconds(), rate: RATE, jit };
        let figures = record(&host, &generate(seed), settings, folder)?;
        sums.lock().map_err(|_| anyhow!("another thread has panicked"))?.add(&format!("seed {seed}"), &figures);
        Ok(())
    })
}

fn check_kept(program: &'static str) -> Result<()> {
    let Some(host) = Program::find(program) else { return Ok(()) };
    check_each(program, KEPT.into_iter(), |(file, most), folder, sums| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("lua/oracle/kept").join(file);
        let kept = truth::adopt(&host, &std::fs::read_to_string(path)?, folder)?;
        for (jit, most) in [(true, most), (false, MARKED_INTERPRETED)] {
            let figures = record(&host, &kept, Settings { seconds: seconds(), rate: RATE, jit }, folder)?;
            let name = format!("{file}, JIT {}", if jit { "on" } else { "off" });
            let expected = most / 100.0 * figures.samples() as f64;
            let mut sums = sums.lock().map_err(|_| anyhow!("another thread has panicked"))?;
            sums.add(&name, &figures);
            // And what chance makes of so many.
            if figures.marked() as f64 > expected + of_count(expected) {
                sums.fail(&name, &format!("{} of {} samples are marked", figures.marked(), figures.samples()));
            }
        }
        Ok(())
    })
}

#[test]
fn kept_on_luajit() -> Result<()> {
    check_kept(LUAJIT)
}

#[test]
fn kept_on_luajit2() -> Result<()> {
    check_kept(LUAJIT2)
}

#[test]
fn kept_on_tarantool() -> Result<()> {
    check_kept(TARANTOOL)
}

#[test]
fn compiled_on_luajit() -> Result<()> {
    check(LUAJIT, COMPILED, true)
}

#[test]
fn compiled_on_luajit2() -> Result<()> {
    check(LUAJIT2, COMPILED, true)
}

#[test]
fn compiled_on_tarantool() -> Result<()> {
    check(TARANTOOL, COMPILED, true)
}

#[test]
fn interpreted_on_luajit() -> Result<()> {
    check(LUAJIT, INTERPRETED, false)
}

#[test]
fn interpreted_on_luajit2() -> Result<()> {
    check(LUAJIT2, INTERPRETED, false)
}

#[test]
fn interpreted_on_tarantool() -> Result<()> {
    check(TARANTOOL, INTERPRETED, false)
}

/// A function that does nearly all the work without calling anything: what is certain must not say that others do it.
#[test]
fn arithmetic_counts_where_it_is() -> Result<()> {
    /// The line where it begins.
    const LEAF: u32 = 4;
    /// The largest share of the samples that others may have, in percent: one division in 18, and what calls take. In an
    /// emulated processor all instructions take as long as a division, and 7 of 39 are not the function's.
    const OTHERS: f64 = if cfg!(target_arch = "aarch64") { 20.0 } else { 15.0 };
    /// The largest share that may be marked.
    const MARKED: f64 = 5.0;
    for program in [LUAJIT, LUAJIT2, TARANTOOL] {
        let Some(host) = Program::find(program) else { continue };
        let folder = scratch()?;
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("lua/oracle/arithmetic.lua");
        let adopted = truth::adopt(&host, &std::fs::read_to_string(path)?, folder.path())?;
        let settings = Settings { seconds: 2.0, rate: RATE, jit: true };
        let figures = record(&host, &adopted, settings, folder.path())?;
        let mut sums = Sums::default();
        sums.add("arithmetic.lua", &figures);
        let others = figures.innermost.iter().filter(|(first, _)| **first != LEAF).map(|(_, samples)| samples);
        let share = 100.0 * others.sum::<u64>() as f64 / figures.samples().max(1) as f64;
        let marked = 100.0 * figures.marked() as f64 / figures.samples().max(1) as f64;
        if share > OTHERS || marked > MARKED {
            let figures = format!("{share:.1}% of the samples are in other functions, {marked:.1}% are marked");
            sums.fail("arithmetic.lua", &figures);
        }
        sums.verdict(program)?;
    }
    Ok(())
}

/// What the oracle holds lj-trace against is what the programs do, in the VMs' own words: nothing is missing from it, and
/// nothing is in it that does not happen.
#[test]
fn the_oracle_is_right() -> Result<()> {
    for program in [LUAJIT, LUAJIT2, TARANTOOL] {
        let Some(host) = Program::find(program) else { continue };
        let folder = tempfile::tempdir()?;
        let (mut calls, mut unseen) = (0, Vec::new());
        for seed in COMPILED {
            let truth = truth::ask(&host, &generate(seed), folder.path())?;
            if let Some(refused) = truth.refused.first() {
                bail!("seed {seed} on {program}: the oracle refuses {refused}");
            }
            calls += truth.edges;
            unseen.extend(truth.unseen);
        }
        println!("{program}: {} of {calls} calls do not happen", unseen.len());
        // Some branches are not taken.
        if unseen.len() * 50 > calls {
            bail!("{program}: {} of {calls} calls do not happen: {unseen:#?}", unseen.len());
        }
    }
    Ok(())
}
