//! Decides when the ring buffers are polled.
//!
//! Where lj-trace has to run on a CPU of the target, its own work must meet as many ticks of the sampler as it takes time,
//! or the target gets more samples than CPU time. Work begins after a sample, that is after a tick. If it is always over
//! before the next tick, as with few ticks and frequent polls, no tick ever meets it: with 8 ms of work for each sample at
//! 15 Hz, on the same CPU, a program got 11% too many samples. So polls follow the ticks, each at a random place between
//! two of them: work then meets the next tick as often as its length says, and each poll has as many samples as the others.
//! Above 100 Hz several ticks come between two polls, so nearly all that is needed happens by itself, and polls keep their
//! even pace: with 2 ms of work for each sample at 120 Hz, there are 2% too many.

use std::ops::RangeInclusive;
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

/// The times between two ticks that polls follow. If it is shorter, polls would be later, and what they read sooner gone; if it
/// is longer, lj-trace needs next to no time for its samples, but has other work: new processes, the display.
const FOLLOWED: RangeInclusive<Duration> = SHORTEST..=Duration::from_millis(100);

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

/// Moves the next tick to `interval` from now, if that is not the shortest interval.
pub fn relax(ticks: &mut Interval, interval: Duration) {
    if interval != SHORTEST {
        ticks.reset_after(interval);
    }
}

/// The interval to the next poll of several recordings: one alone is polled when it wants, but the earliest of many would
/// nearly always be now.
pub fn earliest(intervals: impl IntoIterator<Item = Duration>) -> Option<Duration> {
    let mut intervals = intervals.into_iter();
    let first = intervals.next()?;
    Some(intervals.min().map_or(first, |others| first.min(others).max(SHORTEST)))
}

/// Decides when the next look is due.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PollInterval {
    /// The interval while lj-trace reads everything in time.
    relaxed: Duration,
    /// Until when the shortest interval applies.
    hurry_until: Instant,
    /// When the sampler has ticked last, as far as samples tell.
    ticked: Instant,
    /// Where the next poll is between two ticks, from 0 to 1.
    place: f64,
}

impl PollInterval {
    /// The interval for samples at `rate` Hz in each thread; [`None`] if allocations are recorded, too.
    pub fn new(rate: Option<u32>, now: Instant) -> Self {
        let relaxed = rate.map_or(SHORTEST, |rate| relaxed(rate, LONGEST));
        Self { relaxed, hurry_until: now + HURRY, ticked: now, place: 0.0 }
    }

    /// The same for one process of a whole host. Such a recording is long, so it does not begin with the shortest interval.
    pub fn of_host(rate: u32, now: Instant) -> Self {
        Self { relaxed: relaxed(rate, LONGEST_OF_HOST), hurry_until: now, ticked: now, place: 0.0 }
    }

    /// The same for the allocations of one process of a whole host, which come in windows.
    pub fn of_windows(now: Instant) -> Self {
        Self { relaxed: LONGEST, hurry_until: now, ticked: now, place: 0.0 }
    }

    /// Notes that something in a sample was gone before lj-trace could read it.
    pub fn was_late(&mut self, now: Instant) {
        self.hurry_until = now + HURRY;
    }

    /// A poll is over; `ticked` is the time of its newest sample, if it had any.
    pub fn was_polled(&mut self, ticked: Option<Instant>) {
        self.ticked = ticked.unwrap_or(self.ticked);
        self.place = fastrand::f64();
    }

    /// How long after `now` the next poll is due. If CPUs are sampled, one tick each `tick`, and polls follow the ticks, it
    /// is a whole number of ticks on average, so it may be shorter than the shortest interval.
    pub fn interval(&self, now: Instant, tick: Option<Duration>) -> Duration {
        let least = if now < self.hurry_until { SHORTEST } else { self.relaxed };
        let Some(tick) = tick.filter(|tick| FOLLOWED.contains(tick)) else { return least };
        let tick = tick.as_nanos();
        let until_tick = tick - now.saturating_duration_since(self.ticked).as_nanos() % tick;
        let between = (tick as f64 * self.place) as u128;
        let wait = until_tick + between + (least.as_nanos().div_ceil(tick) - 1) * tick;
        Duration::from_nanos(wait.try_into().unwrap_or(u64::MAX))
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
        assert_eq!(poll_interval.interval(began, None), SHORTEST, "short recordings miss as little as they can");
        assert_eq!(poll_interval.interval(began + 11 * second, None), LONGEST);
        poll_interval.was_late(began + 20 * second);
        assert_eq!(poll_interval.interval(began + 29 * second, None), SHORTEST);
        assert_eq!(poll_interval.interval(began + 31 * second, None), LONGEST);
    }

