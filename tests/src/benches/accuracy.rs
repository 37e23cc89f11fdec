//! Estimates against the truth: what the workload has counted, times what full tracing has seen each call take.
//!
//! A call takes the same at any time, but for string tables: the line that makes one string too many is charged with a table
//! of megabytes. How many of those there are depends on how fast everything goes, so the workload notes each.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use lj_trace_estimate::Figure;

use super::string_table::StringTable;
use super::work::{SCRIPT, Work};
use crate::estimates::{Estimated, Estimates, Place};
use crate::tracer::Tracer;
use crate::workload::Workload;
use crate::written;

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
    table: StringTable,
    /// By how much the bytes of a line are off at most from what the workload has measured itself, as a share.
    pub disagreement: f64,
}

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
    pub fn of(workload: &mut Workload, table: StringTable, seconds: f64, folder: &Path) -> Result<Self> {
        let file = folder.join("full.speedscope.json");
        let (pid, output) = (workload.pid().to_string(), file.display().to_string());
        let mut tracer =
            Tracer::start(["--pid", &pid, "--mode", "memprof", "--no-limit", "--force", "--output", &output])?;
        tracer.wait_until_attached()?;
        let work = Work::of(workload, table.mask, seconds)?;
        tracer.signal(libc::SIGINT)?;
        tracer.wait()?.expect(0, &["lost               0"]);
        let [bytes, counts] = [by_place(&file, "alloc_space")?, by_place(&file, "alloc_objects")?];
        Self::from(&work, table, &bytes, &counts)
    }

    /// From what a full trace of some work has seen.
    fn from(
        work: &Work,
        table: StringTable,
        bytes: &BTreeMap<Place, f64>,
        counts: &BTreeMap<Place, f64>,
    ) -> Result<Self> {
        let mut truth = Self { costs: BTreeMap::new(), table, disagreement: 0.0 };
        for (&line, calls) in &work.lines {
            let of = |seen: &BTreeMap<Place, f64>, place| seen.get(&place).copied().unwrap_or(0.0) / calls.calls;
            // Lines of one function share what is known of it alone.
            let places = [Place::Line(line), Place::Function(calls.function)];
            let places = places.into_iter().filter(|place| of(bytes, *place) > 0.0 && !truth.costs.contains_key(place));
            let places: Vec<Place> = places.collect();
            let seen: f64 = places.iter().map(|place| of(bytes, *place)).sum();
            ensure!(seen > 0.0, "line {line} was run {} times and not seen in full tracing", calls.calls);
            // Without the string tables.
            let objects = seen - calls.grown * table.slot / calls.calls;
            if let Some(own) = calls.bytes {
                truth.disagreement = truth.disagreement.max((objects / own - 1.0).abs());
            }
            let cost = |place| Cost { line, bytes: of(bytes, place) * objects / seen, count: of(counts, place) };
            truth.costs.extend(places.iter().map(|place| (*place, cost(*place))));
        }
        Ok(truth)
    }

    /// The address of the mask of the VM's string table.
    pub fn mask(&self) -> u64 {
        self.table.mask
    }

    /// What each place has allocated in some work: bytes, and how often.
    ///
    /// # Errors
    /// It is of other work.
    pub fn places(&self, work: &Work) -> Result<Vec<(Place, f64, f64)>> {
        let place = |(place, cost): (&Place, &Cost)| {
            let line = cost.line;
            let calls = work.lines.get(&line).with_context(|| format!("line {line} was not run"))?;
            let tables = if *place == Place::Line(line) { calls.grown * self.table.slot } else { 0.0 };
            Ok((*place, cost.bytes * calls.calls + tables, cost.count * calls.calls))
        };
        self.costs.iter().map(place).collect()
    }

    /// Holds estimates against it.
    ///
    /// # Errors
    /// If they are of other work.
    pub fn check(&self, work: &Work, estimates: &Estimates) -> Result<Accuracy> {
        let truth = self.places(work)?;
        let grown: f64 = work.lines.values().map(|calls| calls.grown * self.table.slot).sum();
        let shrunk = work.shrunk * self.table.slot;
        let known: f64 = truth.iter().map(|(_, bytes, _)| bytes).sum();
        let total = work.allocated.unwrap_or(known + shrunk);
        let about = &estimates.about;
        let gross = about.gross.context("nothing is estimated")?;
        let mut accuracy = Accuracy {
            total: if about.has_bytes() { gross.value / total - 1.0 } else { 0.0 },
            total_is_covered: !about.has_bytes() || is_within(gross, total),
            ..Accuracy::default()
        };
        let megabytes = [gross.value, total, known, grown, shrunk].map(|bytes| (bytes / 1e6).round());
        println!(
            "    [total told, true; lines, tables grown, shrunk] = {megabytes:?} MB, net {:.0} MB",
            estimates.about.net.map_or(0.0, |net| net.value) / 1e6
        );
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
            let (shares, figures) = (!about.no_shares, about.has_bytes());
            let checks = [(shares, told.share, share), (figures, told.bytes, bytes), (figures, told.count, count)];
            for (sum, (is_told, figure, truth)) in accuracy.checks.iter_mut().zip(checks) {
                // What is withheld cannot be wrong.
                if !is_told {
                    continue;
                }
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
pub fn is_within(figure: Figure, truth: f64) -> bool {
    (figure.value - truth).abs() <= figure.error.unwrap_or(0.0).max(truth * 1e-3)
}

/// What a full trace says of the workload's places.
fn by_place(file: &Path, measure: &str) -> Result<BTreeMap<Place, f64>> {
    let mut places = BTreeMap::new();
    for (stack, weight) in &written::speedscope(file, Some(measure))? {
        // Below a trace whose line is not certain there is the function that it started in.
        let own = stack.iter().rev().find(|frame| !frame.starts_with("TRACE ["));
        if let Some(place) = own.and_then(|leaf| place_of(leaf)) {
            *places.entry(place).or_default() += *weight as f64;
        }
    }
    Ok(places)
}

/// The place that a frame is: `file.lua:7` is a line, `name@file.lua:5_[j]` a function.
pub fn place_of(frame: &str) -> Option<Place> {
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
        let calls = |function, grown, bytes| Calls { function, calls: 10.0, grown, bytes };
        let work = Work {
            // Two lines of one function, and one that makes strings.
            lines: [(7, calls(5, 0.0, Some(40.0))), (8, calls(5, 0.0, None)), (20, calls(19, 250.0, Some(100.0)))]
                .into(),
            ..Work::default()
        };
        let seen =
            [(Place::Line(7), 100.0), (Place::Function(5), 300.0), (Place::Line(8), 50.0), (Place::Line(20), 3000.0)];
        let counts = seen.map(|(place, _)| (place, 20.0));
        let table = StringTable { mask: 0, slot: 8.0 };
        let truth = Truth::from(&work, table, &seen.into(), &counts.into()).unwrap();
        let bytes: Vec<_> = truth.costs.iter().map(|(place, cost)| (*place, cost.line, cost.bytes)).collect();
        let expected = [
            (Place::Line(7), 7, 10.0),
            (Place::Line(8), 8, 5.0),
            (Place::Line(20), 20, 100.0),
            (Place::Function(5), 7, 30.0),
        ];
        assert_eq!((bytes, truth.disagreement), (expected.to_vec(), 0.0));
    }
}
