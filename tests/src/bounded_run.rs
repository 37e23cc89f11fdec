//! A memory profile of bounded cost, of a workload that knows what it allocates.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

use crate::chance::ERRORS;
use crate::code;
use crate::tracer::{Outcome, Tracer};
use crate::workload::Workload;

/// The name of the workload that knows which of its lines have allocated how many bytes.
pub const BOUNDED: &str = "bounded.lua";

/// How many times its stated error a figure may be off: that is of two standard errors.
pub const STATED: f64 = ERRORS / 2.0;

/// A figure of a report, and by how much it may be off.
#[derive(Clone, Copy, Debug)]
struct Figure {
    value: f64,
    error: f64,
}

/// What a recorded run has left.
#[derive(Debug)]
pub struct BoundedRun {
    folder: TempDir,
    /// What the workload knows: bytes by line.
    pub truth: BTreeMap<u32, f64>,
    /// What lj-trace said.
    pub outcome: Outcome,
    /// Shares of lines, in percent, from the text report.
    shares: BTreeMap<u32, Figure>,
    /// The share of traces of which no line is certain.
    of_traces: Figure,
    /// The report.
    pub text: String,
}

impl BoundedRun {
    /// Lets [`BOUNDED`] work and records it meanwhile in a mode, with files in `folder`.
    ///
    /// # Errors
    /// If it fails, comes to other results, or keeps a breakpoint.
    pub fn of(workload: &mut Workload, folder: TempDir, mode: &str) -> Result<Self> {
        let pid = workload.pid().to_string();
        let [stream, text] = ["profile.bin", "profile.txt"].map(|name| folder.path().join(name).display().to_string());
        let arguments = ["--pid", &pid, "--mode", mode, "--overhead", "5%", "--output", &stream, "--output", &text];
        let mut tracer = Tracer::start(arguments)?;
        tracer.wait_until_attached()?;
        workload.go()?;
        let said = workload.report()?;
        tracer.signal(libc::SIGINT)?;
        let outcome = tracer.wait()?;
        outcome.expect(0, &["lost               0"]);
        // The program has come to the same results, and runs its own code again.
        ensure!(said.iter().any(|line| line == "right"), "{said:?}");
        let left = code::differences(workload.pid())?;
        ensure!(left.is_empty(), "left behind: {left:?}");
        let text = match mode {
            "all" => folder.path().join("profile.memprof.txt"),
            _ => text.into(),
        };
        let text = std::fs::read_to_string(text)?;
        let truth = said.iter().filter_map(|line| known(line)).collect();
        let (shares, of_traces) = shares(&text);
        Ok(Self { folder, truth, outcome, shares, of_traces, text })
    }

    /// Holds what is told against itself: a verdict comes first, and no figure that is told contradicts another.
    ///
    /// # Errors
    /// If there is no verdict, or a contradiction.
    pub fn check_itself(&self) -> Result<()> {
        let verdict = self.text.lines().nth(1).unwrap_or_default();
        let verdicts = ["ranked with confidence: ", "too wide to rank: record for ", "not ranked: "];
        let is_verdict = verdicts.iter().any(|is| verdict.starts_with(is));
        ensure!(is_verdict, "no verdict in\n{}", self.text);
        ensure!(self.outcome.stderr.contains(verdict), "{}\nhas no {verdict:?}", self.outcome.stderr);
        if self.is_withheld()? {
            ensure!(self.text.contains("total allocated    withheld"), "{}", self.text);
            return Ok(());
        }
        let (gross, net) = (self.told("total allocated")?, self.told("less explicit frees")?);
        // Both are rounded to a tenth of their unit; each says how far it may be off.
        let error = self.error_of("total allocated") + self.error_of("less explicit frees") + 0.05 * gross;
        ensure!(net <= gross + error, "{net} are left of {gross}:\n{}", self.text);
        ensure!(!self.text.contains("rose -"), "{}", self.text);
        Ok(())
    }

    /// By how much a figure of the text may be off, as it says.
    fn error_of(&self, words: &str) -> f64 {
        let line = self.text.lines().find(|line| line.starts_with(words)).unwrap_or_default();
        let Some((_, error)) = line.split_once('±') else { return 0.0 };
        let mut words = error.split_whitespace();
        let number: f64 = words.next().and_then(|number| number.parse().ok()).unwrap_or(0.0);
        number * words.next().map_or(1.0, factor)
    }

    /// The stream.
    pub fn stream(&self) -> PathBuf {
        self.folder.path().join("profile.bin")
    }

    /// Whether its figures contradict each other, so that it told no bytes. Errors are those of 19 cases in 20: of the five runs of a
    /// file of tests, three do that by chance once in a thousand times at most, two once in fifty.
    ///
    /// # Errors
    /// If it is the third one.
    fn is_withheld(&self) -> Result<bool> {
        static WITHHELD: AtomicU32 = AtomicU32::new(0);
        if !self.text.contains("WITHHELD: ") {
            return Ok(false);
        }
        println!("{}", self.text);
        // Each is asked twice: for itself, and for its total.
        let asked = WITHHELD.fetch_add(1, Ordering::Relaxed);
        ensure!(asked < 4, "a third run whose figures contradict each other: {}", self.text);
        Ok(true)
    }

