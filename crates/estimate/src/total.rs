//! From sums and spreads to the figures that are shown.

use super::bootstrap::Spread;
use super::outcome::Outcome;
use super::{Figure, Line, Total};
use crate::observation::{Reading, SourceId};

/// What is estimated to less than this part counts as measured: some milliseconds before the first window of a trace
/// that stays on.
const NEGLIGIBLE: f64 = 0.002;

/// By how much the counters are off where the VM does not count what is allocated: between two readings of which one is
/// before the flip of a cycle and one after it, they tell only about. `cargo xtask bench bounded` has seen 0.1 to 1.4%, the
/// most of it in bursts, before rates followed these.
const COUNTERS: f64 = 0.01;

/// What all have allocated.
pub fn total(first: &Reading, last: &Reading, outcome: &Outcome, spread: &Spread, estimated: Option<f64>) -> Total {
    let gross = match (first.gross, last.gross) {
        (Some(first), Some(last)) => Figure::measured(last.saturating_sub(first) as f64),
        _ if is_measured(estimated) => Figure::measured(outcome.gross),
        _ => {
            let doubt = net(first, last).relative_error().max(COUNTERS);
            Figure::estimated(outcome.gross, spread.gross.hypot(doubt * outcome.gross))
        }
    };
    Total { net: net(first, last), gross, cycles: last.cycles.saturating_sub(first.cycles) }
}

/// What was allocated and not freed explicitly, as the counters tell. What is guessed of it may be anything from nothing to
/// twice as much.
fn net(first: &Reading, last: &Reading) -> Figure {
    let (net, guessed) = (last.net.saturating_sub(first.net) as f64, last.guessed.saturating_sub(first.guessed) as f64);
    if guessed <= COUNTERS * net { Figure::measured(net) } else { Figure::estimated(net, guessed) }
}

/// What each of those seen has, the largest first. If the counters are in doubt, the bytes of each are.
pub fn lines(outcome: &Outcome, spread: &Spread, total: &Total, estimated: Option<f64>) -> Vec<Line> {
    let doubt = total.net.relative_error();
    let all: f64 = outcome.bytes.iter().sum();
    let figure = |value, error| {
        if is_measured(estimated) { Figure::measured(value) } else { Figure::estimated(value, error) }
    };
    let line = |&source: &SourceId| {
        let i = source.0 as usize;
        Line {
            source,
            share: figure(if all > 0.0 { outcome.bytes[i] / all } else { 0.0 }, spread.share[i]),
            bytes: figure(outcome.bytes[i], spread.bytes[i].hypot(doubt * outcome.bytes[i])),
            count: figure(outcome.count[i], spread.count[i].hypot(doubt * outcome.count[i])),
        }
    };
    let mut lines: Vec<Line> = (0..)
        .zip(&outcome.bytes)
        .filter(|(_, bytes)| **bytes > 0.0)
        .map(|(source, _)| line(&SourceId(source)))
        .collect();
    lines.sort_by(|a, b| b.bytes.value.total_cmp(&a.bytes.value).then(a.source.cmp(&b.source)));
    lines
}

/// Whether next to nothing is estimated.
fn is_measured(estimated: Option<f64>) -> bool {
    estimated.is_some_and(|estimated| estimated < NEGLIGIBLE)
}
