//! When looks are, and what they cost.
//!
//! Time is cut into stretches, and each has one look, at a random moment of it: so no rhythm of the program hides from them,
//! and each stands for its stretch. How long a stretch is follows from what the last looks have cost.

use std::time::{Duration, Instant};

/// A look may cost this share of a core.
const SHARE: f64 = 0.007;
/// Further looks cost this part of the first one, at first sight.
const FIRST: f64 = 0.1;
/// A stretch is no longer, whatever looks cost.
const LONGEST: Duration = Duration::from_secs(60);
/// Echoes come so soon after a look at the earliest.
const SOONEST: Duration = Duration::from_millis(4);

/// When looks are.
#[derive(Debug)]
pub struct Pace {
    /// How long a stretch is, if looks cost little.
    usual: Duration,
    /// How long it is.
    stretch: Duration,
    began: Instant,
    /// When the look of this stretch is due; [`None`] once it was.
    due: Option<Instant>,
    /// When a second look at some of the coroutines is due, which tells short waits.
    echo: Option<Instant>,
    /// CPU time of a look, in seconds, averaged over the last ones.
    cost: f64,
    /// Whether there was one.
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

    /// When there is something to do.
    pub fn next(&self) -> Instant {
        let end = self.began + self.stretch;
        [self.due, self.echo].into_iter().flatten().fold(end, Instant::min)
    }

    /// Whether the look of this stretch is due.
    pub fn is_due(&self, now: Instant) -> bool {
        self.due.is_some_and(|due| due <= now)
    }

    /// Whether there was none in this stretch so far.
    pub fn has_no_look(&self) -> bool {
        self.due.is_some()
    }

    /// Whether an echo is due; there is none after that.
    pub fn take_echo(&mut self, now: Instant) -> bool {
        self.echo.take_if(|echo| *echo <= now).is_some()
    }

    /// A look has cost so much CPU time.
    pub fn looked(&mut self, cost: Duration, now: Instant) {
        self.due = None;
        let cost = cost.as_secs_f64();
        if self.has_begun {
            self.cost += 0.5 * (cost - self.cost);
        } else {
            // It has met all coroutines for the first time, which takes longer than to meet them again.
            self.cost = cost * FIRST;
            self.has_begun = true;
        }
        // Lags of all lengths, as many short ones as long ones.
        let most = self.stretch.mul_f64(0.5).max(SOONEST);
        let lag = SOONEST.as_secs_f64() * (most.as_secs_f64() / SOONEST.as_secs_f64()).powf(self.rng.f64());
        self.echo = Some(now + Duration::from_secs_f64(lag));
    }

    /// Ends the stretch if it is over, or if that is `forced`: gives how long it was.
    pub fn end(&mut self, now: Instant, forced: bool) -> Option<Duration> {
        let over = now.saturating_duration_since(self.began);
        if over < self.stretch && !forced {
            return None;
        }
        // Whoever comes late, as after a stop of the machine, begins anew.
        let is_late = over > self.stretch * 2 || forced;
        let length = if is_late { over } else { self.stretch };
        self.began += length;
        self.stretch = Duration::from_secs_f64(self.cost / SHARE).clamp(self.usual, LONGEST.max(self.usual));
        self.draw();
        Some(length)
    }

    /// How long stretches are now.
    pub fn stretch(&self) -> Duration {
        self.stretch
    }

    /// Whether they are longer than they are meant to be, since looks cost much.
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
