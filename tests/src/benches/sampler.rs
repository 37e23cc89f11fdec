//! `cargo xtask bench sampler`: what samples cost a program, from blocks with lj-trace and without in turns.
//!
//! Its workloads work in turns of some 10 ms that are all the same, and a block is told by the median of its turns, so that
//! less than a percent can be seen on a machine that is not idle. Of the blocks without, some count as if lj-trace had been
//! there: what they have lost is the error of the method. What a clock costs that only ticks, as often as the highest rate, is
//! measured beside: no sampler that is told by it costs less.

use std::fmt;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lj_trace::probes::perf_event::{Clock, Ticking};

use super::slowdown::Losses;
use super::table::{Table, verdict};
use super::work::{Spent, Work};
use crate::programs::Program;
use crate::tracer::Tracer;
use crate::usage::cpu_time;
use crate::workload::Workload;

/// What is run: a name, a script and its arguments.
const WORKLOADS: [(&str, &str, &[&str]); 3] = [
    ("interpreted", "bench.lua", &["1"]),
    ("compiled", "bench.lua", &["1", "jit"]),
    ("in 4000 traces", "many_traces.lua", &["1"]),
];
/// How long a block is, in seconds.
const BLOCK: f64 = 2.1;
/// How long a workload warms up, in seconds.
const WARMING: f64 = 3.0;
/// How long lj-trace is given after it has attached: the first samples of a function or trace have it read much.
const SETTLING: Duration = Duration::from_millis(500);

/// What a block works with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum With {
    Nothing,
    /// A clock that ticks so often a second and does nothing.
    Ticks(u32),
    /// lj-trace, which samples so often a second.
    LjTrace(u32),
}

/// What was measured at a rate.
#[derive(Default)]
struct Measured {
    cpu: Losses,
    wall: Losses,
    /// In seconds, for each time it was attached.
    attach: Vec<f64>,
    /// In shares of a core, for each block.
    tracer_cpu: Vec<f64>,
    /// What lj-trace says of its cost at the end of a block.
    told: Option<String>,
}

/// Measures the rates on a program, with so many blocks for each, and prints the table.
///
/// # Errors
/// If a workload or lj-trace fails.
pub fn sampler(blocks: u32, rates: &[u32], program: &Program) -> Result<()> {
    let ticks = rates.iter().max().map(|&rate| With::Ticks(rate));
    let traced = rates.iter().copied().map(With::LjTrace);
    let all_with: Vec<With> = [With::Nothing].into_iter().chain(ticks).chain(traced).collect();
    let mut table = Table::new([
        "",
        "lost, CPU time",
        "lost, elapsed",
        "as lj-trace tells it",
        "attached within, ms",
        "lj-trace, % of a core",
    ]);
    let mut all = Vec::new();
    for (name, script, arguments) in WORKLOADS {
        println!("{name}");
        let measured = measure(blocks, &all_with, program, (script, arguments)).context(name)?;
        for (with, measured) in all_with.iter().zip(measured) {
            table.row(measured.cells(format!("{name}, {with}")));
            all.push((*with, measured));
        }
    }
    println!("\n{}: {blocks} blocks of {BLOCK} s for each row, each between two without lj-trace", program.name);
    table.print();
    println!();
    print_verdicts(&all);
    Ok(())
}

fn measure(
    blocks: u32,
    all_with: &[With],
    program: &Program,
    (script, arguments): (&str, &[&str]),
) -> Result<Vec<Measured>> {
    let folder = tempfile::tempdir()?;
    let output = folder.path().join("cpu.bin").display().to_string();
    let mut workload = Workload::start(program, script, arguments)?;
    work(&mut workload, WARMING)?;
    let mut all: Vec<Measured> = all_with.iter().map(|_| Measured::default()).collect();
    let mut before = work(&mut workload, BLOCK)?;
    for _ in 0..blocks {
        for (&with, measured) in all_with.iter().zip(&mut all) {
            let with = match with {
                With::Nothing => work(&mut workload, BLOCK)?,
                With::Ticks(rate) => work_with_ticks(&mut workload, rate)?,
                With::LjTrace(rate) => measured.record(rate, &mut workload, &output)?,
            };
            let after = work(&mut workload, BLOCK)?;
            let three = [before, with, after];
            measured.cpu.add(&three, |spent: &Spent| spent.cpu);
            measured.wall.add(&three, |spent: &Spent| spent.wall);
            [.., before] = three;
        }
    }
    Ok(all)
}

