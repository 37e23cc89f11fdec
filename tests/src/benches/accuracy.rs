//! Estimates against the truth: what the workload has counted, times what full tracing has seen each call take.
//!
//! A call takes the same at any time, but for string tables: the line that makes one string too many is charged with a table
//! of megabytes. How many of those there are depends on how fast everything goes, so they are counted while it is recorded,
//! and the full trace only says whose they are.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use super::string_tables::Made;
use super::work::{SCRIPT, Work};
use crate::estimates::{Estimated, Estimates, Place};
use crate::tracer::Tracer;
use crate::workload::Workload;
use crate::written;
use lj_trace::bounded::estimate::Figure;

/// What a place takes for each call of a line.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Cost {
    line: u64,
    bytes: f64,
    count: f64,
}

/// What is known of a workload's allocations by tracing all of them for some seconds.
#[derive(Clone, Debug)]
pub struct Truth {
    costs: BTreeMap<Place, Cost>,
    /// In which proportions places make string tables larger, which add up to 1; or none has.
    growers: BTreeMap<Place, f64>,
    /// By how much the bytes of a line are off at most from what the workload has measured itself, as a share. Those that
    /// make string tables larger are left out.
    pub disagreement: f64,
}

/// What a line takes more than its objects do, as a share, is string tables: all else agrees better.
const TABLES: f64 = 2e-3;

