//! Estimates against the truth: what the workload has counted, times what full tracing has seen each call take.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use super::work::{SCRIPT, Work};
use crate::estimates::{Estimated, Estimates};
use crate::tracer::Tracer;
use crate::workload::Workload;
use crate::written;
use lj_trace::bounded::estimate::Figure;

/// What the calls of a line take, by a full trace.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Cost {
    bytes: f64,
    count: f64,
}

/// What is known of a workload's allocations by tracing all of them for some seconds.
#[derive(Clone, Debug)]
pub struct Truth {
    /// By line, for each call.
    costs: BTreeMap<u64, Cost>,
    /// All that was allocated, to what the lines have allocated.
    all: f64,
    /// By how much the bytes of a line are off at most from what the workload has measured itself, as a share.
    pub disagreement: f64,
}

/// How far the estimates of a run were off.
#[derive(Clone, Debug, Default)]
pub struct Accuracy {
    /// Of the shares of all lines, the greatest error, in percentage points.
    pub worst: f64,
    /// The line that has it.
    pub worst_line: u64,
    /// Errors of lines' shares, bytes and counts: how many there are, and how many are within what is stated.
    pub checks: [Checks; 3],
    /// The total's error, as a share of it.
    pub total: f64,
    /// Whether that is within what is stated.
    pub total_is_covered: bool,
}

/// How many errors are within what is stated.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Checks {
    /// So many.
    pub within: u32,
    /// Of so many.
    pub all: u32,
}

impl Truth {
    /// Traces the workload in full while it works for some seconds.
    ///
    /// # Errors
    /// If that fails, or not all was seen.
    pub fn of(workload: &mut Workload, seconds: f64, folder: &Path) -> Result<Self> {
        let file = folder.join("full.speedscope.json");
        let (pid, output) = (workload.pid().to_string(), file.display().to_string());
        let mut tracer = Tracer::start(["--pid", &pid, "--mode", "memprof", "--no-limit", "--output", &output])?;
        tracer.wait_until_attached()?;
        let work = Work::of(workload, seconds)?;
        tracer.signal(libc::SIGINT)?;
        tracer.wait()?.expect(0, &["lost               0"]);
        let [(bytes, all), (counts, _)] = [by_line(&file, "alloc_space")?, by_line(&file, "alloc_objects")?];
        let mut costs = BTreeMap::new();
        let (mut known, mut disagreement) = (0.0, 0.0_f64);
        for (line, calls) in &work.lines {
            let of = |seen: &BTreeMap<u64, f64>| seen.get(line).copied().unwrap_or(0.0) / calls.calls;
            let cost = Cost { bytes: of(&bytes), count: of(&counts) };
            ensure!(cost.bytes > 0.0, "line {line} was run {} times and not seen in full tracing", calls.calls);
            known += cost.bytes * calls.calls;
            if let Some(own) = calls.bytes {
                disagreement = disagreement.max((cost.bytes / own - 1.0).abs());
            }
            costs.insert(*line, cost);
        }
        Ok(Self { costs, all: all / known, disagreement })
    }

    /// Holds estimates against it.
    ///
    /// # Errors
    /// If they are of other work.
    pub fn check(&self, work: &Work, estimates: &Estimates) -> Result<Accuracy> {
        let mut truth = Vec::new();
        for (line, calls) in &work.lines {
            let cost = self.costs.get(line).with_context(|| format!("line {line} was not traced in full"))?;
            truth.push((*line, cost.bytes * calls.calls, cost.count * calls.calls));
        }
        let known: f64 = truth.iter().map(|(_, bytes, _)| bytes).sum();
        let total = work.allocated.unwrap_or(known * self.all);
        let gross = estimates.about.gross.context("nothing is estimated")?;
        let mut accuracy = Accuracy {
            total: gross.value / total - 1.0,
            total_is_covered: is_within(gross, total),
            ..Accuracy::default()
        };
        // A line that no window saw may have what is said of all of these.
        let unseen = estimates.about.unseen;
        let none = |whole: f64| Figure::estimated(0.0, unseen * whole);
        let missing = Estimated { share: none(1.0), bytes: none(gross.value), count: none(f64::INFINITY) };
        for (line, bytes, count) in truth {
            let share = bytes / total;
            let told = estimates.lines.get(&line).copied().unwrap_or(missing);
            let error = (told.share.value - share).abs() * 100.0;
            if error > accuracy.worst {
                (accuracy.worst, accuracy.worst_line) = (error, line);
            }
            println!("    line {line}: {}", shown(told, share, bytes, count));
            let checks = [(told.share, share), (told.bytes, bytes), (told.count, count)];
            for (sum, (figure, truth)) in accuracy.checks.iter_mut().zip(checks) {
                sum.all += 1;
                sum.within += u32::from(is_within(figure, truth));
            }
        }
        Ok(accuracy)
    }
}

impl Checks {
    /// Both together.
    pub fn plus(self, more: Self) -> Self {
        Self { within: self.within + more.within, all: self.all + more.all }
    }

    /// The share that is within.
    pub fn share(self) -> f64 {
        f64::from(self.within) / f64::from(self.all.max(1))
    }
}

/// In the same way as a report, with the truth behind each figure.
fn shown(told: Estimated, share: f64, bytes: f64, count: f64) -> String {
    let shown = |figure: Figure, unit: f64, truth: f64| {
        let error = figure.error.map_or_else(String::new, |error| format!(" ±{:.2}", error / unit));
        let mark = if is_within(figure, truth) { "" } else { " OUTSIDE" };
        format!("{:.2}{error} (true {:.2}){mark}", figure.value / unit, truth / unit)
    };
    let Estimated { share: told_share, bytes: told_bytes, count: told_count } = told;
    let [share, bytes, count] =
        [shown(told_share, 0.01, share), shown(told_bytes, 1e6, bytes), shown(told_count, 1e3, count)];
    format!("{share} %, {bytes} MB, {count} thousand times")
}

/// Whether the truth is where a figure says. What is measured is to be right to a thousandth: full tracing of some seconds
/// and what the workload counts agree no better.
fn is_within(figure: Figure, truth: f64) -> bool {
    (figure.value - truth).abs() <= figure.error.unwrap_or(0.0).max(truth * 1e-3)
}

/// What a full trace says of the workload's lines, and of all together.
fn by_line(file: &Path, measure: &str) -> Result<(BTreeMap<u64, f64>, f64)> {
    let mut lines = BTreeMap::new();
    let stacks = written::speedscope(file, Some(measure))?;
    for (stack, weight) in &stacks {
        let leaf = stack.last().and_then(|leaf| leaf.split_once(&format!("{SCRIPT}:")));
        let line = leaf.and_then(|(_, line)| line.parse::<u64>().ok());
        if let Some(line) = line {
            *lines.entry(line).or_default() += *weight as f64;
        }
    }
    Ok((lines, written::total(&stacks) as f64))
}
