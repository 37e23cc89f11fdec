//! Sums by what requests are called: the locations, or the fibers, that have the most of something.

use std::collections::{BTreeMap, BTreeSet};

use lj_trace_text::counted;
use lj_trace_text::untrusted::Untrusted;

use crate::model::{RequestKey, RequestLabels};

/// How many locations or fibers are listed.
pub(crate) const TOP: usize = 10;

/// How many phases of each are listed.
const PHASES: usize = 3;

/// The locations or fibers that have the most.
#[derive(Debug)]
pub struct RequestSubjects {
    /// Whether these are fibers, which have no phases.
    pub are_fibers: bool,
    /// Those with the most first.
    pub rows: Vec<RequestSubject>,
    /// What the others have together, and what to call them.
    pub rest: Option<(u64, String)>,
}

/// A location or a fiber.
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

/// What is known of one location or fiber.
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
        requests: impl Iterator<Item = (Option<&'a RequestLabels>, u64, u64)>,
        share: impl Fn(u64) -> String,
    ) -> Option<Self> {
        let (mut are_fibers, mut is_any) = (true, false);
        let mut subjects: BTreeMap<Option<(&str, Option<&str>)>, Sums<'_>> = BTreeMap::new();
        for (labels, amount, times) in requests {
            let text = |key| labels.and_then(|labels| labels.get(key)).map(|value| &**value);
            let name = || labels.and_then(RequestLabels::subject).map_or("[no location]", |(_, name)| name);
            if labels.is_some() {
                is_any = true;
                are_fibers &= text(RequestKey::Fiber).is_some();
            }
            let sums = subjects.entry(labels.map(|_| (name(), text(RequestKey::Server)))).or_default();
            sums.amount = sums.amount.saturating_add(amount);
            sums.times = sums.times.saturating_add(times);
            if let Some(phase) = text(RequestKey::Phase) {
                let of_phase = sums.phases.entry(phase).or_default();
                *of_phase = of_phase.saturating_add(amount);
            }
        }
        if !is_any {
            return None;
        }
        let are_many = subjects.keys().flatten().map(|(_, server)| server).collect::<BTreeSet<_>>().len() > 1;
        let name = |key: &Option<(&str, Option<&str>)>| match key {
            None if are_fibers => "no fiber that is known".to_owned(),
            None => "no request that is known".to_owned(),
            Some((name, Some(server))) if are_many => format!("{} of {}", Untrusted(name), Untrusted(server)),
            Some((name, _)) => Untrusted(name).to_string(),
        };
        let phases = |sums: &Sums<'_>| {
            let phases = by_amount(sums.phases.iter(), |amount| **amount).into_iter().take(PHASES);
            phases.map(|(phase, amount)| format!("{phase} {}", share(*amount))).collect::<Vec<_>>().join(", ")
        };
        let all = by_amount(subjects.iter(), |sums| sums.amount);
        let row = |&(key, sums): &(&Option<(&str, Option<&str>)>, &Sums<'_>)| RequestSubject {
            name: name(key),
            amount: sums.amount,
            times: sums.times,
            phases: phases(sums),
        };
        let rest = all.iter().skip(TOP).map(|(_, sums)| sums.amount).fold(0, u64::saturating_add);
        let more = if are_fibers { "more fiber" } else { "more location" };
        let rest = (rest > 0).then(|| (rest, counted((all.len() - TOP) as u64, more)));
        Some(Self { are_fibers, rows: all.iter().take(TOP).map(row).collect(), rest })
    }
}

/// The entries with the most first, by their keys where they have as much.
fn by_amount<K: Ord, V>(entries: impl Iterator<Item = (K, V)>, amount: impl Fn(&V) -> u64) -> Vec<(K, V)> {
    let mut all: Vec<_> = entries.collect();
    all.sort_by(|(a_key, a), (b_key, b)| amount(b).cmp(&amount(a)).then_with(|| a_key.cmp(b_key)));
    all
}