/// How far the estimates of a run were off.
#[derive(Clone, Debug, Default)]
pub struct Accuracy {
    /// Of the shares of all places, the greatest error, in percentage points.
    pub worst: f64,
    /// The place that has it.
    pub worst_place: Option<Place>,
    /// Errors of places' shares, bytes and counts: how many there are, and how many are within what is stated.
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
        let [bytes, counts] = [by_place(&file, "alloc_space")?, by_place(&file, "alloc_objects")?];
        Self::from(&work, &bytes, &counts)
    }

    /// From what a full trace of some work has seen.
    fn from(work: &Work, bytes: &BTreeMap<Place, f64>, counts: &BTreeMap<Place, f64>) -> Result<Self> {
        let mut truth = Self { costs: BTreeMap::new(), growers: BTreeMap::new(), disagreement: 0.0 };
        for (&line, calls) in &work.lines {
            let of = |seen: &BTreeMap<Place, f64>, place| seen.get(&place).copied().unwrap_or(0.0) / calls.calls;
            // Lines of one function share what is known of it alone.
            let places = [Place::Line(line), Place::Function(calls.function)];
            let places = places.into_iter().filter(|place| of(bytes, *place) > 0.0 && !truth.costs.contains_key(place));
            let places: Vec<Place> = places.collect();
            let seen: f64 = places.iter().map(|place| of(bytes, *place)).sum();
            ensure!(seen > 0.0, "line {line} was run {} times and not seen in full tracing", calls.calls);
            let own = calls.bytes.unwrap_or(seen);
            let grows = seen > own * (1.0 + TABLES);
            if grows {
                truth.growers.insert(places[0], (seen - own) * calls.calls);
            } else {
                truth.disagreement = truth.disagreement.max((seen / own - 1.0).abs());
            }
            let factor = if grows { own / seen } else { 1.0 };
            let cost = |place| Cost { line, bytes: of(bytes, place) * factor, count: of(counts, place) };
            truth.costs.extend(places.iter().map(|place| (*place, cost(*place))));
        }
        let all: f64 = truth.growers.values().sum();
        truth.growers.values_mut().for_each(|bytes| *bytes /= all);
        Ok(truth)
    }

    /// Holds estimates against it, of work during which these string tables were made.
    ///
    /// # Errors
    /// If they are of other work.
    pub fn check(&self, work: &Work, tables: Made, estimates: &Estimates) -> Result<Accuracy> {
        let mut truth = Vec::new();
        for (place, cost) in &self.costs {
            let line = cost.line;
            let calls = work.lines.get(&line).with_context(|| format!("line {line} was not run"))?.calls;
            let grown = self.growers.get(place).map_or(0.0, |part| part * tables.grown);
            truth.push((*place, cost.bytes * calls + grown, cost.count * calls));
        }
        let known: f64 = truth.iter().map(|(_, bytes, _)| bytes).sum();
        let total = work.allocated.unwrap_or(known + tables.shrunk);
        let gross = estimates.about.gross.context("nothing is estimated")?;
        let mut accuracy = Accuracy {
            total: gross.value / total - 1.0,
            total_is_covered: is_within(gross, total),
            ..Accuracy::default()
        };
        let megabytes = [gross.value, total, known, tables.grown, tables.shrunk].map(|bytes| (bytes / 1e6).round());
        println!("    [total told, true; lines, tables grown, shrunk] = {megabytes:?} MB");
        // A place that no window saw may have what is said of all of these.
        let unseen = estimates.about.unseen;
        let none = |whole: f64| Figure::estimated(0.0, unseen * whole);
        let missing = Estimated { share: none(1.0), bytes: none(gross.value), count: none(f64::INFINITY) };
        for (place, bytes, count) in truth {
            let share = bytes / total;
            let told = estimates.places.get(&place).copied().unwrap_or(missing);
            let error = (told.share.value - share).abs() * 100.0;
            if error > accuracy.worst {
                (accuracy.worst, accuracy.worst_place) = (error, Some(place));
            }
            println!("    {place:?}: {}", shown(told, share, bytes, count));
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

/// What a full trace says of the workload's places.
fn by_place(file: &Path, measure: &str) -> Result<BTreeMap<Place, f64>> {
    let mut places = BTreeMap::new();
    for (stack, weight) in &written::speedscope(file, Some(measure))? {
        if let Some(place) = stack.last().and_then(|leaf| place_of(leaf)) {
            *places.entry(place).or_default() += *weight as f64;
        }
    }
    Ok(places)
}

/// The place that a frame is: `file.lua:7` is a line, `name@file.lua:5_[j]` a function.
fn place_of(frame: &str) -> Option<Place> {
    let (name, line) = frame.split_once(&format!("{SCRIPT}:"))?;
    let line = line.trim_end_matches("_[j]").parse().ok()?;
    Some(if name.contains('@') { Place::Function(line) } else { Place::Line(line) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benches::work::Calls;

    #[test]
    fn frames_are_places() {
        assert_eq!(place_of("bench_bounded.lua:70"), Some(Place::Line(70)));
        assert_eq!(place_of("nested@bench_bounded.lua:78_[j]"), Some(Place::Function(78)));
        assert_eq!(place_of("INTERNAL"), None);
    }

    #[test]
    fn a_call_takes_no_string_table() {
        let calls = |function, calls, bytes| Calls { function, calls, bytes };
        let work = Work {
            // Two lines of one function, and one that makes strings.
            lines: [(7, calls(5, 10.0, Some(40.0))), (8, calls(5, 10.0, None)), (20, calls(19, 10.0, Some(100.0)))]
                .into(),
            ..Work::default()
        };
        let seen =
            [(Place::Line(7), 100.0), (Place::Function(5), 300.0), (Place::Line(8), 50.0), (Place::Line(20), 3000.0)];
        let counts = seen.map(|(place, _)| (place, 20.0));
        let truth = Truth::from(&work, &seen.into(), &counts.into()).unwrap();
        let bytes: Vec<_> = truth.costs.iter().map(|(place, cost)| (*place, cost.line, cost.bytes)).collect();
        let expected = [
            (Place::Line(7), 7, 10.0),
            (Place::Line(8), 8, 5.0),
            (Place::Line(20), 20, 100.0),
            (Place::Function(5), 7, 30.0),
        ];
        assert_eq!((bytes, truth.disagreement), (expected.to_vec(), 0.0));
        assert_eq!(truth.growers, [(Place::Line(20), 1.0)].into());
    }
}
