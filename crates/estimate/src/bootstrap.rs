//! The error of the estimate: how much the estimate would change if other windows had been drawn.
//!
//! This is the bootstrap (Efron and Tibshirani: *An Introduction to the Bootstrap*, 1993), applied to each stratum
//! separately. The variances add up. So do the variances of the variances, which give the degrees of freedom of the sum
//! (Satterthwaite: *An approximate distribution of estimates of variance components*, 1946).

use super::outcome::{LevelWeights, Outcome};
use super::random::Random;
use super::strata::{Strata, Stratum};
use super::sums::Sum;
use super::tables::Share;
use super::variance::Variance;
use crate::observation::SourceId;

/// How often windows are drawn again. The relative error of the error is `1 / sqrt(2 * 100)`: 7%.
const REPLICATES: usize = 100;

/// The least error of a share, 0.2 points: windows are short compared to a program's cycles, and favour what comes after a
/// pause without allocations.
const LEAST_SHARE: f64 = 0.002;

/// The least relative error of an estimated total: 1%.
const LEAST_TOTAL: f64 = 0.01;

/// The errors of all figures, for 19 of 20 cases.
#[derive(Clone, Debug)]
pub struct Spread {
    pub bytes: Vec<f64>,
    pub count: Vec<f64>,
    pub share: Vec<f64>,
    pub gross: f64,
}

/// The variances of one source's figures.
#[derive(Clone, Copy, Debug, Default)]
struct Variances {
    bytes: Variance,
    count: Variance,
    share: Variance,
    /// The number of windows that have seen the source.
    seen: f64,
}

/// Draws windows again and again. `middle` is the outcome of the original windows.
pub fn spread(strata: &Strata, middle: &Outcome, tables: &[Share]) -> Spread {
    let every = strata.every();
    let all: f64 = middle.bytes.iter().sum();
    let mut lines = vec![Variances::default(); middle.bytes.len()];
    let mut gross = Variance::default();
    let mut random = Random::new(1);
    for (sum, _) in &every {
        for part in &sum.parts {
            if let Some(line) = lines.get_mut(part.source.0 as usize) {
                line.seen += sum.windows as f64;
            }
        }
    }
    for stratum in strata.all.iter().filter(|_| !every.is_empty()) {
        let drawn = Drawn::new(stratum, &every, middle, all, &mut random);
        gross.add(drawn.gross, drawn.freedom);
        for (line, squares) in lines.iter_mut().zip(&drawn.lines) {
            line.bytes.add(squares[0], drawn.freedom);
            line.count.add(squares[1], drawn.freedom);
            line.share.add(squares[2], drawn.freedom);
        }
    }
    for share in tables {
        if let Some(line) = lines.get_mut(share.source.0 as usize) {
            let variance = (share.error / 2.0).powi(2);
            line.bytes.add(variance, every.len().max(1) as f64);
            line.share.add(variance / (all * all).max(1.0), every.len().max(1) as f64);
        }
    }
    let estimated = strata.estimated();
    let least = LEAST_SHARE * estimated;
    // Windows that were never drawn might show a source that none of these windows has shown. Redrawing cannot find that.
    let sources: Vec<SourceId> = (0..).take(lines.len()).map(SourceId).collect();
    let overlooked = strata.overlooked(&sources);
    let of = |error: fn(&Variances) -> f64, unit: &dyn Fn(usize) -> f64| -> Vec<f64> {
        let of = |(i, line): (usize, &Variances)| error(line).hypot(overlooked[i] * unit(i)) + least * unit(i);
        lines.iter().enumerate().map(of).collect()
    };
    Spread {
        bytes: of(|line| line.bytes.error(line.seen), &|_| all),
        // The number of calls that corresponds to these bytes.
        count: of(|line| line.count.error(line.seen), &|i| all * middle.count[i] / middle.bytes[i].max(1.0)),
        share: of(|line| line.share.error(line.seen).min(1.0), &|_| 1.0),
        gross: if every.is_empty() {
            middle.gross * estimated
        } else {
            gross.error(f64::INFINITY) + LEAST_TOTAL * middle.gross * estimated
        },
    }
}

/// How the outcome of a stratum varies with the windows.
struct Drawn {
    /// Variances of each source's bytes, count and share.
    lines: Vec<[f64; 3]>,
    gross: f64,
    /// The number of windows behind this, less one.
    freedom: f64,
}

impl Drawn {
    fn new(stratum: &Stratum, every: &[(&Sum, f64)], middle: &Outcome, all: f64, random: &mut Random) -> Self {
        let units = stratum.sums.len();
        let outcome = |windows: &[(&Sum, f64)]| {
            let mut outcome = Outcome::none(middle.bytes.len());
            outcome.add(stratum, windows);
            outcome
        };
        let own = outcome(&stratum.drawn(every));
        let mut lines = vec![[0.0; 3]; middle.bytes.len()];
        let mut gross = 0.0;
        for _ in 0..REPLICATES {
            let other = outcome(&draw(stratum, every, random));
            let off: f64 = other.gross - own.gross;
            gross += off * off;
            for (i, squares) in lines.iter_mut().enumerate() {
                let bytes = other.bytes[i] - own.bytes[i];
                let share = (bytes - off * middle.bytes[i] / all.max(1.0)) / all.max(1.0);
                for (square, off) in squares.iter_mut().zip([bytes, other.count[i] - own.count[i], share]) {
                    *square += off * off;
                }
            }
        }
        // A few windows vary less than the population that they are drawn from.
        let widening = if units < 2 { 1.0 } else { units as f64 / (units - 1) as f64 } / REPLICATES as f64;
        lines.iter_mut().flatten().for_each(|square| *square *= widening);
        // The total of the stratum is uncertain, too.
        let (_, doubt) = LevelWeights::new(&stratum.drawn(every)).gross_and_doubt(stratum);
        for (i, squares) in lines.iter_mut().enumerate().filter(|_| doubt > 0.0) {
            let share = (own.bytes[i] - own.gross * middle.bytes[i] / all.max(1.0)) / all.max(1.0);
            for (square, whole) in squares.iter_mut().zip([own.bytes[i], own.count[i], share]) {
                *square += (whole * doubt).powi(2);
            }
        }
        let gross = gross * widening + (own.gross * doubt).powi(2);
        let freedom = if units < 2 { every.len() } else { units - 1 } as f64;
        Self { lines, gross, freedom: freedom.max(1.0) }
    }
}

/// A new draw of windows, as many as the stratum has.
fn draw<'a>(stratum: &'a Stratum, every: &[(&'a Sum, f64)], random: &mut Random) -> Vec<(&'a Sum, f64)> {
    let units = stratum.sums.len();
    if units == 0 || units == 1 && random.below(2) == 0 {
        // The spread of one window is unknown, and a stratum without windows is entirely unknown: it may be like any other
        // window.
        return vec![every[random.below(every.len())]];
    }
    let mut drawn = stratum.drawn(&[]);
    drawn.iter_mut().for_each(|(_, times)| *times = 0.0);
    for _ in 0..units {
        drawn[random.below(units)].1 += 1.0;
    }
    drawn.retain(|(_, times)| *times > 0.0);
    drawn
}
