//! What a reader is to make of an estimate: whether its lines are in the right order.

use std::fmt;
use std::time::Duration;

use super::{Figure, Line};

/// How far the order has to be known: for so many of the largest lines, and the one behind them.
const RANKED: usize = 3;

/// Lines whose shares differ by less than this are told as alike, so the order among them matters to nobody.
const ALIKE: f64 = 0.02;

/// Lines with less of all bytes are not worth the time.
const SMALL: f64 = 0.02;

/// With fewer windows there is no verdict on the order.
const LEAST_WINDOWS: f64 = 12.0;

/// Nobody is asked for more than this.
const LONGEST: Duration = Duration::from_hours(1);

/// Whether the order of the largest lines is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// It is, in 19 of 20 cases for each pair.
    Ranked,
    /// The errors are larger than the differences. They shrink as the root of time: this much more is needed.
    TooWide {
        /// How much longer.
        more: Duration,
    },
}

impl Verdict {
    /// Of lines, the largest first, from a recording of this length with so many windows. None if there is nothing to rank.
    pub fn of(lines: &[Line], recorded: Duration, windows: u64) -> Option<Self> {
        let first = lines.first()?;
        let shares = lines.iter().map(|line| line.share);
        // A single line is compared with nothing.
        let shares: Vec<Figure> = shares.chain([Figure::measured(0.0)]).take(RANKED + 1).collect();
        let factor = shares.windows(2).filter(|pair| pair[0].value >= SMALL.min(first.share.value)).map(|pair| {
            let [above, below] = [pair[0], pair[1]];
            let error = above.error.unwrap_or(0.0).hypot(below.error.unwrap_or(0.0));
            error / (above.value - below.value).max(ALIKE)
        });
        let factor = factor.fold(0.0, f64::max);
        // Of few windows not even the errors are known. A figure that was measured needs none.
        let is_estimated = first.share.error.is_some();
        let few = if is_estimated { (LEAST_WINDOWS / windows.max(1) as f64).sqrt() } else { 0.0 };
        let factor = factor.max(few);
        if factor <= 1.0 {
            return Some(Self::Ranked);
        }
        let more = recorded.as_secs_f64() * (factor * factor - 1.0);
        Some(Self::TooWide { more: Duration::from_secs_f64(more.clamp(1.0, LONGEST.as_secs_f64())) })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ranked => {
                write!(f, "ranked with confidence: the errors are smaller than what sets the first lines apart")
            }
            Self::TooWide { more } if *more >= LONGEST => {
                write!(f, "too wide to rank: an hour more would not be enough; give it a larger --overhead")
            }
            Self::TooWide { more } => write!(f, "too wide to rank: record for {:.0} s more", more.as_secs_f64().ceil()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounded::observation::SourceId;

    fn verdict(shares: &[(f64, f64)]) -> Verdict {
        let line = |&(share, error): &(f64, f64)| {
            let share = Figure::estimated(share, error);
            Line { source: SourceId(0), share, bytes: share, count: share }
        };
        let lines: Vec<Line> = shares.iter().map(line).collect();
        Verdict::of(&lines, Duration::from_secs(10), 100).unwrap()
    }

    #[test]
    fn the_order_is_known_where_errors_are_smaller_than_differences() {
        assert_eq!(verdict(&[(0.6, 0.05), (0.3, 0.05), (0.1, 0.02)]), Verdict::Ranked);
        assert_eq!(verdict(&[(0.35, 0.01), (0.34, 0.01), (0.31, 0.01)]), Verdict::Ranked, "alike, and known to be");
        assert_eq!(verdict(&[(1.0, 0.002)]), Verdict::Ranked);
        // Errors of 30 and 40 points, a difference of 25: twice too wide, so four times as long.
        let wide = verdict(&[(0.5, 0.3), (0.25, 0.4)]);
        let Verdict::TooWide { more } = wide else { panic!("{wide:?}") };
        assert!((more.as_secs_f64() - 30.0).abs() < 0.1, "{wide}");
        assert_eq!(wide.to_string(), "too wide to rank: record for 30 s more");
        assert!(verdict(&[(0.5, 0.9), (0.5, 0.9)]).to_string().ends_with("a larger --overhead"));
    }

    #[test]
    fn small_lines_are_not_waited_for() {
        assert_eq!(verdict(&[(0.97, 0.01), (0.015, 0.2), (0.01, 0.3)]), Verdict::Ranked);
        assert_eq!(Verdict::of(&[], Duration::from_secs(1), 100), None);
        let share = Figure::estimated(1.0, 0.002);
        let line = Line { source: SourceId(0), share, bytes: share, count: share };
        let few = Verdict::of(&[line], Duration::from_secs(1), 4);
        assert_eq!(few, Some(Verdict::TooWide { more: Duration::from_secs(2) }), "four windows tell nothing of errors");
    }
}
