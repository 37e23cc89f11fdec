//! Makes the figures to show from sums and spreads.

use super::bootstrap::Spread;
use super::outcome::Outcome;
use super::{Figure, Line, Total};
use crate::observation::{Reading, SourceId};

/// The estimated share below which a total counts as measured. Such a share comes from some milliseconds before the first
/// window of a trace that stays on.
const NEGLIGIBLE: f64 = 0.002;

/// The relative error of the counters of a VM that does not count allocated bytes: if a cycle flips between two readings,
/// these give only an approximate value. `cargo xtask bench bounded` has seen 0.1 to 1.4%, with the largest errors in
/// bursts, before rates followed these.
const COUNTERS: f64 = 0.01;

/// The allocations of all sources together.
pub fn total(first: &Reading, last: &Reading, outcome: &Outcome, spread: &Spread, estimated: Option<f64>) -> Total {
    let gross = match (first.gross, last.gross) {
        (Some(first), Some(last)) => Figure::measured(last.saturating_sub(first) as f64),
        _ if is_measured(estimated) => Figure::measured(outcome.gross),
        _ => {
            let doubt = net(first, last).relative_error().max(COUNTERS);
            Figure::estimated(outcome.gross, spread.gross.hypot(doubt * outcome.gross))
        }
    };
    Total { net: net(first, last), gross, cycles: cycles(first, last) }
}

/// The bytes allocated and not freed explicitly, according to the counters.
fn net(first: &Reading, last: &Reading) -> Figure {
    let net = last.net.saturating_sub(first.net) as f64;
    let error = last.net_doubt.error_since(&first.net_doubt);
    if error <= COUNTERS * net { Figure::measured(net) } else { Figure::estimated(net, error) }
}

/// The cycles that have begun.
fn cycles(first: &Reading, last: &Reading) -> Figure {
    let cycles = last.cycles.saturating_sub(first.cycles) as f64;
    let error = last.cycles_doubt.error_since(&first.cycles_doubt);
    if error > 0.0 { Figure::estimated(cycles, error) } else { Figure::measured(cycles) }
}

/// The allocations of each source that was seen, the largest first. If the counters are uncertain, so are the bytes of each
/// source.
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
