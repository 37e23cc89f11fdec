//! Sums over finished recordings of a session. A session with many processes keeps these instead of each summary.

use std::collections::BTreeMap;

use crate::recording::Summaries;

/// Sums over finished recordings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// The number of finished recordings.
    pub processes: u64,
    /// How many of them ended because of an error.
    pub failed: u64,
    /// The number of their CPU samples.
    pub samples: u64,
    /// Samples that never arrived, by reason.
    pub lost: BTreeMap<&'static str, u64>,
}

impl Totals {
    /// Adds a process; `summaries` is [`None`] if its recording failed.
    pub(super) fn add(&mut self, summaries: Option<&Summaries>) {
        self.processes += 1;
        let Some(summaries) = summaries else {
            self.failed += 1;
            return;
        };
        if let Some(cpu) = summaries.cpu() {
            self.samples += cpu.tally.samples;
        }
        self.lose(summaries.lost_samples());
    }

    /// Adds samples that never arrived.
    pub(super) fn lose(&mut self, lost: &[(&'static str, u64)]) {
        for (reason, count) in lost {
            *self.lost.entry(reason).or_default() += count;
        }
    }
}
