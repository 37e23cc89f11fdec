//! What was allocated for which requests.

use std::fmt::Write as _;

use lj_trace_profile::answer::{RequestSubject, RequestSubjects, SubjectKind};
use lj_trace_profile::model::{RequestKey, RequestLabels};
use lj_trace_requests::OTHER;
use lj_trace_text::table::{Column, Fit, Table};
use lj_trace_text::{Room, bytes, percent};

use crate::resolve::RequestTally;

/// A location is not cut to less than this.
const LEAST_NAME: usize = 20;

/// The events of one request that is told from others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestSums {
    /// All of them.
    pub events: u64,
    /// Allocations, and reallocations, which make a new block too.
    pub allocations: u64,
    /// Bytes of these.
    pub bytes: u64,
}

/// What a recording says of requests at its end.
#[derive(Clone, Debug, Default)]
pub struct AllocationRequestSummary {
    /// What became of the look for requests, by events.
    pub tally: RequestTally,
    /// What the requests with these labels have allocated.
    pub of_labels: Vec<(Option<RequestLabels>, RequestSums)>,
    /// The bytes of requests that may have a route that is not known.
    pub unrouted_bytes: u64,
    /// Whether somebody has asked for requests.
    pub wants_requests: bool,
    /// Whether somebody has asked for routes.
    pub wants_routes: bool,
    /// Events of other requests than are kept.
    pub left_out: u64,
}

impl AllocationRequestSummary {
    /// For how many events the request is known, where there are such.
    ///
    /// # Errors
    /// As `out`.
    pub fn write_counts(&self, events: u64, out: &mut String) -> std::fmt::Result {
        self.tally.write_counts(|count| format!("{count} ({})", percent(count, events)), out)?;
        let others = self.of_others();
        if others > 0 {
            writeln!(out, "  names beyond 256   {others} ({}), called [other]", percent(others, events))?;
        }
        if self.left_out > 0 {
            writeln!(out, "  events of other requests, which --only leaves out: {}", self.left_out)?;
        }
        if let Some(why) = self.tally.why_none("event").filter(|_| self.wants_requests && events > 0) {
            writeln!(out, "  no requests        no event is known to serve one: {why}")?;
        } else if let Some(why) = self.tally.why_no_routes("event").filter(|_| self.wants_routes && events > 0) {
            writeln!(out, "  no routes          no event is known to take one: {why}")?;
        }
        Ok(())
    }

    /// The events of locations, routes or servers that have no name of their own, because there are too many.
    fn of_others(&self) -> u64 {
        let is_other = |labels: &RequestLabels| {
            let keys = [RequestKey::Location, RequestKey::Route, RequestKey::Server];
            keys.into_iter().filter_map(|key| labels.get(key)).any(|name| **name == *OTHER)
        };
        let others = self.of_labels.iter().filter(|(labels, _)| labels.as_ref().is_some_and(is_other));
        others.map(|(_, sums)| sums.events).sum()
    }

    /// The locations for which the most is allocated, with their phases; nothing if no request is known.
    ///
    /// # Errors
    /// As `out`.
    pub fn write_table(&self, room: Room, out: &mut String) -> std::fmt::Result {
        let allocating = || self.of_labels.iter().filter(|(_, sums)| sums.allocations > 0);
        let total = allocating().map(|(_, sums)| sums.bytes).fold(0, u64::saturating_add);
        let share = |bytes: u64| percent(bytes, total);
        let requests = allocating().map(|(labels, sums)| (labels.as_ref(), sums.bytes, sums.allocations));
        let Some(subjects) = RequestSubjects::of(requests, share) else { return Ok(()) };
        let has_phases = subjects.kind != SubjectKind::Fiber;
        let mut columns = vec![Column::right("allocated", 11), Column::right("share", 7), Column::right("times", 10)];
        columns.extend(has_phases.then_some(Column::left("phases", 30)));
        let mut table = Table::new(columns).gap(2).end(subjects.kind.heading(), Fit::Label(LEAST_NAME), room);
        let cells = |amount: u64, times: String, phases: String| {
            let mut cells = vec![bytes(amount), share(amount), times];
            cells.extend(has_phases.then_some(phases));
            cells
        };
        for RequestSubject { name, amount, times, phases } in subjects.rows {
            table.row(cells(amount, times.to_string(), phases), name);
        }
        if let Some((amount, name)) = subjects.rest {
            table.row(cells(amount, String::new(), String::new()), name);
        }
        write!(out, "{table}")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn summary(rows: &[(&[(RequestKey, &str)], u64)]) -> String {
        let of_labels = rows.iter().map(|(labels, bytes)| {
            let labels = RequestLabels::new(labels.iter().map(|(key, text)| (*key, Arc::from(*text))));
            (labels, RequestSums { events: 3, allocations: 2, bytes: *bytes })
        });
        let tally = RequestTally { is_wanted: true, found: 1, ..RequestTally::default() };
        let summary = AllocationRequestSummary { tally, of_labels: of_labels.collect(), ..Default::default() };
        let mut out = String::new();
        summary.write_table(Room::Unlimited, &mut out).unwrap();
        out
    }

    #[test]
    fn locations_have_their_share_of_the_bytes() {
        let (location, phase) = (RequestKey::Location, RequestKey::Phase);
        let shown = summary(&[
            (&[(location, "/a"), (phase, "content")], 600),
            (&[(location, "/b"), (phase, "log")], 200),
            (&[(location, "/a"), (phase, "log")], 100),
            (&[], 100),
        ]);
        let lines: Vec<&str> = shown.lines().map(str::trim).collect();
        assert!(lines[1].starts_with("700 bytes") && lines[1].ends_with("/a"), "{shown}");
        assert!(lines[1].contains("content 60.00%, log 10.00%") && lines[1].contains(" 4 "), "{shown}");
        assert!(lines[2].ends_with("/b"), "{shown}");
        assert!(lines[3].ends_with("no request that is known"), "{shown}");
    }

    #[test]
    fn locations_beyond_the_first_are_counted() {
        let names: Vec<String> = (0..15).map(|number| format!("/{number}")).collect();
        let labels: Vec<_> = names.iter().map(|name| [(RequestKey::Location, name.as_str())]).collect();
        let rows: Vec<_> = labels.iter().map(|labels| (&labels[..], 10)).collect();
        assert!(summary(&rows).contains("5 more locations"), "{}", summary(&rows));
    }

    #[test]
    fn where_nobody_asks_nothing_is_said_of_what_is_not_there() {
        let mut out = String::new();
        let mut summary = AllocationRequestSummary::default();
        summary.write_counts(7, &mut out).unwrap();
        assert_eq!(out, "");
        summary.wants_requests = true;
        summary.write_counts(7, &mut out).unwrap();
        assert!(out.contains("it is not OpenResty's"), "{out}");
    }
}
