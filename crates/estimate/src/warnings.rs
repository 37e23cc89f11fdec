//! The reasons why an estimate is doubtful.

use std::fmt;

use super::classes::Classes;
use super::exact::Exact;
use super::strata::Strata;

/// The number of windows below which the estimate is doubtful.
const FEW_WINDOWS: u64 = 10;

/// The shares of all bytes above which there is a warning.
const BLIND: f64 = 0.02;
const RARE: f64 = 0.1;
const APART: f64 = 0.1;
const LATE: f64 = 0.02;
const MANY: f64 = 0.5;
/// The share of bytes seen in windows that are freed explicitly, above which the remaining bytes say little about the
/// whole.
const MOSTLY: f64 = 0.75;

/// A reason why an estimate is doubtful.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Warning {
    /// There was no window at all.
    NoWindow,
    /// This many calls were seen in windows before or after the time that the counters cover.
    Unmatched(u64),
    /// There were only this many windows.
    FewWindows(u64),
    /// This share of all bytes was allocated while the program did something that it never did around a window.
    Blind(f64),
    /// This share of all bytes was allocated in rare big blocks.
    RareBlocks(f64),
    /// The counters rose by this factor more, or less, than around the windows.
    Apart(f64),
    /// There were no samples of CPU time, or next to none.
    NoSamples,
    /// This share of the bytes seen in windows is freed explicitly, so that little is left for the counters to show.
    MostlyFreed(f64),
    /// The share of all bytes that windows reported too late.
    Late(f64),
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoWindow => write!(f, "no window saw an allocation: nothing is known about who allocates"),
            Self::Unmatched(events) => write!(
                f,
                "the {events} allocation events were seen in windows that cannot be held against the counters: nothing is \
                 known about who allocates outside of them"
            ),
            Self::FewWindows(n) => write!(f, "only {n} windows saw allocations: record for longer"),
            Self::Blind(share) => write!(
                f,
                "{:.0}% of the bytes were allocated while the program did something that no window has seen: \
                 record for longer",
                share * 100.0
            ),
            Self::RareBlocks(share) => write!(
                f,
                "{:.0}% of the bytes came at once, in rare big blocks: windows may have missed who allocates them",
                share * 100.0
            ),
            Self::Apart(factor) => write!(
                f,
                "the counters rose {factor:.2} times as fast as they did around the windows: those may not show what \
                 is usual"
            ),
            Self::NoSamples => write!(
                f,
                "there are too few samples of CPU time: what the program does in turns is told apart only by how much it \
                 allocates, so errors may be larger"
            ),
            Self::MostlyFreed(share) => write!(
                f,
                "{:.0}% of what was allocated was freed explicitly, and the collector counts only the rest: the bytes in \
                 total, and so of each line, may be far off; their shares are not affected",
                share * 100.0
            ),
            Self::Late(share) => write!(
                f,
                "{:.0}% of the bytes were seen in windows that became known too late to be told apart from the rest",
                share * 100.0
            ),
        }
    }
}

/// All warnings that apply.
pub fn find(classes: &Classes, strata: &Strata, exact: &Exact) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let outside: f64 = strata.all.iter().map(|stratum| stratum.volume.sum()).sum();
    let estimated = strata.estimated();
    if outside <= 0.0 || estimated < BLIND {
        return warnings;
    }
    let useful = strata.windows();
    if useful == 0 {
        return vec![if exact.events == 0 { Warning::NoWindow } else { Warning::Unmatched(exact.events) }];
    }
    if useful < FEW_WINDOWS {
        warnings.push(Warning::FewWindows(useful));
    }
    let mut add = |share: f64, least: f64, warning: fn(f64) -> Warning| {
        if share > least {
            warnings.push(warning(share));
        }
    };
    add(strata.blind(), BLIND, Warning::Blind);
    add(classes.jumps / outside * estimated, RARE, Warning::RareBlocks);
    add(classes.late.sum() / (outside + exact.made as f64), LATE, Warning::Late);
    // A VM that counts its allocated bytes leaves nothing to estimate here.
    if strata.all.iter().any(|stratum| stratum.volume.net > 0.0) {
        add(1.0 - strata.net_share(), MOSTLY, Warning::MostlyFreed);
    }
    if let Some(factor) = apart(classes) {
        warnings.push(Warning::Apart(factor));
    }
    if classes.unsampled > MANY * outside {
        warnings.push(Warning::NoSamples);
    }
    warnings
}

/// The factor by which the counters rose faster than around the windows, if chance does not explain it. Only classes with
/// many windows count, so that the difference does not come from their number.
fn apart(classes: &Classes) -> Option<f64> {
    let (mut polled, mut around, mut variance) = (0.0, 0.0, 0.0);
    for class in classes.all().iter().filter(|class| class.windows >= FEW_WINDOWS) {
        let windows = class.windows as f64;
        let mean = class.rates / windows;
        let time = class.time as f64;
        polled += class.volume.sum();
        around += mean * time;
        let squares: f64 = class.batches.sums().map(|sum| sum.squares).sum();
        variance += time * time * (squares / windows - mean * mean).max(0.0) / windows;
    }
    let off = (polled - around).abs();
    (around > 0.0 && polled > 0.0 && off > APART * polled && off > 3.0 * variance.sqrt()).then(|| polled / around)
}
