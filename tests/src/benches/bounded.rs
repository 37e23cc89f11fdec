//! `cargo xtask bench bounded`: memory profiles of bounded cost, on workloads that know what they allocate.
//!
//! Each workload is first traced in full for some seconds, which tells what each call of a line takes; then recorded at 5%
//! for as long as people record, once or several times, which is held against what it has counted, and against itself; then
//! it works in blocks with lj-trace and without in turns, which tell how much slower it is. While it is recorded, busy loops
//! may keep the machine from it and from lj-trace.

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::accuracy::{Accuracy, Checks, Truth};
use super::busy_loops::BusyLoops;
use super::consistency::{Told, contradictions};
use super::slowdown::Losses;
use super::string_table::StringTable;
use super::table::{Table, verdict};
use super::work::{SCRIPT, Work};
use crate::estimates::Estimates;
use crate::programs::Program;
use crate::tracer::Tracer;
use crate::usage::cpu_time;
use crate::workload::Workload;

/// The modes of the workload, each also with the JIT compiler.
pub const WORKLOADS: [&str; 4] = ["steady", "phases", "bursts", "leak"];

/// How long all is traced, in seconds: some collection cycles, since tables grow and shrink with these.
const TRACED: f64 = 10.2;
/// How long it works for nobody, so that what is to be compiled is compiled.
const WARMING: f64 = 1.2;
/// How long a block is: so many periods of any workload.
const BLOCK: f64 = 4.2;

/// The ways in which what is lost is measured.
const LOSSES: [&str; 3] =
    ["the most that is lost in the kernel", "the most CPU time that is lost", "the most time that is lost"];

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How long each recording takes, in seconds.
    pub seconds: f64,
    /// How often each workload is recorded.
    pub runs: u32,
    /// How many busy loops run meanwhile.
    pub starve: u32,
    /// How many blocks with lj-trace there are.
    pub blocks: u32,
    /// The names of workloads, `-jit` behind those that are compiled.
    pub workloads: Vec<String>,
}

/// What was measured of a workload.
struct Measured {
    runs: Vec<Run>,
    losses: [Losses; 3],
    disagreement: f64,
}

/// One recording.
struct Run {
    accuracy: Accuracy,
    /// What contradicts itself in it.
    contradictions: Vec<String>,
    /// Whether it withheld its figures, for what it found itself.
    is_withheld: bool,
    /// In percent of the program's CPU time, as lj-trace tells it.
    cost: f64,
    windows: u64,
    /// Calls of the allocator that windows saw.
    events: u64,
    /// In percent of one core.
    tracer_cpu: f64,
}

/// Measures on each program, and prints the tables.
///
/// # Errors
/// If a workload or lj-trace fails.
pub fn bounded(plan: &Plan, programs: &[Program]) -> Result<()> {
    let mut table = Table::new([
        "",
        "worst share",
        "within: shares",
        "bytes",
        "counts",
        "total",
        "lost in the kernel",
        "lost, CPU time",
        "lost, elapsed",
        "cost, as told",
        "windows",
        "events",
        "lj-trace, % of a core",
        "truths differ by",
    ]);
    let mut all = Vec::new();
    for program in programs {
        for workload in &plan.workloads {
            let name = format!("{} {workload}", program.name);
            println!("{name}");
            let measured = measure(plan, program, workload).with_context(|| name.clone())?;
            measured.runs.iter().for_each(|run| table.row(measured.cells(run, &name)));
            all.push(measured);
        }
    }
    let Plan { seconds, runs, starve, blocks, .. } = plan;
    println!("\nrecorded {runs} times for {seconds} s beside {starve} busy loops, then {blocks} blocks of {BLOCK} s");
    table.print();
    println!();
    print_verdicts(&all);
    Ok(())
}

fn measure(plan: &Plan, program: &Program, workload: &str) -> Result<Measured> {
    let folder = tempfile::tempdir()?;
    let (mode, arguments) = match workload.strip_suffix("-jit") {
        Some(mode) => (mode, &["jit"][..]),
        None => (workload, &[][..]),
    };
    ensure!(WORKLOADS.contains(&mode), "there is no workload {workload}; there are {}", WORKLOADS.join(", "));
    let arguments: Vec<&str> = [mode].iter().chain(arguments).copied().collect();
    // Whatever else is traced on this machine, a file of its own has no other breakpoints.
    let mut workload = Workload::start(&program.copy_to(folder.path())?, SCRIPT, &arguments)?;
    let table = StringTable::of(workload.pid())?;
    Work::of(&mut workload, table.mask, WARMING)?;
    let truth = Truth::of(&mut workload, table, TRACED, folder.path())?;

    let stream = folder.path().join("estimate.bin");
    let mut runs = Vec::new();
    for _ in 0..plan.runs {
        runs.push(record(plan, &mut workload, &truth, &stream)?);
    }

    let mut blocks = vec![Work::of(&mut workload, table.mask, BLOCK)?];
    for _ in 0..plan.blocks {
        let tracer = attach(&workload, &stream)?;
        blocks.push(Work::of(&mut workload, table.mask, BLOCK)?);
        end(tracer)?;
        blocks.push(Work::of(&mut workload, table.mask, BLOCK)?);
    }
    let [cpu, wall] = [Losses::of(&blocks, |spent| spent.cpu), Losses::of(&blocks, |spent| spent.wall)];
    let losses = [Losses::in_kernel(&blocks), cpu, wall];
    Ok(Measured { runs, losses, disagreement: truth.disagreement })
}

