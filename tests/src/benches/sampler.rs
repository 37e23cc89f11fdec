//! `cargo xtask bench sampler`: what samples cost a program.
//!
//! A workload does always the same, for a tenth of a second with nothing, with a clock that only ticks, with lj-trace at each
//! rate, and so on in turns, so that whatever else changes on a machine changes for all of them, and a tenth of a percent can
//! be seen. All are there all the time, and only switched on when it is their turn: it is the cost of a recording that goes
//! on. What attaching takes, and what lj-trace needs when everything is new to it, are measured before, by attaching a few
//! times.
//!
//! What is lost is the mean over turns, without the lowest and the highest tenth: some are disturbed by other machines on the
//! same host. That of all turns is told beside.
//!
//! What the row `nothing` has lost is the error of the method, and no sampler that is told by a clock costs less than one that
//! only ticks.

use std::fmt;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use lj_trace_probes::perf_event::{Clock, Ticking};
use tempfile::TempDir;

use super::slowdown::Losses;
use super::switched::Switched;
use super::table::{Table, verdict};
use super::work::{Spent, Work};
use crate::programs::Program;
use crate::tracer::Tracer;
use crate::usage::cpu_time;
use crate::workload::Workload;

/// What is run.
struct Kind {
    name: &'static str,
    script: &'static str,
    arguments: &'static [&'static str],
    /// How long lj-trace samples before it is measured, in seconds: by then it knows most functions and traces.
    settling: f64,
}

const WORKLOADS: [Kind; 3] = [
    Kind { name: "interpreted", script: "bench.lua", arguments: &["1"], settling: 5.0 },
    Kind { name: "compiled", script: "bench.lua", arguments: &["1", "jit"], settling: 5.0 },
    // Each of its 4000 traces takes a sample.
    Kind { name: "traces", script: "many_traces.lua", arguments: &["1"], settling: 120.0 },
];
/// How long a workload warms up, in seconds.
const WARMING: f64 = 3.0;
/// How often it is attached to, for each rate, and how long it is recorded then, in seconds.
const ATTACHES: u32 = 4;
const FIRST: f64 = 2.0;
/// How long each turn is, in seconds.
const TURN: f64 = 0.12;

/// What it works with.
enum With {
    Nothing,
    /// A clock that ticks so often a second and does nothing.
    Ticks(u32, Ticking),
    /// lj-trace, which samples so often a second.
    LjTrace(u32, Switched),
}

/// What it has cost.
#[derive(Default)]
struct Measured {
    cpu: Losses,
    wall: Losses,
    /// How long it was on, in seconds.
    on: f64,
    /// The CPU time, in seconds, that lj-trace has used then.
    tracer_cpu: f64,
}

/// What was seen while lj-trace attached.
#[derive(Default)]
struct First {
    /// How long attaching took, in seconds, each time.
    attach: Vec<f64>,
    /// In shares of a core, for each time.
    tracer_cpu: Vec<f64>,
    /// What lj-trace has said of its cost, the last time.
    told: String,
}

/// What all workloads have shown.
#[derive(Default)]
struct Findings {
    /// With lj-trace: its rate, and the CPU time that was lost.
    lost: Vec<(u32, Losses)>,
    attach: Vec<f64>,
}

/// Measures the rates on workloads of a program, in so many rounds, and prints the tables.
///
/// # Errors
/// If a workload is not known or fails, or lj-trace does.
pub fn sampler(rounds: u32, rates: &[u32], workloads: &[&str], program: &Program) -> Result<()> {
    let kind = |name: &&str| {
        let names = || WORKLOADS.map(|kind| kind.name).join(", ");
        let known = WORKLOADS.iter().find(|kind| kind.name == *name);
        known.with_context(|| format!("there is no workload {name}; there are {}", names()))
    };
    let kinds: Vec<_> = workloads.iter().map(kind).collect::<Result<_>>()?;
    let mut first_table =
        Table::new(["", "attached within, ms", "lj-trace at first, % of a core", "cost, as lj-trace tells it"]);
    let mut table = Table::new(["", "lost, CPU time", "lost, elapsed", "CPU time, all turns", "lj-trace, % of a core"]);
    let mut findings = Findings::default();
    for kind in kinds {
        let name = kind.name;
        println!("{name}");
        let mut workload = Workload::start(program, kind.script, kind.arguments)?;
        work(&mut workload, WARMING)?;
        for &rate in rates {
            let first = First::measure(rate, &mut workload).context(name)?;
            first_table.row(first.cells(format!("{name}, {rate} Hz")));
            findings.attach.extend(first.attach);
        }
        for (with, measured) in measure(rounds, rates, kind.settling, &mut workload).context(name)? {
            table.row(measured.cells(format!("{name}, {with}")));
            let (rate, ticks) = match with {
                With::Nothing => continue,
                With::Ticks(rate, ticking) => (rate, ticking.ticks()?),
                With::LjTrace(rate, tracer) => {
                    findings.lost.push((rate, measured.cpu));
                    (rate, tracer.end()?)
                }
            };
            let wanted = f64::from(rate) * measured.on;
            ensure!(ticks > wanted / 2.0, "{name}: {ticks} ticks at {rate} Hz in {:.1} s", measured.on);
        }
    }
    println!("\n{}, attached to {ATTACHES} times, and recorded for {FIRST} s:", program.name);
    first_table.print();
    println!("\n{}, {rounds} rounds of {TURN} s with each:", program.name);
    table.print();
    println!();
    findings.print_verdicts();
    Ok(())
}

