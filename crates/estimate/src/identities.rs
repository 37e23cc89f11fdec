//! Identities that hold for any program. The parts of an estimate come from different sources (probes, the collector's
//! counters, clocks). On an overloaded machine, any of them may come late. They then contradict each other, and no figure
//! that depends on both is right.

use std::fmt;
use std::time::Duration;

use lj_trace_text::{bytes, signed_bytes};

use super::exact::Exact;
use super::{Figure, Line, Total};

/// Counters and probes begin and end some milliseconds apart, so differences of this size do not count.
const APART: f64 = 0.03;
const BYTES_APART: f64 = 65_536.0;
const SECONDS_APART: f64 = 0.05;

/// An identity that does not hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Broken {
    /// Fewer bytes were allocated than were left after all explicit frees.
    Frees {
        /// The bytes that were left.
        net: f64,
        /// The bytes that were allocated.
        gross: f64,
    },
    /// The lines do not add up to the total.
    Sum {
        /// The bytes of all lines.
        lines: f64,
        /// The total bytes.
        gross: f64,
    },
    /// The shares do not add up to one.
    Shares(f64),
    /// Windows saw more than the counters rose by in the whole recording.
    Windows {
        /// Bytes that windows saw allocated and not freed.
        seen: f64,
        /// The rise of the counters in bytes.
        net: f64,
    },
    /// Windows were open for longer than the recording, although only one is open at a time.
    Clock {
        /// The seconds that they were open.
        open: f64,
        /// The seconds that were recorded.
        recorded: f64,
    },
    /// A counter that should only rise has fallen, this many times.
    Fallen(u64),
}

impl Broken {
    /// Whether shares are wrong, too: they come from windows, whatever the counters say.
    pub fn is_of_shares(self) -> bool {
        matches!(self, Self::Shares(_) | Self::Clock { .. })
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = |size: f64| if size < 0.0 { signed_bytes(size as i64) } else { bytes(size.round() as u64) };
        match *self {
            Self::Frees { net, gross } => write!(
                f,
                "after all explicit frees more was left ({}) than was allocated ({})",
                bytes(net),
                bytes(gross)
            ),
            Self::Sum { lines, gross } => {
                write!(f, "all lines together ({}) are not the total ({})", bytes(lines), bytes(gross))
            }
            Self::Shares(sum) => write!(f, "the shares of all lines add up to {:.1}%", sum * 100.0),
            Self::Windows { seen, net } => write!(
                f,
                "windows saw more ({}) than the collector's counters rose by in the whole recording ({})",
                bytes(seen),
                bytes(net)
            ),
            Self::Clock { open, recorded } => {
                write!(f, "windows were open for {open:.2} s of {recorded:.2} s that were recorded")
            }
            Self::Fallen(times) => write!(f, "a counter that only rises has fallen {times} times"),
        }
    }
}

/// The figures that are checked against each other.
#[derive(Clone, Copy, Debug)]
pub struct Account {
    /// Bytes allocated, less what was freed explicitly.
    pub net: Figure,
    /// Bytes allocated.
    pub gross: Figure,
    /// The bytes of all lines; [`None`] if nothing is known about lines.
    pub lines: Option<f64>,
    /// The shares of all lines.
    pub shares: f64,
    /// Bytes that windows saw allocated, less what they saw freed.
    pub seen: f64,
    /// The seconds that windows were open.
    pub open: f64,
    /// The seconds that were recorded.
    pub recorded: f64,
    /// How often a counter that should only rise has fallen.
    pub fallen: u64,
}

impl Account {
    /// The account of an estimate.
    pub fn of(total: &Total, lines: &[Line], exact: &Exact, recorded: Duration, fallen: u64) -> Self {
        Self {
            net: total.net,
            gross: total.gross,
            lines: (!lines.is_empty()).then(|| lines.iter().map(|line| line.bytes.value).sum()),
            shares: lines.iter().map(|line| line.share.value).sum(),
            seen: exact.made as f64 - exact.freed as f64,
            open: Duration::from_nanos(exact.counted).as_secs_f64(),
            recorded: recorded.as_secs_f64(),
            fallen,
        }
    }