fn record(plan: &Plan, workload: &mut Workload, truth: &Truth, stream: &Path) -> Result<Run> {
    let _busy = BusyLoops::start(plan.starve);
    let tracer = attach(workload, stream)?;
    let began = (Instant::now(), cpu_time(tracer.pid())?);
    let work = Work::of(workload, truth.mask(), plan.seconds)?;
    let tracer_cpu = 100.0 * (cpu_time(tracer.pid())? - began.1) / began.0.elapsed().as_secs_f64();
    let told = end(tracer)?;
    let estimates = Estimates::read(stream, SCRIPT)?;
    let about = &estimates.about;
    let contradictions = contradictions(about, &told);
    for contradiction in &contradictions {
        println!("    CONTRADICTION: {contradiction}");
    }
    Ok(Run {
        accuracy: truth.check(&work, &estimates)?,
        contradictions,
        is_withheld: !about.withheld.is_empty(),
        cost: told.cost,
        windows: about.windows,
        events: about.events,
        tracer_cpu,
    })
}

fn attach(workload: &Workload, stream: &Path) -> Result<Tracer> {
    let (pid, output) = (workload.pid().to_string(), stream.display().to_string());
    let arguments = ["--pid", &pid, "--mode", "memprof", "--overhead", "5%", "--force", "--output", &output];
    let mut tracer = Tracer::start(arguments)?;
    tracer.wait_until_attached()?;
    // It reads symbols still.
    sleep(Duration::from_millis(300));
    Ok(tracer)
}

fn end(tracer: Tracer) -> Result<Told> {
    tracer.signal(libc::SIGINT)?;
    let outcome = tracer.wait()?;
    outcome.expect(0, &["lost               0"]);
    let told = outcome.stderr.lines().find(|line| line.starts_with("  cost to it"));
    println!("    lj-trace: {}", told.unwrap_or_default().trim_start());
    Told::of(&outcome.stderr)
}

impl Measured {
    fn cells(&self, run: &Run, name: &str) -> [String; 14] {
        let accuracy = &run.accuracy;
        let [shares, bytes, counts] = accuracy.checks.map(|checks| format!("{} of {}", checks.within, checks.all));
        let [kernel, cpu, wall] = self.losses.each_ref().map(ToString::to_string);
        let outside = if accuracy.total_is_covered { "" } else { " (outside)" };
        [
            name.to_owned(),
            format!(
                "{:.2} points{}",
                accuracy.worst,
                accuracy.worst_place.map_or_else(String::new, |place| format!(", {place:?}"))
            ),
            shares,
            bytes,
            counts,
            format!("{:+.2}%{outside}", accuracy.total * 100.0),
            kernel,
            cpu,
            wall,
            format!("{:.1}%", run.cost),
            run.windows.to_string(),
            run.events.to_string(),
            format!("{:.1}", run.tracer_cpu),
            format!("{:.1}%", self.disagreement * 100.0),
        ]
    }
}

fn print_verdicts(all: &[Measured]) {
    let runs = || all.iter().flat_map(|measured| &measured.runs);
    let worst = |figure: fn(&Run) -> f64| runs().map(figure).fold(0.0, f64::max);
    let share = worst(|run| run.accuracy.worst);
    verdict("the worst share of a line", "<= 2 points", &format!("{share:.2} points"), share <= 2.0);
    let checks = runs().flat_map(|run| run.accuracy.checks).fold(Checks::default(), Checks::plus);
    let covered = format!("{:.1}% of {}", checks.share() * 100.0, checks.all);
    verdict("figures within their stated errors", ">= 95%", &covered, checks.share() >= 0.95);
    let total = worst(|run| run.accuracy.total.abs()) * 100.0;
    verdict("the worst total", "<= 2%", &format!("{total:.2}%"), total <= 2.0);
    let count = |is: fn(&Run) -> bool| runs().filter(|run| is(run)).count();
    let contradicting = count(|run| !run.contradictions.is_empty());
    let of_all = format!("{contradicting} of {}, {} withheld", runs().count(), count(|run| run.is_withheld));
    verdict("recordings that contradict themselves", "0", &of_all, contradicting == 0);
    let (most, dear) = (worst(|run| run.cost), count(|run| run.cost > 5.0));
    verdict("the most that lj-trace tells", "<= 5%", &format!("{most:.1}%, {dear} above"), most <= 5.0);
    for (which, what) in LOSSES.into_iter().enumerate() {
        let most = all.iter().map(|measured| &measured.losses[which]);
        let most = most.filter(|losses| !losses.is_empty()).max_by(|a, b| a.mean().total_cmp(&b.mean()));
        let Some(most) = most else { continue };
        verdict(what, "<= 5%", &most.to_string(), most.mean() <= 0.05);
    }
}
