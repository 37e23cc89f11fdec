//! The shares that a workload measured of itself, held against those of a profile.

use std::fmt;

use crate::chance::{ERRORS, of_percent};
use crate::folded::Folded;
use crate::workload::{TRUTH, Truth};

/// For how long the host of a virtual machine takes a CPU at a time, in seconds, at most.
const TAKEN: f64 = 0.1;

/// A function's share, measured and profiled, in percent.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    /// Its name in the workload.
    pub name: String,
    /// The line it is defined at.
    pub line: u32,
    /// What the workload measured.
    pub measured: f64,
    /// What the profile says.
    pub profiled: f64,
    /// How much they may differ, in percentage points.
    pub tolerance: f64,
}

impl Compared {
    /// How much they differ, in percentage points.
    pub fn difference(&self) -> f64 {
        (self.measured - self.profiled).abs()
    }

    /// Whether they differ by no more than they may.
    pub fn agrees(&self) -> bool {
        self.difference() <= self.tolerance
    }
}

impl fmt::Display for Compared {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, line, measured, profiled, tolerance } = self;
        write!(
            out,
            "{name} ({TRUTH}:{line}): measured {measured:.2}%, profiled {profiled:.2}%, tolerance {tolerance:.2}"
        )
    }
}

/// Compares every function's share. None may be off by more than `limit` percentage points, or by what chance and the
/// measuring explain, if that is less. On top of that comes the time that the machine's CPUs were taken away, `gone`, in seconds: each
/// time it counts to one function in the one and to none in the other, at random.
///
/// `weight` is what a sample counts as, at most.
pub fn compare(truth: &Truth, folded: &Folded, weight: f64, limit: f64, gone: f64) -> Vec<Compared> {
    let samples = folded.samples();
    let compared = truth.shares.iter().map(|share| {
        let measured = 100.0 * share.seconds / truth.total;
        let profiled = percent(folded.samples_where(|stack| stack.has(TRUTH, share.line)), samples);
        // What chance makes of a share of this many samples, and what the measuring itself costs in the functions that are called
        // most often.
        let chance = of_percent(measured, samples as f64 / weight);
        let part = measured / 100.0;
        let taken = (ERRORS * (part * (1.0 - part) * gone * TAKEN).sqrt()).min(gone);
        let tolerance = (0.3 + chance).min(limit) + 100.0 * taken / truth.total;
        Compared { name: share.name.clone(), line: share.line, measured, profiled, tolerance }
    });
    compared.collect()
}

/// A part of a whole, in percent; of nothing it is 0.
pub fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Share;

    #[test]
    fn tolerates_chance_alone() {
        let share = Share { name: "f".into(), line: 3, seconds: 0.5 };
        let truth = Truth { shares: vec![share], total: 1.0, ..Truth::default() };
        let compare = |inside, outside, weight| {
            let folded = Folded::parse(&format!("_start;f@truth.lua:3 {inside}\n_start {outside}\n")).unwrap();
            compare(&truth, &folded, weight, 100.0, 0.0).remove(0)
        };
        assert!(compare(510, 490, 1.0).agrees());
        assert!(!compare(600, 400, 1.0).agrees());
        // These are ten samples.
        assert!(compare(600, 400, 100.0).agrees());
        assert!(compare(6, 4, 1.0).agrees());
        assert!((compare(600, 400, 1.0).difference() - 10.0).abs() < 1e-9);
    }
}
