//! The summary at the end of an allocation recording.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use lj_trace_probes::cost::Cost;
use lj_trace_text::{Room, counted};

use super::estimation::Estimation;
use super::events::MemoryTally;
use super::ledger::Ledger;
use super::request_summary::AllocationRequestSummary;
use crate::output::written;
use crate::resolve::UNSEARCHED;

/// The numbers of a finished recording of allocations.
#[derive(Clone, Debug)]
pub struct MemorySummary {
    /// The duration of the recording.
    pub duration: Duration,
    /// The counts of the events, over all VMs.
    pub tally: MemoryTally,
    /// Events that never arrived, by reason.
    pub lost: Vec<(&'static str, u64)>,
    /// What became of every call of the allocators.
    pub ledger: Ledger,
    /// Further counts.
    pub noted: Vec<(&'static str, u64)>,
    /// What the recording has cost the process.
    pub cost: Cost,
    /// The share of each CPU's time that ticks of the light sampler take from all other processes; [`None`] if it has no events on CPUs.
    pub others: Option<f64>,
    /// What was allocated for which requests.
    pub requests: AllocationRequestSummary,
    /// The table of traces, if the user wants it.
    pub traces: Option<String>,
    /// The estimate, if the events come from windows.
    pub estimate: Option<EstimateSummary>,
    /// Who allocates, and who holds, in a sentence each; empty without reports.
    pub answer: Vec<String>,
}

/// The summary of a recording in windows.
#[derive(Clone, Debug)]
pub struct EstimateSummary {
    /// The seconds for which probes have stayed attached, so that all calls were seen.
    stayed: f64,
    /// The share of the target's CPU time that the user has asked for.
    asked: Option<f64>,
    /// Lines that say what the estimate is made from.
    about: Vec<String>,
    /// The largest lines.
    top: String,
}

impl EstimateSummary {
    /// The summary of a finished estimate.
    pub fn new(estimation: &mut Estimation) -> Self {
        /// The number of lines to show.
        const TOP: usize = 10;
        let stayed = estimation.stayed();
        let asked = estimation.budget();
        let profile = estimation.profile();
        Self { stayed, asked, about: profile.summary(), top: profile.top(TOP, Room::of(&std::io::stderr())) }
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        if self.stayed >= 0.1 {
            writeln!(out, "  seen in full       {:.1} s", self.stayed)?;
        }
        self.about.iter().try_for_each(|line| writeln!(out, "  {line}"))?;
        out.push_str(&self.top);
        Ok(())
    }
}

impl MemorySummary {
    /// The summary as text for the user. Losses come first.
    pub fn text(&self, end: &str, files: &[PathBuf]) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(&mut out, end, files);
        out
    }

    fn write(&self, out: &mut String, end: &str, files: &[PathBuf]) -> std::fmt::Result {
        let MemoryTally {
            events,
            allocations,
            allocated,
            reallocations,
            frees,
            freed,
            nameless,
            lost_starts,
            unsearched,
        } = self.tally;
        for (reason, count) in &self.lost {
            writeln!(out, "LOST: {count} {reason}")?;
        }
        // At the end of each window, a call or two has not returned yet.
        if let Some(open) = self.ledger.fault().filter(|_| self.estimate.is_none()) {
            writeln!(out, "NOT ACCOUNTED FOR: {open}")?;
        }
        let counted = counted(events, "allocation event");
        writeln!(out, "{end}: recorded {:.1} s, {counted}", self.duration.as_secs_f64())?;
        let lost: u64 = self.lost.iter().map(|(_, count)| count).sum();
        writeln!(out, "  lost               {lost}")?;
        if self.estimate.is_none() {
            self.ledger.lines().iter().try_for_each(|line| writeln!(out, "  {line}"))?;
        }
        writeln!(out, "  cost to it         {}", self.cost)?;
        if let Some(others) = self.others {
            writeln!(out, "  cost to all others {:.3}% of each CPU", others * 100.0)?;
        }
        if let Some(estimate) = &self.estimate {
            if let Some(asked) = estimate.asked {
                writeln!(out, "  {}", against(asked, self.cost.share))?;
            }
            estimate.write(out)?;
        } else {
            writeln!(out, "  allocations        {allocations}")?;
            writeln!(out, "  reallocations      {reallocations}")?;
            writeln!(out, "  frees              {frees}")?;
            writeln!(out, "  bytes allocated    {allocated}")?;
            writeln!(out, "  bytes freed        {freed}")?;
            writeln!(out, "  growth of the heap {}", i128::from(allocated) - i128::from(freed))?;
        }
        if nameless != 0 {
            writeln!(out, "  [unknown: the name of the function was lost] {nameless}")?;
        }
        if lost_starts != 0 {
            writeln!(out, "  [unknown: the start of the trace was lost] {lost_starts}")?;
        }
        if unsearched != 0 {
            writeln!(out, "  {UNSEARCHED}: {unsearched}")?;
        }
        self.requests.write_counts(events, out)?;
        for (what, count) in &self.noted {
            writeln!(out, "  {what}: {count}")?;
        }
        out.push_str(self.traces.as_deref().unwrap_or_default());
        for line in written(files) {
            writeln!(out, "{line}")?;
        }
        if !self.answer.is_empty() {
            writeln!(out, "\n{}", self.answer.join("\n"))?;
        }
        if self.estimate.is_none() {
            self.requests.write_table(Room::of(&std::io::stderr()), out)?;
        }
        Ok(())
    }
}

/// The share of the target's CPU time that the user has asked for, and the share that was taken.
fn against(asked: f64, taken: Option<f64>) -> String {
    let asked_for = format!("asked for          at most {:.2}%", asked * 100.0);
    match taken {
        Some(taken) if taken > asked => format!("{asked_for}: WARNING: {:.2}% were taken", taken * 100.0),
        _ => asked_for,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_taken_is_held_against_what_was_asked_for() {
        assert_eq!(against(0.05, Some(0.04)), "asked for          at most 5.00%");
        assert!(against(0.05, Some(0.0955)).ends_with("at most 5.00%: WARNING: 9.55% were taken"));
    }
}
