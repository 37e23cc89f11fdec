//! How much CPU time there was, inside of windows and outside, and what follows from that: what a program allocates in a
//! second of its own time.
//!
//! In a window most of the CPU time is that of the probes, so the program's own is a small difference of large numbers,
//! unless it allocates rarely. But where it frees explicitly nearly all that it allocates, the collector's counters tell
//! next to nothing, and this is what is left.

use crate::exact;
use crate::observation::Window;

/// What the cost of windows is known to.
const COST: f64 = 0.2;

/// CPU time, counted in samples, and what was allocated in it.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuTime {
    /// Samples outside of windows.
    pub outside: f64,
    /// Samples in windows.
    inside: f64,
    /// What the probes took of those, in nanoseconds.
    cost: f64,
    /// Bytes that were allocated in windows, and the squares of those.
    made: f64,
    squares: f64,
    /// How many nanoseconds a sample stands for.
    period: f64,
}

/// An estimate with its error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ByTime {
    value: f64,
    /// The square of its standard deviation, relative to it.
    variance: f64,
}

impl CpuTime {
    /// Adds a window in which there were so many samples.
    pub fn add(&mut self, window: &Window, samples: f64) {
        let made = exact::made(window) as f64;
        self.inside += samples;
        self.cost += window.cost;
        self.made += made;
        self.squares += made * made;
    }

    /// Adds that of other windows.
    pub fn join(&mut self, other: &Self) {
        self.outside += other.outside;
        self.inside += other.inside;
        self.cost += other.cost;
        self.made += other.made;
        self.squares += other.squares;
    }

    /// Says how many nanoseconds a sample stands for.
    pub fn set_period(&mut self, period: f64) {
        self.period = period;
    }

    /// What was allocated outside of windows, if anything is known of that.
    pub fn gross(&self) -> Option<ByTime> {
        if self.period <= 0.0 || self.made <= 0.0 || self.outside <= 0.0 {
            return None;
        }
        let probed = self.cost / self.period;
        let own = self.inside - probed;
        let off = self.inside + (COST * probed).powi(2);
        // What is not known to a half says nothing.
        if own <= 0.0 || off > 0.25 * own * own {
            return None;
        }
        let variance = off / (own * own) + self.squares / (self.made * self.made) + 1.0 / self.outside;
        Some(ByTime { value: self.made * self.outside / own, variance })
    }
}

impl ByTime {
    /// Together with another estimate and the square of its relative deviation: each counts by how well it is known. And what
    /// this one's deviation makes of that.
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
        // 10 KB in 2 ms of its own time, and there were 10 s.
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