fn work(workload: &mut Workload, seconds: f64) -> Result<Work> {
    workload.tell(&seconds.to_string())?;
    Work::parse(&workload.report()?)
}

/// Lets it work for a block while a clock ticks.
fn work_with_ticks(workload: &mut Workload, rate: u32) -> Result<Work> {
    let ticking = Ticking::on(Clock::detect(), rate, workload.pid())?;
    ticking.enable(true)?;
    let worked = work(workload, BLOCK)?;
    ensure!(ticking.ticks()? > BLOCK * f64::from(rate) / 2.0, "{} ticks", ticking.ticks()?);
    Ok(worked)
}

impl fmt::Display for With {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => out.write_str("without"),
            Self::Ticks(rate) => write!(out, "{rate} ticks"),
            Self::LjTrace(rate) => write!(out, "{rate} Hz"),
        }
    }
}

impl Measured {
    /// Lets it work for a block while it is recorded.
    fn record(&mut self, rate: u32, workload: &mut Workload, output: &str) -> Result<Work> {
        let (pid, rate) = (workload.pid().to_string(), rate.to_string());
        let began = Instant::now();
        let mut tracer = Tracer::start(["--pid", &pid, "--rate", &rate, "--output", output])?;
        tracer.wait_until_attached()?;
        self.attach.push(began.elapsed().as_secs_f64());
        // The program works meanwhile: of one that stands still there are no samples to settle by.
        work(workload, SETTLING.as_secs_f64())?;
        let (before, began) = (cpu_time(tracer.pid())?, Instant::now());
        let work = work(workload, BLOCK)?;
        self.tracer_cpu.push((cpu_time(tracer.pid())? - before) / began.elapsed().as_secs_f64());
        tracer.signal(libc::SIGINT)?;
        let outcome = tracer.wait()?;
        outcome.expect(0, &["lost               0"]);
        let told = outcome.stderr.lines().find_map(|line| line.trim_start().strip_prefix("cost to it"));
        self.told = told.map(|told| told.trim_start().to_owned());
        // Files are written on the other CPU; the next block does not begin amid that.
        sleep(Duration::from_millis(100));
        Ok(work)
    }

    fn cells(&self, name: String) -> [String; 6] {
        let most = |values: &[f64], unit: f64| match values.iter().copied().reduce(f64::max) {
            Some(_) => format!("{:.1} (at most {:.1})", mean(values) * unit, most(values) * unit),
            None => "-".to_owned(),
        };
        let [cpu, wall] = [&self.cpu, &self.wall].map(|losses| format!("{losses:.2}"));
        let told = self.told.clone().unwrap_or_else(|| "-".to_owned());
        [name, cpu, wall, told, most(&self.attach, 1000.0), most(&self.tracer_cpu, 100.0)]
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn most(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}

fn print_verdicts(all: &[(With, Measured)]) {
    for (rate, asked) in [(99, 0.005), (1000, 0.03)] {
        let measured = all.iter().filter(|(with, _)| *with == With::LjTrace(rate)).map(|(_, measured)| &measured.cpu);
        let Some(worst) = measured.max_by(|a, b| a.mean().total_cmp(&b.mean())) else { continue };
        let (what, asked_for) =
            (format!("the most CPU time that is lost at {rate} Hz"), format!("<= {}%", asked * 100.0));
        verdict(&what, &asked_for, &format!("{worst:.2}"), worst.mean() <= asked);
    }
    let longest = all.iter().map(|(_, measured)| most(&measured.attach)).fold(0.0, f64::max);
    verdict("the longest time to attach", "<= 300 ms", &format!("{:.0} ms", longest * 1000.0), longest <= 0.3);
}
