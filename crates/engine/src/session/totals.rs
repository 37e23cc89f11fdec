//! What became of the processes of a session that are over, where there are too many to keep what each of them says.

use std::collections::BTreeMap;

use crate::recording::Summaries;

/// Sums over processes that are recorded no more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// How many there were.
    pub processes: u64,
    /// How many of them ended since something failed.
    pub failed: u64,
    /// CPU samples that were taken of them.
    pub samples: u64,
    /// Samples that never arrived, by reason.
    pub lost: BTreeMap<&'static str, u64>,
}

impl Totals {
    /// Adds a process; [`None`] if its recording has failed.
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
