//! How a heap grows.

/// The size of a heap relative to the beginning of the recording, after equal numbers of events. A stream has no times,
/// so events are the clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Growth {
    /// The size at the end of each step.
    sizes: Vec<i64>,
    /// The number of events in a step; 0 before the first event.
    step: u64,
    /// The number of events in the current step.
    events: u64,
    now: i64,
}

/// How many steps are kept: at twice as many, steps become twice as long.
const STEPS: usize = 64;

impl Growth {
    /// Adds an event, which allocated `new` bytes and freed `old` bytes.
    #[inline]
    pub fn add(&mut self, new: u64, old: u64) {
        let change = new.wrapping_sub(old).cast_signed();
        self.now = self.now.saturating_add(change);
        self.step = self.step.max(1);
        self.events += 1;
        if self.events == self.step {
            self.end_step();
        }
    }

    #[cold]
    fn end_step(&mut self) {
        self.events = 0;
        self.sizes.push(self.now);
        if self.sizes.len() == 2 * STEPS {
            let every_second = self.sizes.iter().skip(1).step_by(2).copied();
            self.sizes = every_second.collect();
            self.step *= 2;
        }
    }

    /// The size at the end.
    pub fn total(&self) -> i64 {
        self.now
    }

    /// The size after each of `count` equal parts of the events, or of fewer parts if there are fewer events.
    pub fn parts(&self, count: usize) -> Vec<i64> {
        let mut sizes = self.sizes.clone();
        if self.events > 0 {
            sizes.push(self.now);
        }
        let count = count.min(sizes.len());
        (1..=count).map(|part| sizes[part * sizes.len() / count - 1]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_run_is_a_few_steps() {
        let mut growth = Growth::default();
        (0..1_000_000).for_each(|_| growth.add(3, 1));
        assert_eq!(growth.total(), 2_000_000);
        assert!(growth.sizes.len() < 2 * STEPS);
        let parts = growth.parts(4);
        assert_eq!(parts.len(), 4);
        assert_eq!(parts[3], 2_000_000);
        for (part, size) in (1..).zip(parts) {
            assert!((size - part * 500_000).abs() < 40_000, "{part}: {size}");
        }
    }

    #[test]
    fn frees_of_what_was_there_before_shrink_it() {
        let mut growth = Growth::default();
        growth.add(0, 100);
        assert_eq!(growth.parts(5), [-100]);
        assert!(Growth::default().parts(5).is_empty());
    }
}
