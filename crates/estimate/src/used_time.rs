//! The CPU time inside and outside of windows, and what follows from it: what a program allocates per second of its own
//! time.
//!
//! In a window, most CPU time is that of the probes. So the program's own time is a small difference of large numbers,
//! unless the program allocates rarely. But if the program frees nearly everything explicitly, the collector's counters say
//! next to nothing, and only this estimate is left.

use crate::exact;
use crate::observation::Window;

/// The relative error of the cost of windows.
const COST: f64 = 0.2;

/// CPU time in samples, and the allocations in it.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuTime {
    /// Samples outside of windows.
    pub outside: f64,
    /// Samples in windows.
    inside: f64,
    /// The part of these that the probes took, in nanoseconds.
    cost: f64,
    /// Bytes allocated in windows, and the sum of their squares.
    made: f64,
    squares: f64,
    /// The nanoseconds that a sample counts for.
    period: f64,
}

/// An estimate with its error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ByTime {
    value: f64,
    /// The square of the relative standard deviation.
    variance: f64,
}

impl CpuTime {
    /// Adds a window with this many samples.
    pub fn add(&mut self, window: &Window, samples: f64) {
        let made = exact::made(window) as f64;
        self.inside += samples;
        self.cost += window.cost;
        self.made += made;
        self.squares += made * made;
    }

    /// Adds the CPU time of other windows.
    pub fn join(&mut self, other: &Self) {
        self.outside += other.outside;
        self.inside += other.inside;
        self.cost += other.cost;
        self.made += other.made;
        self.squares += other.squares;
    }

    /// Sets the nanoseconds that a sample counts for.
    pub fn set_period(&mut self, period: f64) {
        self.period = period;
    }

    /// The bytes allocated outside of windows, if anything is known about them.
    pub fn gross(&self) -> Option<ByTime> {
        if self.period <= 0.0 || self.made <= 0.0 || self.outside <= 0.0 {
            return None;
        }
        let probed = self.cost / self.period;
        let own = self.inside - probed;
        let off = self.inside + (COST * probed).powi(2);
        // An error of more than half the value makes the estimate useless.
        if own <= 0.0 || off > 0.25 * own * own {
            return None;
        }
        let variance = off / (own * own) + self.squares / (self.made * self.made) + 1.0 / self.outside;
        Some(ByTime { value: self.made * self.outside / own, variance })
    }
}

impl ByTime {
    /// Combines this with another estimate, whose relative variance is `variance`. Each counts by its precision. Also
    /// returns what this estimate's deviation contributes to the result.
    pub fn blend(&self, other: f64, variance: f64) -> (f64, f64) {
        let weight = |value: f64, variance: f64| 1.0 / (value * value * variance).max(1.0);
        let (own, others) = (weight(self.value, self.variance), weight(self.value.max(other), variance));
        let part = own / (own + others);
        (self.value * part + other * (1.0 - part), self.value * part * self.variance.sqrt())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::{Made, SourceId};

    fn ran(windows: u32, cost: f64) -> CpuTime {
        let made = vec![Made { source: SourceId(0), bytes: 10_000, count: 1 }];
        let window = Window { made, cost, ..Window::default() };
        let mut ran = CpuTime { outside: 10_000.0, period: 1e6, ..CpuTime::default() };
        (0..windows).for_each(|_| ran.add(&window, 3.0));
        ran
    }

    #[test]
    fn what_is_allocated_in_a_second_of_the_programs_time_is_known() {
        // 10 KB in 2 ms of the program's own time, over 10 s.
        let by_time = ran(400, 1e6).gross().unwrap();
        assert!((by_time.value / 50e6 - 1.0).abs() < 1e-9 && by_time.variance.sqrt() < 0.2, "{by_time:?}");
        assert_eq!(ran(400, 2.7e6).gross(), None, "nearly all of it is the probes' time");
        assert_eq!(ran(0, 1e6).gross(), None);
        assert_eq!(CpuTime { period: 0.0, ..ran(400, 1e6) }.gross(), None);
    }

    #[test]
    fn the_better_estimate_counts_more() {
        let by_time = ByTime { value: 100.0, variance: 0.04 };
        assert!((by_time.blend(110.0, 0.0001).0 - 110.0).abs() < 0.1);
        assert!((by_time.blend(1000.0, 25.0).0 - 100.0).abs() < 0.1);
        let (value, deviation) = by_time.blend(0.0, 4.0);
        assert!((value - 100.0).abs() < 1.1 && (deviation - 20.0).abs() < 1.0, "next to nothing of nothing");
    }
}
