//! What requests cost, by location: a table for a terminal.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use lj_trace_text::table::{Column, Fit, Table};
use lj_trace_text::untrusted::Untrusted;
use lj_trace_text::{Room, counted};

use super::CpuFacts;
use crate::model::RequestKey;

/// How many locations are listed.
const TOP: usize = 10;

/// How many phases of each are listed.
const PHASES: usize = 3;

/// A location is never cut to less than this.
const LEAST_NAME: usize = 20;

/// What is known of one location.
#[derive(Default)]
struct Location<'a> {
    samples: u64,
    phases: HashMap<&'a str, u64>,
}

/// Writes the locations that cost the most, with their phases; writes nothing if no request is known.
pub fn write(facts: &CpuFacts, room: Room, out: &mut String) -> std::fmt::Result {
    if facts.requests.is_empty() {
        return Ok(());
    }
    let mut locations: HashMap<Option<(&str, Option<&str>)>, Location<'_>> = HashMap::new();
    for (labels, count) in &facts.requests {
        let text = |key| labels.as_ref().and_then(|labels| labels.get(key)).map(|value| &**value);
        let location = || text(RequestKey::Location).unwrap_or("[no location]");
        let location = locations.entry(labels.as_ref().map(|_| (location(), text(RequestKey::Server)))).or_default();
        location.samples += count;
        if let Some(phase) = text(RequestKey::Phase) {
            *location.phases.entry(phase).or_default() += count;
        }
    }
    let servers: HashSet<_> = locations.keys().flatten().map(|(_, server)| server).collect();
    let mut rows: Vec<_> = locations.iter().collect();
    rows.sort_by(|(a_key, a), (b_key, b)| b.samples.cmp(&a.samples).then_with(|| a_key.cmp(b_key)));
    let share = |count: u64| format!("{:.1}%", count as f64 * 100.0 / facts.samples.max(1) as f64);
    let columns = [Column::right("share", 6), Column::left("phases", 30)];
    let mut table = Table::new(columns).gap(2).end("location of the request", Fit::Label(LEAST_NAME), room);
    for (key, location) in rows.iter().take(TOP) {
        let mut phases: Vec<_> = location.phases.iter().collect();
        phases.sort_by(|(a_name, a), (b_name, b)| b.cmp(a).then_with(|| a_name.cmp(b_name)));
        let phases = phases.iter().take(PHASES).map(|(phase, count)| format!("{phase} {}", share(**count)));
        let phases = phases.collect::<Vec<_>>().join(", ");
        let name = match key {
            None => "no request that is known".to_owned(),
            Some((name, Some(server))) if servers.len() > 1 => format!("{} of {}", Untrusted(name), Untrusted(server)),
            Some((name, _)) => Untrusted(name).to_string(),
        };
        table.row([share(location.samples), phases], name);
    }
    let rest: u64 = rows.iter().skip(TOP).map(|(_, location)| location.samples).sum();
    if rest > 0 {
        table.row([share(rest), String::new()], counted((rows.len() - TOP) as u64, "more location"));
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
        let mut profile = CpuProfile::new("");
        for &(location, phase, count) in samples {
            let request = location.and_then(|location| {
                let texts = [(RequestKey::Location, location), (RequestKey::Phase, phase)];
                RequestLabels::new(texts.map(|(key, text)| (key, Arc::from(text))))
            });
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
}