    /// A number of the text report: the first one behind `words`.
    fn told(&self, words: &str) -> Result<f64> {
        let line = self.text.lines().find_map(|line| line.split_once(words));
        let (_, rest) = line.with_context(|| format!("no {words:?} in {}", self.text))?;
        let mut words = rest.split_whitespace();
        let number: f64 = words.next().context("no number")?.trim_end_matches(['%', ',']).parse()?;
        Ok(number * words.next().map_or(1.0, factor))
    }

    /// Holds the shares of all lines against the truth. Gives the largest error, in percentage points.
    ///
    /// # Errors
    /// If one is off by more than may be.
    pub fn check_shares(&self) -> Result<f64> {
        let all: f64 = self.truth.values().sum();
        // Where no window was, nothing is known, and a stated error says nothing either: on a machine with much else to do
        // there are few windows in these seconds.
        let unseen = self.told("still have up to").unwrap_or(0.0);
        if self.text.contains("\nnot ranked") {
            println!("{}", self.text);
            return Ok(0.0);
        }
        let mut largest = 0.0_f64;
        for (line, bytes) in &self.truth {
            let truth = bytes / all * 100.0;
            let seen = self.shares.get(line).copied().unwrap_or(Figure { value: 0.0, error: 0.0 });
            println!("line {line}: {truth:.2}% true, {:.2}% ±{:.2} told, {unseen}% unseen", seen.value, seen.error);
            // Stated errors are those of 19 in 20 cases, two standard errors. The VM's own blocks, and the string table, are no
            // line's. Where it is not certain which line of a trace it was, the trace has it: a line may lack that, and never have
            // more.
            let tolerance = STATED * seen.error + unseen + 3.0;
            let missing = self.of_traces.value + STATED * self.of_traces.error;
            let error = (seen.value - truth).abs();
            let allowed = if seen.value < truth { tolerance + missing } else { tolerance };
            ensure!(error < allowed, "line {line}: {truth} true, {seen:?} in\n{}", self.text);
            largest = largest.max(error);
        }
        Ok(largest)
    }

    /// Holds the total against the truth. Gives what is told of it, as a ratio.
    ///
    /// # Errors
    /// If it is off by more than may be.
    pub fn check_total(&self) -> Result<f64> {
        let all: f64 = self.truth.values().sum();
        if self.is_withheld()? {
            return Ok(1.0);
        }
        // The workload frees nothing itself.
        let told = self.told("less explicit frees")?;
        println!("{all} bytes true, {told} told");
        // What the VM allocates for itself, and the stated error of what was freed, which is estimated from windows.
        let tolerance = (0.05 * all + STATED * self.error_of("less explicit frees")).max(0.15 * all);
        ensure!((told - all).abs() < tolerance, "{all} bytes true, {told} told: {}", self.text);
        Ok(told / all)
    }

    /// The share of CPU time that it has cost, in percent, as it says.
    ///
    /// # Errors
    /// If it says nothing.
    pub fn cost(&self) -> Result<f64> {
        told_cost(&self.outcome.stderr)
    }
}

/// The share of a program's CPU time that a recording has cost it, in percent, as its summary says.
///
/// # Errors
/// If it says nothing.
pub fn told_cost(summary: &str) -> Result<f64> {
    let line = summary.lines().filter_map(|line| line.strip_prefix("  cost to it ")).next_back();
    let (_, rest) = line.and_then(|line| line.split_once(" s, ")).context("the summary does not tell the cost")?;
    Ok(rest.split_once('%').context("no share")?.0.parse()?)
}

/// Bytes of a unit.
fn factor(unit: &str) -> f64 {
    match unit {
        "KiB" => 1024.0,
        "MiB" => 1024.0 * 1024.0,
        "GiB" => 1024.0 * 1024.0 * 1024.0,
        _ => 1.0,
    }
}

/// `line NUMBER BYTES`.
fn known(line: &str) -> Option<(u32, f64)> {
    let (number, bytes) = line.strip_prefix("line ")?.split_once(' ')?;
    Some((number.parse().ok()?, bytes.parse().ok()?))
}

/// The shares in a text report: interpreted and compiled, a line is told twice. And the share of traces whose line is not certain.
fn shares(text: &str) -> (BTreeMap<u32, Figure>, Figure) {
    let mut shares = BTreeMap::<u32, Figure>::new();
    let mut of_traces = Figure { value: 0.0, error: 0.0 };
    let marked = format!("{BOUNDED}:");
    for line in text.lines() {
        let share = |text: &str| text.trim().trim_end_matches('%').parse::<f64>().ok();
        let Some((figures, place)) = line.split_once(&marked) else { continue };
        // The sentence at the beginning says the largest again.
        if figures.ends_with('`') {
            continue;
        }
        let Some(number) = place.split(' ').next().and_then(|number| number.parse().ok()) else { continue };
        let Some((value, rest)) = figures.split_once('%') else { continue };
        let error = rest.trim_start().strip_prefix('±').and_then(|rest| share(rest.split_once('%')?.0));
        let Some(value) = share(value) else { continue };
        let none = Figure { value: 0.0, error: 0.0 };
        let is_trace = place.contains("(TRACE");
        let sum = if is_trace { &mut of_traces } else { shares.entry(number).or_insert(none) };
        sum.value += value;
        sum.error += error.unwrap_or(0.0);
    }
    (shares, of_traces)
}
