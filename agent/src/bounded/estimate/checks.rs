//! Whether figures can be true: identities that hold for every program. Where one fails, something that the estimate
//! relies on was not as it should be (readings that came late, windows that were opened when the machine had no time for
//! them), and no figure that follows from it is shown.

use std::fmt;

use super::exact::Exact;
use super::{Line, Total};
use crate::bounded::observation::{Nanos, Reading};

/// What numbers may differ by without contradiction: bytes that were allocated between a reading of the counters and the
/// edge of a window, and what is rounded.
const SLACK: f64 = 0.01;

/// The same for small numbers: a page of each.
const LEAST: f64 = 4096.0;

/// An identity that does not hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Contradiction {
    /// More is left of what was allocated than was allocated: bytes.
    NetAboveGross {
        /// What is left.
        net: f64,
        /// All that it can be, with its error.
        most: f64,
    },
    /// All lines together have allocated more than all: bytes.
    LinesAboveTotal {
        /// What the lines have.
        lines: f64,
        /// All that it can be, with its error.
        most: f64,
    },
    /// Windows, which see all that is allocated, have seen more of it than there was while they were open and while they
    /// were not: bytes.
    WindowsAboveCounters {
        /// What they have seen.
        windows: f64,
        /// What the counters tell of all the time.
        counters: f64,
    },
    /// Counters that never fall have fallen, so many times.
    Fell(u64),
    /// Windows were open for longer than was recorded: seconds.
    Clock {
        /// How long they were open.
        open: f64,
        /// How long was recorded.
        recorded: f64,
    },
    /// A figure is no number.
    NoNumber,
}

impl fmt::Display for Contradiction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: f64| format!("{:.1} MiB", bytes / f64::from(1 << 20));
        match *self {
            Self::NetAboveGross { net, most } => {
                let (net, most) = (mib(net), mib(most));
                write!(f, "the counters tell that {net} were not freed explicitly, of at most {most} allocated")
            }
            Self::LinesAboveTotal { lines, most } => {
                write!(f, "all lines together would have {}, of at most {} in total", mib(lines), mib(most))
            }
            Self::WindowsAboveCounters { windows, counters } => {
                let (windows, counters) = (mib(windows), mib(counters));
                write!(f, "windows saw {windows} allocated and not freed, the counters only {counters} in all the time")
            }
            Self::Fell(times) => write!(f, "the collector's counters fell {times} times, which they never do"),
            Self::Clock { open, recorded } => {
                write!(f, "windows were open for {open:.3} s of {recorded:.3} s that were recorded")
            }
            Self::NoNumber => f.write_str("a figure is no number"),
        }
    }
}

/// What an estimate is checked against.
#[derive(Debug)]
pub struct Observed<'a> {
    /// The first reading of the counters, and the last.
    pub first: &'a Reading,
    pub last: &'a Reading,
    /// What windows saw.
    pub exact: &'a Exact,
    /// How often counters have fallen.
    pub fell: u64,
    /// How long a window was open that is cut off by the first reading or the last, at most.
    pub edge: Nanos,
}

/// All contradictions that there are in an estimate.
pub fn find(observed: &Observed<'_>, total: &Total, lines: &[Line]) -> Vec<Contradiction> {
    let mut found = Vec::new();
    let &Observed { first, last, exact, fell, edge } = observed;
    let loose = |value: f64| value * (1.0 + SLACK) + LEAST;
    let figures = lines.iter().flat_map(|line| [line.share, line.bytes, line.count]).chain([total.gross]);
    let mut numbers = figures.flat_map(|figure| [figure.value, figure.error.unwrap_or(0.0)]);
    if numbers.any(|number| !number.is_finite() || number < 0.0) {
        found.push(Contradiction::NoNumber);
    }
    let most = total.gross.value + total.gross.error.unwrap_or(0.0);
    if total.net as f64 > loose(most) {
        found.push(Contradiction::NetAboveGross { net: total.net as f64, most });
    }
    let sum: f64 = lines.iter().map(|line| line.bytes.value).sum();
    if sum > loose(most) {
        found.push(Contradiction::LinesAboveTotal { lines: sum, most });
    }
    let windows = exact.made.saturating_sub(exact.freed) as f64;
    if windows > loose(total.net as f64) {
        found.push(Contradiction::WindowsAboveCounters { windows, counters: total.net as f64 });
    }
    if fell > 0 {
        found.push(Contradiction::Fell(fell));
    }
    let seconds = |time: Nanos| time as f64 * 1e-9;
    let recorded = last.at.saturating_sub(first.at);
    if exact.open > recorded + edge {
        found.push(Contradiction::Clock { open: seconds(exact.open), recorded: seconds(recorded) });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounded::estimate::Figure;
    use crate::bounded::observation::SourceId;

    const MIB: f64 = (1 << 20) as f64;

    fn found(net: f64, gross: Figure, bytes: f64, exact: Exact, fell: u64) -> Vec<Contradiction> {
        let first = Reading { at: 1_000_000_000, ..Reading::default() };
        let last = Reading { at: 11_000_000_000, net: net as u64, ..Reading::default() };
        let observed = Observed { first: &first, last: &last, exact: &exact, fell, edge: 0 };
        let total = Total { net: net as u64, gross, cycles: 3 };
        let share = Figure::estimated(1.0, 0.1);
        let line = Line { source: SourceId(0), share, bytes: Figure::estimated(bytes, MIB), count: share };
        find(&observed, &total, &[line])
    }

    #[test]
    fn what_was_reported_is_found() {
        let gross = Figure::estimated(242.8 * MIB, 5.0 * MIB);
        let known = found(277.8 * MIB, gross, 200.0 * MIB, Exact::default(), 0);
        assert!(matches!(known[..], [Contradiction::NetAboveGross { .. }]), "{known:?}");
        assert_eq!(
            known[0].to_string(),
            "the counters tell that 277.8 MiB were not freed explicitly, of at most 247.8 MiB allocated"
        );
        let fine = |net, bytes, exact, fell| found(net, gross, bytes, exact, fell);
        assert_eq!(fine(244.0 * MIB, 240.0 * MIB, Exact::default(), 0), [], "within its error");
        assert!(matches!(fine(MIB, 300.0 * MIB, Exact::default(), 0)[..], [Contradiction::LinesAboveTotal { .. }]));
        assert_eq!(fine(MIB, MIB, Exact::default(), 2), [Contradiction::Fell(2)]);
        let seen = Exact { made: 100 << 20, freed: 1 << 20, ..Exact::default() };
        assert!(matches!(fine(50.0 * MIB, MIB, seen, 0)[..], [Contradiction::WindowsAboveCounters { .. }]));
        let open = Exact { open: 10_500_000_000, ..Exact::default() };
        assert!(matches!(fine(MIB, MIB, open, 0)[..], [Contradiction::Clock { .. }]));
        let no_number = found(MIB, Figure::estimated(f64::NAN, 1.0), MIB, Exact::default(), 0);
        assert!(no_number.contains(&Contradiction::NoNumber), "{no_number:?}");
    }
}
