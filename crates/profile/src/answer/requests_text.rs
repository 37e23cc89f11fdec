//! What requests cost, by location or route, or what fibers cost: a table for a terminal.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use lj_trace_text::table::{Column, Fit, Table};
use lj_trace_text::untrusted::Untrusted;
use lj_trace_text::{Room, counted};

use super::CpuFacts;
use super::request_subjects::{RequestSubjects, SubjectKind, TOP};
use crate::model::RequestKey;

/// A name is never cut to less than this.
const LEAST_NAME: usize = 20;

/// Writes the locations, routes or fibers that cost the most, with their phases if they have any; writes nothing if no request and
/// no fiber is known.
pub fn write(facts: &CpuFacts, room: Room, out: &mut String) -> std::fmt::Result {
    let share = |count: u64| format!("{:.1}%", count as f64 * 100.0 / facts.samples.max(1) as f64);
    let requests = facts.requests.iter().map(|(labels, count)| (labels.as_ref(), *count, *count));
    let Some(RequestSubjects { kind, rows, rest }) = RequestSubjects::of(requests, share) else { return Ok(()) };
    let rows = rows.into_iter().map(|row| (share(row.amount), row.phases, row.name));
    let rows = rows.chain(rest.map(|(amount, name)| (share(amount), String::new(), name)));
    let (column, end) = (Column::right("share", 6), Fit::Label(LEAST_NAME));
    if kind == SubjectKind::Fiber {
        let mut table = Table::new([column]).gap(2).end(kind.heading(), end, room);
        rows.for_each(|(share, _, name)| table.row([share], name));
        return writeln!(out, "{table}");
    }
    let columns = [column, Column::left("phases", 30)];
    let mut table = Table::new(columns).gap(2).end(kind.heading(), end, room);
    rows.for_each(|(share, phases, name)| table.row([share, phases], name));
    writeln!(out, "{table}")?;
    write_plugins(facts, room, out)
}

/// Writes which plugins of Kong or APISIX cost the most; writes nothing if no plugin is known.
fn write_plugins(facts: &CpuFacts, room: Room, out: &mut String) -> std::fmt::Result {
    let mut plugins: BTreeMap<&str, u64> = BTreeMap::new();
    for (labels, count) in &facts.requests {
        if let Some(name) = labels.as_ref().and_then(|labels| labels.get(RequestKey::Plugin)) {
            *plugins.entry(name).or_default() += count;
        }
    }
    if plugins.is_empty() {
        return Ok(());
    }
    let share = |count: u64| format!("{:.1}%", count as f64 * 100.0 / facts.samples.max(1) as f64);
    let mut plugins: Vec<(&str, u64)> = plugins.into_iter().collect();
    plugins.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let mut table = Table::new([Column::right("share", 6)]).gap(2).end("plugin", Fit::Label(LEAST_NAME), room);
    for (name, count) in plugins.iter().take(TOP) {
        table.row([share(*count)], Untrusted(name).to_string());
    }
    if let Some(beyond) = plugins.get(TOP..).filter(|beyond| !beyond.is_empty()) {
        let rest = beyond.iter().map(|(_, count)| count).sum();
        table.row([share(rest)], counted(beyond.len() as u64, "more plugin"));
    }
    writeln!(out, "{table}")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lj_trace_streams::VmState;

    use super::*;
    use crate::model::{Labels, RequestLabels};
    use crate::profile::SampleInfo;
    use crate::{CpuProfile, Frame};

    fn text(samples: &[(Option<&str>, &str, usize)]) -> String {
        let labels = |location, phase| vec![(RequestKey::Location, location), (RequestKey::Phase, phase)];
        text_of(samples.iter().map(|&(location, phase, count)| {
            (location.map_or_else(Vec::new, |location| labels(location, phase)), count)
        }))
    }

    fn text_of<'a>(samples: impl Iterator<Item = (Vec<(RequestKey, &'a str)>, usize)>) -> String {
        let mut profile = CpuProfile::new("");
        for (labels, count) in samples {
            let request = RequestLabels::new(labels.into_iter().map(|(key, text)| (key, Arc::from(text))));
            for _ in 0..count {
                let labels = Labels { request: request.clone(), ..Labels::default() };
                profile.add_sample(SampleInfo { labels, ..SampleInfo::new(VmState::Cfunc) }, [Frame::Internal]);
            }
        }
        let mut out = String::new();
        write(&CpuFacts::of(&profile), Room::Unlimited, &mut out).unwrap();
        out
    }

    #[test]
    fn locations_have_their_share_of_all_samples() {
        let samples =
            [(Some("/a"), "content", 50), (Some("/a"), "log", 10), (Some("/b"), "content", 20), (None, "", 20)];
        let shown = text(&samples);
        let lines: Vec<&str> = shown.lines().map(str::trim).collect();
        assert!(lines[1].starts_with("60.0%") && lines[1].ends_with("/a"), "{shown}");
        assert!(lines[1].contains("content 50.0%, log 10.0%"), "{shown}");
        assert!(lines.iter().any(|line| line.ends_with("no request that is known")), "{shown}");
        assert_eq!(text(&[(None, "", 3)]), "", "no request is known");
    }

    #[test]
    fn locations_beyond_the_first_are_counted() {
        let names: Vec<String> = (0..TOP + 5).map(|number| format!("/{number}")).collect();
        let samples: Vec<_> = names.iter().map(|name| (Some(name.as_str()), "content", 1)).collect();
        assert!(text(&samples).contains("5 more locations"), "{}", text(&samples));
    }

    #[test]
    fn plugins_have_a_table_of_their_own() {
        let of = |plugin: Option<&'static str>| {
            let plugin = plugin.map(|plugin| (RequestKey::Plugin, plugin));
            [(RequestKey::Route, "shop")].into_iter().chain(plugin).collect::<Vec<_>>()
        };
        let shown = text_of([(of(Some("jwt")), 30), (of(Some("cors")), 60), (of(None), 10)].into_iter());
        let lines: Vec<&str> = shown.lines().map(str::trim).collect();
        let at = lines.iter().position(|line| line.ends_with("plugin")).unwrap();
        assert_eq!(lines[at + 1..at + 3], ["60.0%  cors", "30.0%  jwt"], "{shown}");
        assert!(lines[1].starts_with("100.0%") && lines[1].ends_with("shop"), "{shown}");
    }

    #[test]
    fn fibers_have_no_phases() {
        let fiber = |name| vec![(RequestKey::Fiber, name)];
        let shown = text_of([(fiber("iproto"), 30), (fiber("expire\n"), 60), (Vec::new(), 10)].into_iter());
        let lines: Vec<&str> = shown.lines().map(str::trim).collect();
        assert_eq!(lines[0].split_whitespace().collect::<Vec<_>>(), ["share", "fiber"], "{shown}");
        assert!(lines[1].starts_with("60.0%") && lines[1].ends_with("expire\\n"), "{shown}");
        assert!(lines[2].starts_with("30.0%") && lines[2].ends_with("iproto"), "{shown}");
        assert!(lines[3].starts_with("10.0%") && lines[3].ends_with("no fiber that is known"), "{shown}");
    }
}
