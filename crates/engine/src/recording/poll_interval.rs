//! Decides how often the ring buffers are polled.

use std::time::{Duration, Instant};

use tokio::time::{Interval, MissedTickBehavior};

/// Often enough that a function is named before it can be collected, and that a burst of allocations does not fill the
/// buffer.
pub const SHORTEST: Duration = Duration::from_millis(10);

/// Where samples are few, each look costs lj-trace more than the samples themselves: a tenth of a millisecond, a hundred
/// times a second.
const LONGEST: Duration = Duration::from_millis(40);

/// The same of a whole host, which is recorded all the time: a look costs as much as a sample or two.
pub const LONGEST_OF_HOST: Duration = Duration::from_millis(250);

/// So many samples of a thread are worth waiting for.
const SAMPLES: u32 = 4;

/// How long it keeps to the shortest interval once something was gone before it could be read, and at first.
const HURRY: Duration = Duration::from_secs(10);

/// Ticks at the shortest interval. If a look takes longer than that, the next one still waits for a tick: signals are noticed
/// between them.
pub fn ticks() -> Interval {
    let mut ticks = tokio::time::interval(SHORTEST);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    ticks
}

/// Lets the next tick come `interval` from now, if that is more than the shortest one.
pub fn relax(ticks: &mut Interval, interval: Duration) {
    if interval > SHORTEST {
        ticks.reset_after(interval);
    }
}

/// When to look next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollInterval {
    /// The interval while nothing is lost by it.
    relaxed: Duration,
    /// Until when there is none.
    hurry_until: Instant,
}

impl PollInterval {
    /// For samples at `rate` Hz in each thread; [`None`] if allocations are recorded too.
    pub fn new(rate: Option<u32>, now: Instant) -> Self {
        let relaxed = rate.map_or(SHORTEST, |rate| relaxed(rate, LONGEST));
        Self { relaxed, hurry_until: now + HURRY }
    }

    /// The same for one of the processes of a whole host: it is no short recording.
    pub fn of_host(rate: u32, now: Instant) -> Self {
        Self { relaxed: relaxed(rate, LONGEST_OF_HOST), hurry_until: now }
    }

    /// Something that a sample has hit was gone before it could be read.
    pub fn was_late(&mut self, now: Instant) {
        self.hurry_until = now + HURRY;
    }

    /// How long after the last look the next one should be.
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