    /// All identities that do not hold, by more than the figures' errors allow.
    pub fn broken(&self) -> Vec<Broken> {
        let &Self { net, gross, lines, shares, seen, open, recorded, fallen } = self;
        let error = |figure: Figure| figure.error.unwrap_or(0.0) + APART * figure.value.abs() + BYTES_APART;
        // NaN is never a valid figure.
        let exceeds = |more: f64, less: f64| more > less || more.is_nan() || less.is_nan();
        let checks = [
            exceeds(net.value - net.error.unwrap_or(0.0), gross.value + error(gross))
                .then_some(Broken::Frees { net: net.value, gross: gross.value }),
            lines
                .filter(|lines| exceeds((lines - gross.value).abs(), error(gross)))
                .map(|lines| Broken::Sum { lines, gross: gross.value }),
            (lines.is_some() && exceeds((shares - 1.0).abs(), 1e-6)).then_some(Broken::Shares(shares)),
            exceeds(seen, net.value + error(net)).then_some(Broken::Windows { seen, net: net.value }),
            exceeds(open, recorded * (1.0 + APART) + SECONDS_APART).then_some(Broken::Clock { open, recorded }),
            (fallen > 0).then_some(Broken::Fallen(fallen)),
        ];
        checks.into_iter().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// An account in which all identities hold.
    fn sound(random: &mut Random) -> Account {
        let gross = 1e6 * (1.0 + 1e4 * random.unit());
        let error = random.unit();
        let recorded = 1.0 + 100.0 * random.unit();
        let net = gross * random.unit();
        Account {
            net: if random.below(2) == 0 { Figure::measured(net) } else { Figure::estimated(net, net * error) },
            gross: if random.below(2) == 0 { Figure::measured(gross) } else { Figure::estimated(gross, gross * error) },
            lines: (random.below(5) > 0).then_some(gross),
            shares: 1.0,
            seen: net * random.unit(),
            open: recorded * random.unit(),
            recorded,
            fallen: 0,
        }
    }

    #[test]
    fn what_holds_is_never_complained_of() {
        let mut random = Random::new(7);
        for _ in 0..10_000 {
            let account = sound(&mut random);
            assert_eq!(account.broken(), [], "{account:?}");
        }
    }

    #[test]
    fn each_contradiction_is_found() {
        let mut random = Random::new(8);
        for _ in 0..10_000 {
            let account = sound(&mut random);
            let more = 1.1 + random.unit();
            let beyond = |figure: Figure| (figure.value + figure.error.unwrap_or(0.0)) * more + 1e6;
            let found = |account: Account, is: fn(&Broken) -> bool| account.broken().iter().any(is);
            let net = Figure::measured(beyond(account.gross));
            assert!(found(Account { net, ..account }, |broken| matches!(broken, Broken::Frees { .. })), "{account:?}");
            let lines = Some(beyond(account.gross));
            assert!(found(Account { lines, ..account }, |broken| matches!(broken, Broken::Sum { .. })), "{account:?}");
            let seen = beyond(account.net);
            assert!(
                found(Account { seen, ..account }, |broken| matches!(broken, Broken::Windows { .. })),
                "{account:?}"
            );
            let open = account.recorded * more + 0.1;
            assert!(found(Account { open, ..account }, |broken| matches!(broken, Broken::Clock { .. })), "{account:?}");
            let shares = Account { shares: 1.0 + 0.01 * more, lines: Some(account.gross.value), ..account };
            assert!(found(shares, |broken| matches!(broken, Broken::Shares(_))));
            assert!(found(Account { fallen: 1, ..account }, |broken| matches!(broken, Broken::Fallen(1))));
            let nan = Account { gross: Figure::estimated(f64::NAN, 1.0), ..account };
            assert!(!nan.broken().is_empty());
        }
    }

    #[test]
    fn those_of_the_issue_are_withheld() {
        const MIB: f64 = 1_048_576.0;
        let account = Account {
            net: Figure::measured(277.8 * MIB),
            gross: Figure::measured(242.8 * MIB),
            lines: None,
            shares: 0.0,
            seen: 242.8 * MIB,
            open: 4.0,
            recorded: 5.0,
            fallen: 0,
        };
        let told: Vec<String> = account.broken().iter().map(ToString::to_string).collect();
        assert_eq!(told, ["after all explicit frees more was left (277.8 MiB) than was allocated (242.8 MiB)"]);
    }
}
