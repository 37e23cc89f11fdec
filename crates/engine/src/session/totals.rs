//! Sums over finished recordings of a session. A session with many processes keeps these instead of each summary.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::recording::Summaries;

/// Sums over finished recordings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// The number of processes whose recording has finished.
    pub processes: u64,
    /// How many of them ended because of an error.
    pub failed: u64,
    /// The number of their CPU samples.
    pub samples: u64,
    /// Samples that never arrived, by reason.
    pub lost: BTreeMap<&'static str, u64>,
    /// What samples and memory profiles have cost the processes, in CPU time.
    pub cost: [Duration; 2],
}

impl Totals {
    /// Adds a recording; `summaries` is [`None`] if it failed. A process may have a second one, of its allocations alone, which does not
    /// count as a process.
    pub(super) fn add(&mut self, summaries: Option<&Summaries>, is_second: bool) {
        self.processes += u64::from(!is_second);
        let Some(summaries) = summaries else {
            self.failed += 1;
            return;
        };
        if let Some(cpu) = summaries.cpu() {
            self.samples += cpu.tally.samples;
        }
        self.lose(summaries.lost_samples());
        self.spend(summaries.seconds());
    }

    /// Adds what recording has cost a process, in seconds.
    pub(super) fn spend(&mut self, seconds: [f64; 2]) {
        for (sum, seconds) in self.cost.iter_mut().zip(seconds) {
            *sum += Duration::try_from_secs_f64(seconds).unwrap_or_default();
        }
    }

    /// Adds samples that never arrived.
    pub(super) fn lose(&mut self, lost: &[(&'static str, u64)]) {
        for (reason, count) in lost {
            *self.lost.entry(reason).or_default() += count;
        }
    }
}
