//! How far the estimate may be off: by as much as it changes if other windows had been drawn.
//!
//! This is the bootstrap (Efron and Tibshirani: *An Introduction to the Bootstrap*, 1993) within strata.

use super::outcome::Outcome;
use super::random::Random;
use super::strata::Strata;
use super::sums::Sum;

/// How often windows are drawn anew. The error's own error is `1 / sqrt(2 * 100)`: 7%.
const REPLICATES: usize = 100;

/// No share is known better than to 0.2 points: windows are short against what a program repeats, and prefer what
/// follows after a while without allocations.
const LEAST_SHARE: f64 = 0.002;

/// Nor is a total that is not measured known better than to 1%.
const LEAST_TOTAL: f64 = 0.01;

/// The errors of all figures: twice the standard deviation.
#[derive(Clone, Debug)]
pub struct Spread {
    pub bytes: Vec<f64>,
    pub count: Vec<f64>,
    pub share: Vec<f64>,
    pub gross: f64,
}

/// Draws windows anew, again and again. `middle` is what the windows that were there amount to.
pub fn spread(strata: &Strata, middle: &Outcome) -> Spread {
    let sources = middle.bytes.len();
    let every = strata.every();
    let mut squares =
        Spread { bytes: vec![0.0; sources], count: vec![0.0; sources], share: vec![0.0; sources], gross: 0.0 };
    let mut random = Random::new(1);
    let all: f64 = middle.bytes.iter().sum();
    for _ in 0..REPLICATES {
        let drawn = replicate(strata, &every, &mut random);
        let drawn_all: f64 = drawn.bytes.iter().sum();
        for i in 0..sources {
            squares.bytes[i] += (drawn.bytes[i] - middle.bytes[i]).powi(2);
            squares.count[i] += (drawn.count[i] - middle.count[i]).powi(2);
            squares.share[i] += (share(drawn.bytes[i], drawn_all) - share(middle.bytes[i], all)).powi(2);
        }
        squares.gross += (drawn.gross - middle.gross).powi(2);
    }
    let estimated = strata.estimated();
    let calls: f64 = middle.count.iter().sum();
    let error = |squares: f64, least: f64| 2.0 * (squares / REPLICATES as f64).sqrt() + least * estimated;
    Spread {
        bytes: squares.bytes.iter().map(|&squares| error(squares, LEAST_SHARE * all)).collect(),
        count: squares.count.iter().map(|&squares| error(squares, LEAST_SHARE * calls)).collect(),
        share: squares.share.iter().map(|&squares| error(squares, LEAST_SHARE).min(1.0)).collect(),
        gross: if every.is_empty() {
            middle.gross * estimated
        } else {
            error(squares.gross, LEAST_TOTAL * middle.gross)
        },
    }
}

/// What would have come out with other windows.
fn replicate(strata: &Strata, every: &[(&Sum, f64)], random: &mut Random) -> Outcome {
    let mut outcome = strata.seen.clone();
    for stratum in &strata.all {
        let windows = stratum.sums.len();
        let mut add = |windows: &[(&Sum, f64)], times| outcome.add(&stratum.volume, windows, times);
        if every.is_empty() {
            add(&[], 1.0);
        } else if windows == 0 || windows == 1 && random.below(2) == 0 {
            // Of one window the spread is unknown, and of none all is: it may be like any other.
            add(&[every[random.below(every.len())]], 1.0);
        } else {
            // As many windows as there are, each drawn from all of them.
            let mut drawn = stratum.drawn(&[]);
            drawn.iter_mut().for_each(|(_, times)| *times = 0.0);
            for _ in 0..windows {
                drawn[random.below(windows)].1 += 1.0;
            }
            drawn.retain(|(_, times)| *times > 0.0);
            let times = widening(windows);
            add(&stratum.drawn(&[]), 1.0 - times);
            add(&drawn, times);
        }
    }
    outcome
}

/// By how much few windows vary less than what they are drawn from, and by how much twice the deviation is then too
/// small for 19 of 20 cases (Student's t).
fn widening(windows: usize) -> f64 {
    if windows < 2 {
        return 1.0;
    }
    let n = windows as f64;
    let student = match windows {
        ..=2 => 3.0,
        3 => 2.15,
        4 => 1.6,
        5 => 1.39,
        6..=7 => 1.25,
        8..=12 => 1.15,
        13..=30 => 1.05,
        _ => 1.0,
    };
    (n / (n - 1.0)).sqrt() * student
}

fn share(part: f64, all: f64) -> f64 {
    if all > 0.0 { part / all } else { 0.0 }
}
