//! Decides how often the ring buffers are polled.

use std::time::{Duration, Instant};

use tokio::time::{Interval, MissedTickBehavior};

/// The shortest interval. It is short enough to name a function before it can be collected, and to empty the buffer before
/// a burst of allocations fills it.
pub const SHORTEST: Duration = Duration::from_millis(10);

/// The longest interval, for a process with few samples: there, a look costs lj-trace more than the samples themselves. A
/// look takes a tenth of a millisecond, and would come a hundred times a second.
const LONGEST: Duration = Duration::from_millis(40);

/// The longest interval when a whole host is recorded all the time: a look costs as much as a sample or two.
pub const LONGEST_OF_HOST: Duration = Duration::from_millis(250);

/// The number of samples per thread that a look may wait for.
const SAMPLES: u32 = 4;

/// How long the interval stays the shortest at the beginning, and after something was gone before lj-trace could read it.
const HURRY: Duration = Duration::from_secs(10);

/// Ticks at the shortest interval. If a look takes longer than the interval, the next look still waits for a tick: lj-trace
/// handles signals between ticks.
pub fn ticks() -> Interval {
    let mut ticks = tokio::time::interval(SHORTEST);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    ticks
}

/// Delays the next tick to `interval` from now, if that is more than the shortest interval.
pub fn relax(ticks: &mut Interval, interval: Duration) {
    if interval > SHORTEST {
        ticks.reset_after(interval);
    }
}

/// Decides when the next look is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollInterval {
    /// The interval while lj-trace reads everything in time.
    relaxed: Duration,
    /// Until when the shortest interval applies.
    hurry_until: Instant,
}

impl PollInterval {
    /// The interval for samples at `rate` Hz in each thread; [`None`] if allocations are recorded, too.
    pub fn new(rate: Option<u32>, now: Instant) -> Self {
        let relaxed = rate.map_or(SHORTEST, |rate| relaxed(rate, LONGEST));
        Self { relaxed, hurry_until: now + HURRY }
    }

    /// The same for one process of a whole host. Such a recording is long, so it does not begin with the shortest interval.
    pub fn of_host(rate: u32, now: Instant) -> Self {
        Self { relaxed: relaxed(rate, LONGEST_OF_HOST), hurry_until: now }
    }

    /// The same for the allocations of one process of a whole host, which come in windows.
    pub fn of_windows(now: Instant) -> Self {
        Self { relaxed: LONGEST, hurry_until: now }
    }

    /// Notes that something in a sample was gone before lj-trace could read it.
    pub fn was_late(&mut self, now: Instant) {
        self.hurry_until = now + HURRY;
    }

    /// How long after the last look the next one is due.
    pub fn interval(&self, now: Instant) -> Duration {
        if now < self.hurry_until { SHORTEST } else { self.relaxed }
    }
}

fn relaxed(rate: u32, longest: Duration) -> Duration {
    (Duration::from_secs(1) * SAMPLES).checked_div(rate).unwrap_or(SHORTEST).clamp(SHORTEST, longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_samples_can_wait_unless_something_was_missed() {
        let began = Instant::now();
        let second = Duration::from_secs(1);
        let mut poll_interval = PollInterval::new(Some(99), began);
        assert_eq!(poll_interval.interval(began), SHORTEST, "short recordings miss as little as they can");
        assert_eq!(poll_interval.interval(began + 11 * second), LONGEST);
        poll_interval.was_late(began + 20 * second);
        assert_eq!(poll_interval.interval(began + 29 * second), SHORTEST);
        assert_eq!(poll_interval.interval(began + 31 * second), LONGEST);
    }

    #[test]
    fn many_samples_and_allocations_cannot() {
        let later = Instant::now() + 2 * HURRY;
        for (rate, milliseconds) in [(Some(1), 40), (Some(250), 16), (Some(1000), 10), (Some(0), 10), (None, 10)] {
            let interval = PollInterval::new(rate, Instant::now()).interval(later);
            assert_eq!(interval, Duration::from_millis(milliseconds), "{rate:?}");
        }
    }
    #[test]
    fn a_host_is_looked_at_seldom_until_something_is_missed() {
        let began = Instant::now();
        for (rate, milliseconds) in [(1, 250), (19, 210), (99, 40), (1000, 10)] {
            let mut poll_interval = PollInterval::of_host(rate, began);
            assert_eq!(poll_interval.interval(began).as_millis(), milliseconds, "{rate}");
            poll_interval.was_late(began);
            assert_eq!(poll_interval.interval(began), SHORTEST);
            assert_eq!(poll_interval.interval(began + HURRY).as_millis(), milliseconds, "{rate}");
        }
    }
}
