//! `cargo xtask bench totals`: the total of a memory profile of bounded cost, of generated programs that count what they
//! allocate. They differ in the size of their heaps, and so in how fast its collection cycles are, in what they allocate in
//! a turn of work, and in how long they sleep between turns.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lj_trace_estimate::Figure;

use super::table::{Table, verdict};
use crate::estimates::Estimates;
use crate::programs::Program;
use crate::tracer::Tracer;
use crate::usage::{busy, cpu_time, stolen};
use crate::workload::Workload;

/// The program, in `tests/lua`.
const SCRIPT: &str = "totals.lua";

/// How far the truth may be off, as a part of it: turns that the program has counted are not all of what it allocates, and
/// it allocates now and then for itself.
const TRUTH: f64 = 0.01;

/// How long a program may take until it has written its first turns.
const STARTING: Duration = Duration::from_millis(200);

/// What a recording says of a program, and what is true. In bytes.
#[derive(Clone, Copy, Debug)]
pub struct Totals {
    /// What the program has counted, in the time that was recorded.
    pub truth: f64,
    /// What the profile says.
    pub told: Figure,
    /// Collection cycles, as the profile says.
    pub cycles: Figure,
    /// How long it was recorded, in seconds.
    pub seconds: f64,
    /// The CPU time of the program in a second, in seconds.
    pub cpu: f64,
    /// How much of the time that CPUs had work for was stolen by the host of this virtual machine, as a part.
    pub stolen: f64,
}

impl Totals {
    /// The error of what is told, as a part of the truth.
    pub fn error(&self) -> f64 {
        (self.told.value - self.truth) / self.truth.max(1.0)
    }

    /// Whether the truth is within so many times the stated error.
    pub fn is_within(&self, times: f64) -> bool {
        let stated = self.told.error.unwrap_or(0.0);
        (self.told.value - self.truth).abs() <= times * stated + TRUTH * self.truth
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: f64| bytes / 1_048_576.0;
        let stated = self.told.error.map_or_else(|| "measured".to_owned(), |error| format!("±{:.1}", mib(error)));
        let Self { truth, told, .. } = self;
        let percent = |part: f64| part * 100.0;
        write!(f, "{:.1} MiB, told {:.1} {stated} ({:+.1}%)", mib(*truth), mib(told.value), percent(self.error()))?;
        write!(f, ", the host took {:.1}% of its CPUs' time", percent(self.stolen))
    }
}

/// Records the program of a number for so long.
///
/// # Errors
/// The program or lj-trace fails.
pub fn totals_of(program: &Program, seed: u64, budget: &str, time: Duration, folder: &Path) -> Result<Totals> {
    let [counts, stream] = [format!("counts-{seed}"), format!("totals-{seed}.bin")].map(|name| folder.join(name));
    let mut workload = Workload::start(program, SCRIPT, &[&counts.to_string_lossy(), &seed.to_string()])?;
    workload.go()?;
    sleep(STARTING);
    let (pid, output) = (workload.pid().to_string(), stream.to_string_lossy());
    let arguments = ["--pid", &pid, "--mode", "memprof", "--overhead", budget, "--force", "-o", &output];
    let mut tracer = Tracer::start(arguments)?;
    tracer.wait_until_attached()?;
    let now =
        || -> Result<_> { Ok((Instant::now(), allocated(&counts)?, cpu_time(workload.pid())?, [stolen()?, busy()?])) };
    let (from, before, cpu_before, [stolen_before, busy_before]) = now()?;
    sleep(time);
    let (to, after, cpu_after, [stolen_after, busy_after]) = now()?;
    let (stolen, busy) = (stolen_after - stolen_before, busy_after - busy_before);
    tracer.signal(libc::SIGINT)?;
    tracer.wait()?.expect(0, &["lost               0"]);
    workload.kill()?;
    let about = Estimates::read(&stream, SCRIPT)?.about;
    ensure!(about.withheld.is_empty(), "withheld: {:?}", about.withheld);
    let passed = (to - from).as_secs_f64();
    Ok(Totals {
        truth: (after - before) / passed * about.recorded,
        told: about.gross.context("no total")?,
        cycles: about.cycles.context("no cycles")?,
        seconds: about.recorded,
        cpu: (cpu_after - cpu_before) / passed,
        stolen: stolen / (busy + stolen).max(0.01),
    })
}

/// The bytes that a program has counted so far.
fn allocated(counts: &Path) -> Result<f64> {
    let bytes = std::fs::read(counts)?;
    let (numbers, _) = bytes.as_chunks::<8>();
    let [turns, each] = numbers else { anyhow::bail!("{} bytes of counts", bytes.len()) };
    Ok(f64::from_ne_bytes(*turns) * f64::from_ne_bytes(*each))
}

/// Records the programs of these numbers, and prints what came of it.
///
/// # Errors
/// A program or lj-trace fails.
pub fn totals(seconds: f64, budget: &str, seeds: RangeInclusive<u64>, program: &Program) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut table =
        Table::new(["program", "MiB a second", "told", "stated error", "cycles a second", "of a CPU", "within"]);
    let (mut all, mut within, mut worst) = (0, 0, 0.0_f64);
    for seed in seeds {
        let time = Duration::from_secs_f64(seconds);
        let own = totals_of(program, seed, budget, time, folder.path()).with_context(|| format!("program {seed}"))?;
        println!("program {seed}: {own}");
        let percent = |part: f64| format!("{:.1}%", part * 100.0);
        let stated = own.told.error.map_or_else(|| "measured".to_owned(), |error| percent(error / own.truth.max(1.0)));
        let cycles = own.cycles.value / own.seconds;
        let how = if own.cycles.error.is_some() { " (estimate)" } else { "" };
        table.row([
            seed.to_string(),
            format!("{:.2}", own.truth / own.seconds / 1_048_576.0),
            format!("{:+.1}%", own.error() * 100.0),
            stated,
            format!("{cycles:.1}{how}"),
            percent(own.cpu),
            if own.is_within(1.0) { "yes" } else { "NO" }.to_owned(),
        ]);
        (all, within) = (all + 1, within + u32::from(own.is_within(1.0)));
        worst = if own.is_within(1.0) { worst } else { worst.max(own.error().abs()) };
    }
    println!("\nrecorded for {seconds} s each, at {budget}");
    table.print();
    println!();
    let share = f64::from(within) / f64::from(all.max(1));
    verdict("totals within their stated errors", ">= 95%", &format!("{within} of {all}"), share >= 0.95);
    println!("the worst of the others: {:.1}%", worst * 100.0);
    Ok(())
}