/// Lets it work with everything in turns.
fn measure(rounds: u32, rates: &[u32], settling: f64, workload: &mut Workload) -> Result<Vec<(With, Measured)>> {
    let folder = tempfile::tempdir()?;
    let mut all = vec![With::Nothing];
    if let Some(&rate) = rates.iter().max() {
        all.push(With::Ticks(rate, Ticking::on(Clock::detect(), rate, workload.pid())?));
    }
    for &rate in rates {
        all.push(With::LjTrace(rate, Switched::of(attach(rate, workload, &folder)?)?));
    }
    work(workload, settling)?;
    all.iter().try_for_each(|with| with.switch(false))?;

    let mut all: Vec<_> = all.into_iter().map(|with| (with, Measured::default())).collect();
    // Each comes between two turns with nothing at all, and after another one in each round.
    for round in 0..rounds {
        let mut bare = work(workload, TURN)?;
        let count = all.len();
        for index in 0..count {
            let index = if round % 2 == 0 { index } else { count - 1 - index };
            let (with, measured) = &mut all[(index + round as usize / 2) % count];
            let worked = measured.during(with, workload)?;
            let after = work(workload, TURN)?;
            let three = [bare, worked, after];
            measured.cpu.add(&three, |spent: &Spent| spent.cpu);
            measured.wall.add(&three, |spent: &Spent| spent.wall);
            [.., bare] = three;
        }
    }
    Ok(all)
}

fn work(workload: &mut Workload, seconds: f64) -> Result<Work> {
    workload.tell(&seconds.to_string())?;
    Work::parse(&workload.report()?)
}

fn attach(rate: u32, workload: &Workload, folder: &TempDir) -> Result<Tracer> {
    let output = folder.path().join(format!("{rate}.bin")).display().to_string();
    let (pid, rate) = (workload.pid().to_string(), rate.to_string());
    let mut tracer = Tracer::start(["--pid", &pid, "--rate", &rate, "--force", "--output", &output])?;
    tracer.wait_until_attached()?;
    Ok(tracer)
}

impl With {
    fn switch(&self, on: bool) -> Result<()> {
        match self {
            Self::Nothing => Ok(()),
            Self::Ticks(_, ticking) => Ok(ticking.enable(on)?),
            Self::LjTrace(_, tracer) => tracer.switch(on),
        }
    }

    /// The CPU time that lj-trace has used so far, in seconds.
    fn tracer_cpu(&self) -> Result<f64> {
        if let Self::LjTrace(_, tracer) = self { cpu_time(tracer.pid()) } else { Ok(0.0) }
    }
}

impl fmt::Display for With {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => out.write_str("nothing"),
            Self::Ticks(rate, _) => write!(out, "{rate} ticks"),
            Self::LjTrace(rate, _) => write!(out, "{rate} Hz"),
        }
    }
}

impl Measured {
    /// Lets it work for a turn.
    fn during(&mut self, with: &With, workload: &mut Workload) -> Result<Work> {
        let before = with.tracer_cpu()?;
        with.switch(true)?;
        let began = Instant::now();
        let work = work(workload, TURN)?;
        self.on += began.elapsed().as_secs_f64();
        with.switch(false)?;
        self.tracer_cpu += with.tracer_cpu()? - before;
        Ok(work)
    }

    fn cells(&self, name: String) -> [String; 5] {
        let [cpu, wall] = [&self.cpu, &self.wall].map(typical);
        [name, cpu, wall, format!("{:.2}", self.cpu), format!("{:.1}", self.tracer_cpu / self.on * 100.0)]
    }
}

impl First {
    /// Attaches a few times, and records what everything is new in.
    fn measure(rate: u32, workload: &mut Workload) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut first = Self::default();
        for _ in 0..ATTACHES {
            let began = Instant::now();
            let tracer = attach(rate, workload, &folder)?;
            first.attach.push(began.elapsed().as_secs_f64());
            let (before, began) = (cpu_time(tracer.pid())?, Instant::now());
            work(workload, FIRST)?;
            first.tracer_cpu.push((cpu_time(tracer.pid())? - before) / began.elapsed().as_secs_f64());
            tracer.signal(libc::SIGINT)?;
            let outcome = tracer.wait()?;
            outcome.expect(0, &["lost               0"]);
            let told = outcome.stderr.lines().find_map(|line| line.trim_start().strip_prefix("cost to it"));
            told.context("lj-trace does not tell its cost")?.trim().clone_into(&mut first.told);
        }
        Ok(first)
    }

    fn cells(&self, name: String) -> [String; 4] {
        let of = |values: &[f64], unit: f64| format!("{:.1} (at most {:.1})", mean(values) * unit, most(values) * unit);
        [name, of(&self.attach, 1000.0), of(&self.tracer_cpu, 100.0), self.told.clone()]
    }
}

impl Findings {
    fn print_verdicts(&self) {
        for (rate, asked) in [(99, 0.005), (1000, 0.03)] {
            let lost = self.lost.iter().filter(|(at, _)| *at == rate).map(|(_, lost)| lost);
            let Some(worst) = lost.max_by(|a, b| a.trimmed().0.total_cmp(&b.trimmed().0)) else { continue };
            let what = format!("the most CPU time that is lost at {rate} Hz");
            let asked_for = format!("<= {}%", asked * 100.0);
            verdict(&what, &asked_for, &typical(worst), worst.trimmed().0 <= asked);
        }
        let longest = most(&self.attach);
        verdict("the longest time to attach", "<= 300 ms", &format!("{:.0} ms", longest * 1000.0), longest <= 0.3);
    }
}

/// What turns have lost, without those that something else disturbed.
fn typical(losses: &Losses) -> String {
    let (mean, error) = losses.trimmed();
    format!("{:.2}% ±{:.2}", mean * 100.0, error * 100.0)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn most(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}
