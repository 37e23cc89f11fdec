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

/// How long after `now` recordings that are polled together are polled next: when the first of them wants it. They share
/// the place between two ticks, or one of many would want it at once, all the time.
pub fn earliest(wishes: impl IntoIterator<Item = PollWish>, now: Instant) -> Option<Duration> {
    let wishes: Vec<_> = wishes.into_iter().collect();
    // One sampler ticks for all. Of a process that was idle since, the last tick is far away.
    let ticked = wishes.iter().map(|wish| wish.ticked).max()?;
    let place = fastrand::f64();
    wishes.iter().map(|wish| wish.interval(now.saturating_duration_since(ticked), place)).min()
}

/// When a recording wants to be polled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PollWish {
    /// The shortest interval between two polls.
    least: Duration,
    /// The time between two ticks, if polls follow them.
    tick: Option<Duration>,
    /// When the sampler has ticked last, as far as samples of this recording tell.
    ticked: Instant,
}

impl PollWish {
    /// How long it waits at `place` between two ticks, from 0 to 1, `since` the last tick. If polls follow the ticks, it is a
    /// whole number of ticks on average, so it may be shorter than the shortest interval.
    fn interval(&self, since: Duration, place: f64) -> Duration {
        let Some(tick) = self.tick else { return self.least };
        let tick = tick.as_nanos();
        let until_tick = tick - since.as_nanos() % tick;
        let between = (tick as f64 * place) as u128;
        let wait = until_tick + between + (self.least.as_nanos().div_ceil(tick) - 1) * tick;
        Duration::from_nanos(wait.try_into().unwrap_or(u64::MAX))
    }
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
}

impl PollInterval {
    /// The interval for samples at `rate` Hz in each thread; [`None`] if allocations are recorded, too.
    pub fn new(rate: Option<u32>, now: Instant) -> Self {
        let relaxed = rate.map_or(SHORTEST, |rate| relaxed(rate, LONGEST));
        Self { relaxed, hurry_until: now + HURRY, ticked: now }
    }

    /// The same for one process of a whole host. Such a recording is long, so it does not begin with the shortest interval.
    pub fn of_host(rate: u32, now: Instant) -> Self {
        Self { relaxed: relaxed(rate, LONGEST_OF_HOST), hurry_until: now, ticked: now }
    }

    /// The same for the allocations of one process of a whole host, which come in windows.
    pub fn of_windows(now: Instant) -> Self {
        Self { relaxed: LONGEST, hurry_until: now, ticked: now }
    }

    /// Notes that something in a sample was gone before lj-trace could read it.
    pub fn was_late(&mut self, now: Instant) {
        self.hurry_until = now + HURRY;
    }

    /// The sampler has ticked.
    pub fn has_ticked(&mut self, when: Instant) {
        self.ticked = when;
    }

    /// When the next poll is due. If CPUs are sampled, one tick each `tick`, polls follow the ticks.
    pub fn wish(&self, now: Instant, tick: Option<Duration>) -> PollWish {
        let least = if now < self.hurry_until { SHORTEST } else { self.relaxed };
        PollWish { least, tick: tick.filter(|tick| FOLLOWED.contains(tick)), ticked: self.ticked }
    }
}

fn relaxed(rate: u32, longest: Duration) -> Duration {
    (Duration::from_secs(1) * SAMPLES).checked_div(rate).unwrap_or(SHORTEST).clamp(SHORTEST, longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    impl PollInterval {
        fn interval(&self, now: Instant, tick: Option<Duration>) -> Duration {
            earliest([self.wish(now, tick)], now).expect("there is one")
        }
    }

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
    fn many_idle_recordings_are_polled_as_often_as_one() {
        const POLLS: u32 = 2000;
        assert_eq!(earliest([], Instant::now()), None);
        let began = Instant::now();
        for (rate, polls_a_second) in [(19, 19.0), (50, 25.0), (99, 24.75), (5, 25.0), (999, 100.0)] {
            for recordings in [1, 2, 50, 1000] {
                let tick = Duration::from_secs(1) / rate;
                // They were attached one after another, long ago.
                let all: Vec<_> = (0..recordings)
                    .map(|number| PollInterval::new(Some(rate), began + Duration::from_millis(7) * number))
                    .collect();
                let first = began + HURRY + Duration::from_millis(7) * recordings;
                let mut now = first;
                for _ in 0..POLLS {
                    now += earliest(all.iter().map(|own| own.wish(now, Some(tick))), now).expect("there are some");
                }
                let happened = f64::from(POLLS) / (now - first).as_secs_f64();
                // The first and the last may lack most of a tick.
                let tolerance = 2.0 / f64::from(POLLS);
                assert!((happened / polls_a_second - 1.0).abs() < tolerance, "{recordings} at {rate} Hz: {happened}");
            }
        }
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
                polls.has_ticked(began + tick * (poll * ticks) as u32);
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
                last.into_iter().for_each(|when| polls.has_ticked(when));
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
