//! Whether an estimate is good enough to rank lines, and if not, how much longer to record.

use std::fmt;

use lj_trace_estimate::Figure;

/// Lines with less than this share are not ranked, except the first.
const LEADING: f64 = 0.05;

/// How many lines are ranked at most.
const TOP: usize = 5;

/// Lines whose shares differ by less may be in either order: that does not change what to do about them.
const CLOSE: f64 = 0.02;

/// With fewer windows than this, not even the errors are known.
const LEAST_WINDOWS: f64 = 12.0;

/// The longest recording to suggest, in seconds.
const LONGEST: f64 = 3600.0;

/// What an estimate is good for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum EstimateVerdict {
    /// The largest lines really are the largest, in this order, or within 2 points of it.
    Ranked,
    /// The errors are so large that other lines may be the largest.
    TooWide {
        /// How many more seconds to record; [`None`] if that is unknown or more than an hour.
        more: Option<f64>,
        /// The largest error among the leading shares.
        error: f64,
    },
}

impl EstimateVerdict {
    /// The verdict on `shares`, largest first, from this many windows and seconds. A line that was not seen may have
    /// the share `unseen`. [`None`] if there is nothing to rank.
    ///
    /// Errors fall with the square root of the number of windows, which is proportional to the time; the unseen share
    /// falls with that number itself.
    pub fn of(shares: &[Figure], unseen: f64, (windows, recorded): (u64, f64)) -> Option<Self> {
        let first = shares.first()?;
        let error = |share: &Figure| share.error.unwrap_or(0.0);
        let leading =
            shares.iter().take(TOP).enumerate().take_while(|(rank, share)| *rank == 0 || share.value >= LEADING);
        let (mut times, mut largest) = (unseen / first.value.max(CLOSE), 0.0_f64);
        if first.error.is_some() {
            times = times.max(LEAST_WINDOWS / windows.max(1) as f64);
        }
        for (rank, share) in leading {
            largest = largest.max(error(share));
            let (next, of_next) = shares.get(rank + 1).map_or((0.0, 0.0), |next| (next.value, error(next)));
            let both = error(share).hypot(of_next);
            times = times.max((both / (share.value - next).max(CLOSE)).powi(2));
        }
        if times <= 1.0 {
            return Some(Self::Ranked);
        }
        let more = recorded * (times - 1.0);
        let more = (more > 0.0 && more <= LONGEST).then(|| rounded_up(more));
        Some(Self::TooWide { more, error: largest })
    }
}

/// Rounds up to a number that is easy to remember.
fn rounded_up(seconds: f64) -> f64 {
    let step = match seconds {
        ..10.0 => 1.0,
        10.0..60.0 => 5.0,
        60.0..600.0 => 30.0,
        _ => 300.0,
    };
    (seconds / step).ceil() * step
}

impl fmt::Display for EstimateVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Ranked => {
                let close = CLOSE * 100.0;
                write!(f, "ranked with confidence: the largest lines are in order, or within {close:.0} points of it")
            }
            Self::TooWide { more, error } => {
                match more {
                    Some(seconds) => write!(f, "too wide to rank: record for {seconds:.0} s more")?,
                    None => write!(f, "too wide to rank: record for much longer, or with a larger --overhead")?,
                }
                write!(f, " (errors of the largest lines: ±{:.1} points)", error * 100.0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(figures: &[(f64, f64)]) -> Vec<Figure> {
        figures.iter().map(|&(share, error)| Figure::estimated(share, error)).collect()
    }

    #[test]
    fn what_is_far_apart_or_close_together_is_ranked() {
        let of = |figures: &[(f64, f64)]| EstimateVerdict::of(&shares(figures), 0.01, (100, 20.0));
        assert_eq!(of(&[(0.6, 0.05), (0.3, 0.04), (0.1, 0.02)]), Some(EstimateVerdict::Ranked));
        assert_eq!(of(&[(0.5, 0.01), (0.495, 0.01)]), Some(EstimateVerdict::Ranked));
        assert_eq!(of(&[]), None);
        assert_eq!(
            EstimateVerdict::of(&[Figure::measured(0.5), Figure::measured(0.5)], 0.0, (1, 1.0)),
            Some(EstimateVerdict::Ranked)
        );
        let few = EstimateVerdict::of(&shares(&[(1.0, 0.002)]), 0.0, (4, 1.0));
        assert_eq!(
            few,
            Some(EstimateVerdict::TooWide { more: Some(2.0), error: 0.002 }),
            "four windows tell nothing of errors"
        );
    }

    #[test]
    fn what_is_too_wide_says_for_how_long() {
        let told = |figures: &[(f64, f64)], unseen| {
            EstimateVerdict::of(&shares(figures), unseen, (100, 20.0)).unwrap().to_string()
        };
        // Four times as many windows halve the error.
        let told_of_two = told(&[(0.6, 0.3), (0.4, 0.2645)], 0.01);
        assert_eq!(told_of_two, "too wide to rank: record for 60 s more (errors of the largest lines: ±30.0 points)");
        assert!(told(&[(0.4, 0.58), (0.35, 0.5)], 0.01).starts_with("too wide to rank: record for much longer"));
        // What was seen is certain, but half of it was not seen.
        assert!(told(&[(0.25, 0.01)], 0.5).starts_with("too wide to rank: record for 20 s more"));
    }

    /// Where the verdict ranks lines, the truth agrees: up to `CLOSE`, and for each pair in 19 of 20 cases.
    #[test]
    fn it_is_right_as_often_as_it_says() {
        let mut state = 3_u64;
        let mut unit = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1_u64 << 53) as f64
        };
        // A sum of uniform numbers is close enough to normal.
        let mut normal = || (0..12).map(|_| unit()).sum::<f64>() - 6.0;
        let (mut ranked, mut wrong) = (0_u32, 0_u32);
        for case in 0..4000 {
            let truth = [0.30 + 0.001 * f64::from(case % 100), 0.28, 0.1];
            let deviation = 0.002 + 0.0005 * f64::from(case % 40);
            let mut told: Vec<(f64, usize)> =
                truth.iter().enumerate().map(|(line, share)| (share + deviation * normal(), line)).collect();
            told.sort_by(|a, b| b.0.total_cmp(&a.0));
            let figures: Vec<Figure> = told.iter().map(|told| Figure::estimated(told.0, 1.96 * deviation)).collect();
            if EstimateVerdict::of(&figures, 0.0, (100, 10.0)) == Some(EstimateVerdict::Ranked) {
                ranked += 1;
                let is_wrong = told.windows(2).any(|pair| truth[pair[1].1] - truth[pair[0].1] > CLOSE);
                wrong += u32::from(is_wrong);
            }
        }
        assert!(ranked > 500 && wrong * 20 <= ranked, "{wrong} of {ranked}");
    }
}
