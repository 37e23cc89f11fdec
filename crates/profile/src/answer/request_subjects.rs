//! Sums by what requests are called: the locations, the routes or the fibers that have the most of something.

use std::collections::{BTreeMap, BTreeSet};

use lj_trace_text::counted;
use lj_trace_text::untrusted::Untrusted;

use crate::model::{RequestKey, RequestLabels};

/// How many of them are listed.
pub(crate) const TOP: usize = 10;

/// How many phases of each are listed.
const PHASES: usize = 3;

/// What requests are called by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubjectKind {
    /// Their location in nginx's configuration.
    Location,
    /// The route that Kong or APISIX has chosen.
    Route,
    /// The fiber that runs, which has no phases.
    Fiber,
}

impl SubjectKind {
    /// The heading of a column of them.
    pub const fn heading(self) -> &'static str {
        match self {
            Self::Location => "location of the request",
            Self::Route => "route of the request",
            Self::Fiber => "fiber",
        }
    }

    const fn key(self) -> RequestKey {
        match self {
            Self::Location => RequestKey::Location,
            Self::Route => RequestKey::Route,
            Self::Fiber => RequestKey::Fiber,
        }
    }

    /// The kind that these labels ask for: routes as soon as there is one, fibers only if there is nothing else.
    pub(super) fn of<'a>(all: impl Iterator<Item = &'a RequestLabels>) -> Option<Self> {
        let mut kind = None;
        for labels in all {
            let own = match labels.subject() {
                Some((RequestKey::Route, _)) => return Some(Self::Route),
                Some((RequestKey::Fiber, _)) => Self::Fiber,
                _ => Self::Location,
            };
            kind = if kind == Some(Self::Location) { kind } else { Some(own) };
        }
        kind
    }
}

/// What a request is counted under: its name, and the server of a location. [`None`] if that is not known.
pub(super) type SubjectName<'a> = Option<(&'a str, Option<&'a str>)>;

impl SubjectKind {
    /// What a request with these labels is counted under.
    pub(super) fn name_in(self, labels: Option<&RequestLabels>) -> SubjectName<'_> {
        let text = |key| labels.and_then(|labels| labels.get(key)).map(|value| &**value);
        let name = match (text(self.key()), self) {
            (None, Self::Location) if labels.is_some() => Some("[no location]"),
            (name, _) => name,
        };
        // Routes are the same for all servers.
        let server = text(RequestKey::Server).filter(|_| self == Self::Location);
        name.map(|name| (name, server))
    }

    /// The name for a terminal. `are_many` says whether there are several servers.
    pub(super) fn written(self, name: SubjectName<'_>, are_many: bool) -> String {
        match name {
            None => match self {
                Self::Location => "no request that is known".to_owned(),
                Self::Route => "no route that is known".to_owned(),
                Self::Fiber => "no fiber that is known".to_owned(),
            },
            Some((name, Some(server))) if are_many => format!("{} of {}", Untrusted(name), Untrusted(server)),
            Some((name, _)) => Untrusted(name).to_string(),
        }
    }

    /// What further ones are called, with their number before it.
    pub(super) const fn more(self) -> &'static str {
        match self {
            Self::Location => "more location",
            Self::Route => "more route",
            Self::Fiber => "more fiber",
        }
    }
}

/// Whether there are several servers among these.
pub(super) fn are_of_several_servers<'a>(names: impl Iterator<Item = &'a SubjectName<'a>>) -> bool {
    names.flatten().map(|(_, server)| server).collect::<BTreeSet<_>>().len() > 1
}

/// The locations, routes or fibers that have the most.
#[derive(Debug)]
pub struct RequestSubjects {
    /// Which of them they are.
    pub kind: SubjectKind,
    /// Those with the most first.
    pub rows: Vec<RequestSubject>,
    /// What the others have together, and what to call them.
    pub rest: Option<(u64, String)>,
}

/// A location, a route or a fiber.
#[derive(Debug)]
pub struct RequestSubject {
    /// Its name, for a terminal.
    pub name: String,
    /// How much it has: samples, or bytes.
    pub amount: u64,
    /// How many times it got some.
    pub times: u64,
    /// Its phases, with the amount of each.
    pub phases: String,
}

/// What is known of one of them.
#[derive(Default)]
struct Sums<'a> {
    amount: u64,
    times: u64,
    phases: BTreeMap<&'a str, u64>,
}

impl RequestSubjects {
    /// Adds up the amounts and times of requests with these labels; `share` writes the amount of a phase. [`None`] if no request and no
    /// fiber is known.
    pub fn of<'a>(
        requests: impl Iterator<Item = (Option<&'a RequestLabels>, u64, u64)> + Clone,
        share: impl Fn(u64) -> String,
    ) -> Option<Self> {
        let kind = SubjectKind::of(requests.clone().filter_map(|(labels, ..)| labels))?;
        let mut subjects: BTreeMap<SubjectName<'_>, Sums<'_>> = BTreeMap::new();
        for (labels, amount, times) in requests {
            let sums = subjects.entry(kind.name_in(labels)).or_default();
            sums.amount = sums.amount.saturating_add(amount);
            sums.times = sums.times.saturating_add(times);
            if let Some(phase) = labels.and_then(|labels| labels.get(RequestKey::Phase)) {
                let of_phase = sums.phases.entry(&**phase).or_default();
                *of_phase = of_phase.saturating_add(amount);
            }
        }
        let are_many = are_of_several_servers(subjects.keys());
        let phases = |sums: &Sums<'_>| {
            let phases = by_amount(sums.phases.iter(), |amount| **amount).into_iter().take(PHASES);
            phases.map(|(phase, amount)| format!("{phase} {}", share(*amount))).collect::<Vec<_>>().join(", ")
        };
        let all = by_amount(subjects.iter(), |sums| sums.amount);
        let row = |&(key, sums): &(&SubjectName<'_>, &Sums<'_>)| RequestSubject {
            name: kind.written(*key, are_many),
            amount: sums.amount,
            times: sums.times,
            phases: phases(sums),
        };
        let rest = all.iter().skip(TOP).map(|(_, sums)| sums.amount).fold(0, u64::saturating_add);
        let rest = (rest > 0).then(|| (rest, counted((all.len() - TOP) as u64, kind.more())));
        Some(Self { kind, rows: all.iter().take(TOP).map(row).collect(), rest })
    }
}

/// The entries with the most first, by their keys where they have as much.
fn by_amount<K: Ord, V>(entries: impl Iterator<Item = (K, V)>, amount: impl Fn(&V) -> u64) -> Vec<(K, V)> {
    let mut all: Vec<_> = entries.collect();
    all.sort_by(|(a_key, a), (b_key, b)| amount(b).cmp(&amount(a)).then_with(|| a_key.cmp(b_key)));
    all
}
