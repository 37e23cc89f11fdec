//! Decides when looks happen, and measures what they cost.
//!
//! Time is divided into stretches. Each has one look, at a random moment: so no rhythm of the program can hide, and each
//! look represents its stretch. The length of a stretch follows from the cost of the last looks.

use std::time::{Duration, Instant};

/// The share of a core that looks may cost.
const SHARE: f64 = 0.007;
/// The assumed cost of later looks, as a share of the first one's cost.
const FIRST: f64 = 0.1;
/// The longest stretch, whatever looks cost.
const LONGEST: Duration = Duration::from_secs(60);
/// The shortest time between a look and its echo.
const SOONEST: Duration = Duration::from_millis(4);

/// Decides when looks happen.
#[derive(Debug)]
pub struct Pace {
    /// The length of a stretch if looks cost little.
    usual: Duration,
    /// The current length of a stretch.
    stretch: Duration,
    began: Instant,
    /// When the look of this stretch is due; [`None`] after the look.
    due: Option<Instant>,
    /// When the echo is due: a second look at some of the coroutines, to detect short waits.
    echo: Option<Instant>,
    /// The CPU time of a look in seconds, averaged over the last ones.
    cost: f64,
    /// Whether there was a look.
    has_begun: bool,
    rng: fastrand::Rng,
}

impl Pace {
    /// The first stretch begins now.
    pub fn new(usual: Duration, now: Instant) -> Self {
        let mut pace = Self {
            usual,
            stretch: usual,
            began: now,
            due: None,
            echo: None,
            cost: 0.0,
            has_begun: false,
            rng: fastrand::Rng::new(),
        };
        pace.draw();
        pace
    }

    fn draw(&mut self) {
        self.due = Some(self.began + self.stretch.mul_f64(self.rng.f64()));
    }

    /// The time at which something is due next.
    pub fn next(&self) -> Instant {
        let end = self.began + self.stretch;
        [self.due, self.echo].into_iter().flatten().fold(end, Instant::min)
    }

    /// Whether the look of this stretch is due.
    pub fn is_due(&self, now: Instant) -> bool {
        self.due.is_some_and(|due| due <= now)
    }

    /// Whether this stretch has had no look so far.
    pub fn has_no_look(&self) -> bool {
        self.due.is_some()
    }

    /// Whether an echo is due. It is due only once.
    pub fn take_echo(&mut self, now: Instant) -> bool {
        self.echo.take_if(|echo| *echo <= now).is_some()
    }

    /// Notes that a look has taken this much CPU time.
    pub fn looked(&mut self, cost: Duration, now: Instant) {
        self.due = None;
        let cost = cost.as_secs_f64();
        if self.has_begun {
            self.cost += 0.5 * (cost - self.cost);
        } else {
            // The first look met all coroutines for the first time, which takes longer than later looks.
            self.cost = cost * FIRST;
            self.has_begun = true;
        }
        // Choose from lags of all lengths, with as many short ones as long ones.
        let most = self.stretch.mul_f64(0.5).max(SOONEST);
        let lag = SOONEST.as_secs_f64() * (most.as_secs_f64() / SOONEST.as_secs_f64()).powf(self.rng.f64());
        self.echo = Some(now + Duration::from_secs_f64(lag));
    }

    /// Ends the stretch if it is over or if `forced`. Returns its length.
    pub fn end(&mut self, now: Instant, forced: bool) -> Option<Duration> {
        let over = now.saturating_duration_since(self.began);
        if over < self.stretch && !forced {
            return None;
        }
        // After a long delay, such as a suspended machine, starts a new stretch.
        let is_late = over > self.stretch * 2 || forced;
        let length = if is_late { over } else { self.stretch };
        self.began += length;
        self.stretch = Duration::from_secs_f64(self.cost / SHARE).clamp(self.usual, LONGEST.max(self.usual));
        self.draw();
        Some(length)
    }

    /// The current length of stretches.
    pub fn stretch(&self) -> Duration {
        self.stretch
    }

    /// Whether stretches are longer than usual because looks cost much.
    pub fn is_slowed(&self) -> bool {
        self.stretch > self.usual.mul_f64(1.05)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn each_stretch_has_one_look_and_stretches_make_up_the_time() {
        let start = Instant::now();
        let mut pace = Pace::new(SECOND, start);
        let (mut now, mut looks, mut time) = (start, 0, Duration::ZERO);
        while now < start + SECOND * 100 {
            now = now.max(pace.next());
            if pace.is_due(now) {
                looks += 1;
                pace.looked(Duration::from_millis(1), now);
            }
            pace.take_echo(now);
            time += pace.end(now, false).unwrap_or_default();
        }
        assert_eq!((looks, time), (100, SECOND * 100));
        assert!(!pace.is_slowed());
    }

    #[test]
    fn looks_that_cost_much_come_less_often() {
        let start = Instant::now();
        let mut pace = Pace::new(SECOND, start);
        let (mut now, mut spent) = (start, Duration::ZERO);
        while now < start + SECOND * 600 {
            now = now.max(pace.next());
            if pace.is_due(now) {
                spent += Duration::from_millis(50);
                pace.looked(Duration::from_millis(50), now);
            }
            pace.take_echo(now);
            pace.end(now, false);
        }
        assert!(pace.is_slowed() && spent < Duration::from_secs(6), "{spent:?}");
    }

    #[test]
    fn what_is_cut_short_is_as_long_as_it_was() {
        let start = Instant::now();
        let mut pace = Pace::new(SECOND, start);
        assert_eq!(pace.end(start + SECOND / 2, false), None);
        assert_eq!(pace.end(start + SECOND / 2, true), Some(SECOND / 2));
        assert_eq!(pace.end(start + SECOND * 9, false), Some(SECOND * 17 / 2), "after a halt");
    }
}
