//! How long waits are, from pairs of looks.
//!
//! A coroutine that a look finds waiting is still in the same wait after a lag `t` with a probability that begins at 1
//! and falls by `t / mean length` at first, whatever the distribution of the lengths: waits end at a rate of one per
//! mean length (renewal theory). So lags that nearly all waits outlast show the mean. Longer lags show less, since one
//! wait may have ended and another one begun.

use std::time::Duration;

/// The number of bins for lags, by powers of two, from a millisecond on.
const BINS: usize = 20;

/// How many ended waits are enough to know a length.
const ENOUGH: f64 = 100.0;

/// Pairs of looks, by their lags.
#[derive(Clone, Debug, Default)]
pub struct Pairs {
    bins: [Bin; BINS],
}

#[derive(Clone, Copy, Debug, Default)]
struct Bin {
    same: u32,
    gone: u32,
    /// The summed lags of the pairs in the same wait, and of the other pairs, in seconds.
    same_time: f32,
    gone_time: f32,
}

/// The mean length of waits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Length {
    /// The mean, in seconds.
    pub seconds: f64,
    /// Its standard error, as a fraction of the mean.
    pub error: f64,
    /// Whether no wait was seen to end: then the mean is at least this.
    pub is_least: bool,
    /// Whether no wait outlasted a lag: then the mean is about this or less.
    pub is_most: bool,
}

impl Pairs {
    /// Adds pairs with this lag: `same` pairs were in the same wait, `gone` pairs were not.
    pub fn add(&mut self, lag: Duration, same: u64, gone: u64) {
        let seconds = lag.as_secs_f64();
        let bin = ((seconds * 1e3).max(1.0).log2() as usize).min(BINS - 1);
        let bin = &mut self.bins[bin];
        let count = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        bin.same = bin.same.saturating_add(count(same));
        bin.gone = bin.gone.saturating_add(count(gone));
        bin.same_time += (seconds * same as f64) as f32;
        bin.gone_time += (seconds * gone as f64) as f32;
    }

    /// Adds the pairs of another stack.
    pub fn merge(&mut self, other: &Self) {
        for (bin, other) in self.bins.iter_mut().zip(&other.bins) {
            bin.same = bin.same.saturating_add(other.same);
            bin.gone = bin.gone.saturating_add(other.gone);
            bin.same_time += other.same_time;
            bin.gone_time += other.gone_time;
        }
    }

    /// The mean length of a wait; [`None`] if there are no pairs.
    pub fn length(&self) -> Option<Length> {
        let (mut bins, mut same, mut gone) = (Vec::new(), 0.0, 0.0);
        for bin in self.bins.iter().filter(|bin| bin.same + bin.gone > 0) {
            // Longer lags show less: what happened in between is unknown if the second wait is another one.
            if gone >= ENOUGH {
                break;
            }
            let (own_same, own_gone) = (f64::from(bin.same), f64::from(bin.gone));
            let lag = f64::from(bin.same_time + bin.gone_time) / (own_same + own_gone);
            bins.push((own_same, own_gone, lag));
            same += own_same;
            gone += own_gone;
        }
        if bins.is_empty() {
            return None;
        }
        let (is_least, is_most) = (gone == 0.0, same == 0.0);
        let seconds = match (is_least, is_most) {
            (true, _) => bins.iter().map(|(same, _, lag)| same * lag).sum(),
            (_, true) => bins.first().map_or(0.0, |(_, _, lag)| *lag),
            _ => most_likely(&bins),
        };
        Some(Length { seconds, error: 1.0 / gone.max(1.0).sqrt(), is_least, is_most })
    }
}

/// The mean length that makes the observations most likely, if waits end at a constant rate. Each bin has the number of
/// pairs in the same wait, the number of other pairs, and the lag.
fn most_likely(bins: &[(f64, f64, f64)]) -> f64 {
    // The derivative of the log-likelihood by the rate, which falls as the rate grows.
    let slope = |rate: f64| -> f64 {
        let of = |&(same, gone, lag): &(f64, f64, f64)| gone * lag / ((rate * lag).exp_m1()).max(1e-12) - same * lag;
        bins.iter().map(of).sum()
    };
    let (mut low, mut high) = (1e-9_f64, 1e6_f64);
    for _ in 0..200 {
        let middle = (low * high).sqrt();
        if slope(middle) > 0.0 {
            low = middle;
        } else {
            high = middle;
        }
    }
    1.0 / (low * high).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pairs of looks at waits that follow each other without a gap. `draw` gives their lengths; lags are up to twice
    /// `stretch`.
    fn simulated(stretch: f64, looks: usize, mut draw: impl FnMut(&mut fastrand::Rng) -> f64) -> Length {
        let mut rng = fastrand::Rng::with_seed(7);
        let mut pairs = Pairs::default();
        for _ in 0..50 {
            let (mut end, mut number) = (draw(&mut rng) * rng.f64(), 0);
            let mut last: Option<(f64, u64)> = None;
            for look in 0..looks {
                let now = (look as f64 + rng.f64()) * stretch;
                while end < now {
                    end += draw(&mut rng);
                    number += 1;
                }
                if let Some((before, wait)) = last {
                    let is_same = wait == number;
                    pairs.add(Duration::from_secs_f64(now - before), u64::from(is_same), u64::from(!is_same));
                }
                last = Some((now, number));
            }
        }
        pairs.length().unwrap()
    }

    #[test]
    fn the_mean_is_found_for_waits_of_many_lengths() {
        for mean in [0.3, 0.7, 1.0, 3.0, 10.0] {
            let even = simulated(1.0, 200, |_| mean);
            let random = simulated(1.0, 200, |rng| -mean * (1.0 - rng.f64()).ln());
            for (what, length) in [("even", even), ("random", random)] {
                let ratio = length.seconds / mean;
                assert!((0.65..1.5).contains(&ratio), "{what} waits of {mean} s: {length:?}");
            }
        }
    }

    #[test]
    fn what_never_ends_or_never_lasts_is_told() {
        let mut pairs = Pairs::default();
        assert_eq!(pairs.length(), None);
        pairs.add(Duration::from_secs(1), 10, 0);
        let length = pairs.length().unwrap();
        assert!(length.is_least && !length.is_most && (length.seconds - 10.0).abs() < 1e-6);
        let mut pairs = Pairs::default();
        pairs.add(Duration::from_millis(500), 0, 10);
        assert!(pairs.length().unwrap().is_most && !pairs.length().unwrap().is_least);
    }
}
