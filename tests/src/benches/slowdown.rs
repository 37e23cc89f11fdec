//! How much slower a program is with lj-trace than without, from blocks of both in turns in one run.

use std::fmt;

use super::work::{Spent, Work};

/// Shares of time that are lost, one for each block with lj-trace.
#[derive(Clone, Debug, Default)]
pub struct Losses(Vec<f64>);

impl Losses {
    /// From the blocks of a run: one without, one with, and so on, ended by one without. `clock` says which time it is about.
    pub fn of(blocks: &[Work], clock: fn(&Spent) -> f64) -> Self {
        let mut losses = Self::default();
        blocks.windows(3).step_by(2).for_each(|blocks| losses.add(blocks, clock));
        losses
    }

    /// Adds what the second of three blocks has lost against the first and the third.
    pub fn add(&mut self, blocks: &[Work], clock: fn(&Spent) -> f64) {
        if let [before, with, after] = blocks {
            self.0.extend(loss(with, [before, after], clock));
        }
    }

    /// The same by the time in the kernel alone: all that probes and samples do is done there, and what else the machine does
    /// makes no difference.
    pub fn in_kernel(blocks: &[Work]) -> Self {
        let losses = blocks.windows(3).step_by(2).filter_map(|blocks| match blocks {
            [before, with, after] => Some(with.in_kernel - (before.in_kernel + after.in_kernel) / 2.0),
            _ => None,
        });
        Self(losses.collect())
    }

    /// Whether there was no block.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Their mean.
    pub fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / self.0.len().max(1) as f64
    }

    /// By how much the mean may be off, in 19 of 20 cases.
    pub fn error(&self) -> f64 {
        let count = self.0.len() as f64;
        student(count - 1.0) * (variance(&self.0) / count).sqrt()
    }

    /// Their mean without the lowest and the highest tenth, and by how much that may be off in 19 of 20 cases (Tukey and
    /// McLaughlin 1963). What else happens on a machine makes a few blocks much slower, or those beside them: that is most of
    /// the error of the mean, where what is to be seen is a shift of all blocks, far smaller than their spread.
    pub fn trimmed(&self) -> (f64, f64) {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let cut = sorted.len() / 10;
        let kept = &sorted[cut..sorted.len() - cut];
        let (Some(&low), Some(&high)) = (kept.first(), kept.last()) else { return (0.0, f64::INFINITY) };
        let mean = kept.iter().sum::<f64>() / kept.len() as f64;
        // Their error is that of all blocks, where those left out are as the last ones that are not.
        let (all, rest) = (sorted.len() as f64, kept.len() as f64);
        let spread: Vec<f64> = sorted.iter().map(|loss| loss.clamp(low, high)).collect();
        (mean, student(rest - 1.0) * (variance(&spread) / all).sqrt() * all / rest)
    }
}

/// Infinite if one value tells no spread.
fn variance(values: &[f64]) -> f64 {
    if values.len() < 2 {
        return f64::INFINITY;
    }
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0)
}

/// The mean and its error, in percent.
impl fmt::Display for Losses {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = out.precision().unwrap_or(1);
        match self.0.len() {
            0 => out.write_str("-"),
            1 => write!(out, "{:.digits$}%", self.mean() * 100.0),
            _ => write!(out, "{:.digits$}% ±{:.digits$}", self.mean() * 100.0, self.error() * 100.0),
        }
    }
}

/// The share of its time that a block has lost, by the work that it has done and what that took before and after it.
///
/// It is taken for each kind of turns on its own: a program that changes what it does at certain times does less of what
/// is slowed most.
fn loss(with: &Work, without: [&Work; 2], clock: fn(&Spent) -> f64) -> Option<f64> {
    let (mut took, mut bare) = (0.0, 0.0);
    for (kind, spent) in &with.kinds {
        let others = || without.iter().filter_map(|work| work.kinds.get(kind));
        let (time, turns) = others().fold((0.0, 0.0), |sum, other| (sum.0 + clock(other), sum.1 + other.turns));
        if turns > 0.0 {
            took += clock(spent);
            bare += spent.turns * time / turns;
        }
    }
    (took > 0.0).then(|| 1.0 - bare / took)
}

/// The 97.5% quantile of Student's t distribution, by the expansion of Cornish and Fisher (Abramowitz and Stegun 26.7.5).
fn student(freedom: f64) -> f64 {
    let z: f64 = 1.959_964;
    z + (z.powi(3) + z) / (4.0 * freedom)
        + (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / (96.0 * freedom.powi(2))
        + (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / (384.0 * freedom.powi(3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(kinds: &[(&str, f64, f64)]) -> Work {
        let spent = |&(kind, turns, cpu): &(&str, f64, f64)| (kind.to_owned(), Spent { turns, cpu, wall: cpu });
        Work { kinds: kinds.iter().map(spent).collect(), ..Work::default() }
    }

    #[test]
    fn drift_is_no_loss() {
        let rates = [100.0, 95.0, 90.0, 85.0, 80.0];
        let blocks = rates.map(|turns| block(&[("a", turns, 1.0)]));
        let losses = Losses::of(&blocks, |spent| spent.cpu);
        assert_eq!(losses.0.len(), 2);
        assert!(losses.mean().abs() < 1e-9, "{losses:?}");
    }

    #[test]
    fn each_kind_is_compared_with_itself() {
        // In the same time, less of what is slowed: half the turns of one kind, all of the other.
        let without = block(&[("fast", 1000.0, 1.0), ("slow", 10.0, 1.0)]);
        let with = block(&[("fast", 900.0, 1.0), ("slow", 10.0, 1.0)]);
        let losses = Losses::of(&[without.clone(), with, without], |spent| spent.cpu);
        assert!((losses.mean() - 0.05).abs() < 1e-9, "{losses:?}");
        assert_eq!(losses.error(), f64::INFINITY, "one block tells no spread");
        assert_eq!(losses.to_string(), "5.0%");
        assert_eq!(Losses::of(&[], |spent| spent.cpu).to_string(), "-");
    }

    #[test]
    fn a_few_disturbed_blocks_do_not_move_the_trimmed_mean() {
        // 1% is lost, and up to 1% more or less at random; one block in 20 lost half of its time to something else.
        let loss = |index: u32| match index % 20 {
            0 => 0.5,
            _ => 0.01 + (f64::from(index * 7919 % 1000) / 1000.0 - 0.5) / 50.0,
        };
        let losses = Losses((0..2000).map(loss).collect());
        let (mean, error) = losses.trimmed();
        // The tenths are not alike any more: the highest one begins at what was the 95th of a hundred.
        assert!((mean - 0.01).abs() < 0.001 && error < 0.001, "{mean} ±{error}");
        assert!(losses.mean() > 0.03 && losses.error() > 0.004, "{losses}");
        let (all, of_all) = Losses(vec![0.01, 0.03]).trimmed();
        assert_eq!((all, of_all.is_finite()), (0.02, true), "of a few all are kept");
        assert_eq!(Losses(vec![0.01]).trimmed().1, f64::INFINITY);
    }

    #[test]
    fn quantiles_are_those_of_tables() {
        for (freedom, quantile) in [(3.0, 3.182), (5.0, 2.571), (7.0, 2.365), (20.0, 2.086)] {
            let approximation = student(freedom);
            assert!((approximation - quantile).abs() < 0.03, "{freedom}: {approximation}");
        }
    }
}
