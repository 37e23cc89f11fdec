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

/// What a recording has counted up to its end.
pub(super) struct SoFar {
    pub samples: u64,
    pub lost: Vec<(&'static str, u64)>,
    pub seconds: [f64; 2],
}

impl Totals {
    /// Adds a recording; `summaries` is [`None`] if it failed, and `so_far` is what it had counted then. A process may have a second one, of its allocations alone, which does not
    /// count as a process.
    pub(super) fn add(&mut self, summaries: Option<&Summaries>, so_far: &SoFar, is_second: bool) {
        self.processes += u64::from(!is_second);
        let Some(summaries) = summaries else {
            self.failed += 1;
            // What was counted stays counted.
            self.samples += so_far.samples;
            self.lose(&so_far.lost);
            self.spend(so_far.seconds);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Else whoever reads the counters would take it for a restart, and count all once more.
    #[test]
    fn what_a_failed_recording_had_counted_stays_counted() {
        let mut totals = Totals::default();
        let so_far = SoFar { samples: 7, lost: vec![("ring full", 2)], seconds: [0.5, 0.25] };
        totals.add(None, &so_far, false);
        totals.add(None, &so_far, true);
        assert_eq!((totals.processes, totals.failed, totals.samples), (1, 2, 14));
        assert_eq!(totals.lost["ring full"], 4);
        assert_eq!(totals.cost, [1000, 500].map(Duration::from_millis));
    }
}