    #[test]
    fn many_samples_and_allocations_cannot() {
        let later = Instant::now() + 2 * HURRY;
        for (rate, milliseconds) in [(Some(1), 40), (Some(250), 16), (Some(1000), 10), (Some(0), 10), (None, 10)] {
            let interval = PollInterval::new(rate, Instant::now()).interval(later, None);
            assert_eq!(interval, Duration::from_millis(milliseconds), "{rate:?}");
        }
    }

    #[test]
    fn many_recordings_are_not_polled_all_the_time() {
        let milliseconds =
            |numbers: &[u64]| numbers.iter().map(|&number| Duration::from_millis(number)).collect::<Vec<_>>();
        for (intervals, due) in [(&[1][..], 1), (&[1, 3], 10), (&[30, 20, 40], 20)] {
            assert_eq!(earliest(milliseconds(intervals)), Some(Duration::from_millis(due)), "{intervals:?}");
        }
        assert_eq!(earliest([]), None);
    }

    #[test]
    fn each_poll_has_the_samples_of_as_many_ticks() {
        let mut now = Instant::now();
        for (rate, ticks) in [(99, 1), (50, 1), (31, 1), (10, 1)] {
            let tick = Duration::from_secs(1) / rate;
            let began = now;
            let ticks_until = |now: Instant| (now - began).as_nanos() / tick.as_nanos();
            let mut polls = PollInterval::new(Some(rate), now);
            for poll in 1..1000 {
                polls.was_late(now);
                now += polls.interval(now, Some(tick));
                assert_eq!(ticks_until(now), poll * ticks, "{rate} Hz");
                // Working takes some time, but no tick meets it.
                let next = began + tick * (poll * ticks + 1) as u32;
                now += (next - now).mul_f64(fastrand::f64() / 2.0);
                polls.was_polled(Some(began + tick * (poll * ticks) as u32));
            }
        }
        for rate in [9, 101, 999, 4999] {
            assert_eq!(PollInterval::new(Some(rate), now).interval(now, Some(Duration::from_secs(1) / rate)), SHORTEST);
        }
    }

    /// One CPU, which lj-trace takes from the target for as long as a sample needs.
    #[test]
    fn work_meets_as_many_ticks_as_it_takes_time() {
        const SAMPLES: u32 = 20_000;
        for (rate, share) in [(15, 0.1), (50, 0.4), (31, 0.02)] {
            let tick = Duration::from_secs(1) / rate;
            let work = tick.mul_f64(share);
            let began = Instant::now();
            let (mut now, mut polls) = (began, PollInterval::new(Some(rate), began));
            let (mut next_tick, mut own, mut sampled) = (began + tick, Duration::ZERO, 0);
            while sampled < SAMPLES {
                let due = now + polls.interval(now, Some(tick));
                let (mut samples, mut last) = (0, None);
                while next_tick <= due {
                    (samples, last) = (samples + 1, Some(next_tick));
                    next_tick += tick;
                }
                // Ticks while it works are of lj-trace.
                now = due + work * samples;
                while next_tick <= now {
                    next_tick += tick;
                }
                (own, sampled) = (own + work * samples, sampled + samples);
                polls.was_polled(last);
            }
            let used = now - began - own;
            let expected = used.as_secs_f64() * f64::from(rate);
            let difference = (f64::from(sampled) - expected) / expected;
            // Of the ticks in `SAMPLES`, a binomial number meets the work; five standard deviations.
            let tolerance = 5.0 * (share / f64::from(SAMPLES)).sqrt();
            assert!(difference.abs() < tolerance, "{rate} Hz, {share}: {difference:+.4} of {tolerance:.4}");
        }
    }

    #[test]
    fn a_host_is_looked_at_seldom_until_something_is_missed() {
        let began = Instant::now();
        for (rate, milliseconds) in [(1, 250), (19, 210), (99, 40), (1000, 10)] {
            let mut poll_interval = PollInterval::of_host(rate, began);
            assert_eq!(poll_interval.interval(began, None).as_millis(), milliseconds, "{rate}");
            poll_interval.was_late(began);
            assert_eq!(poll_interval.interval(began, None), SHORTEST);
            assert_eq!(poll_interval.interval(began + HURRY, None).as_millis(), milliseconds, "{rate}");
        }
    }
}
