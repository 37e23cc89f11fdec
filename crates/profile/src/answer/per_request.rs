//! What one request costs, by location or route: a table for a terminal.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use lj_trace_text::table::{Column, Fit, Table};
use lj_trace_text::{Room, bytes, counted};

use super::request_subjects::{SubjectKind, SubjectName, TOP, are_of_several_servers};
use crate::model::{RequestKey, RequestLabels};

/// A name is never cut to less than this.
const LEAST_NAME: usize = 20;

/// The name that stands for all names beyond the most that are kept.
const OTHER: &str = "[other]";

/// Amounts by the labels of what they are for; [`None`] for what is for no known request.
pub type OfRequests = Vec<(Option<RequestLabels>, u64)>;

/// How many requests have ended, and what was measured of them meanwhile. All sums are of the same time and the same processes.
#[derive(Clone, Debug, Default)]
pub struct PerRequest {
    /// The requests that have ended. Their labels have no phase.
    pub ended: OfRequests,
    /// How long this was counted, in seconds.
    pub seconds: f64,
    /// Time, if it was recorded.
    pub time: Option<RequestTime>,
    /// Bytes that were allocated, if that was recorded.
    pub bytes: Option<OfRequests>,
}

/// Time that was spent on requests.
#[derive(Clone, Debug)]
pub struct RequestTime {
    /// What one request takes of it: `CPU each`.
    pub heading: &'static str,
    /// Samples, or nanoseconds.
    pub amounts: OfRequests,
    /// Seconds that one of them stands for.
    pub unit: f64,
    /// The errors of these amounts.
    pub errors: TimeErrors,
}

/// What the errors of amounts are.
#[derive(Clone, Debug)]
pub enum TimeErrors {
    /// Nothing is known of them.
    Unknown,
    /// The amounts are samples of a clock, each of which counts for so many.
    Samples(u32),
    /// The error of each amount in 19 of 20 cases, and the error of 0: what one look may have missed.
    Known(BTreeMap<RequestLabels, f64>, f64),
}

/// The sums of a location or route.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    requests: u64,
    time: u64,
    /// The square of the error of that.
    squares: f64,
    bytes: u64,
}

impl PerRequest {
    /// The table, what has the most time first, or the most bytes; empty if no request has ended and nothing is known of any.
    pub fn text(&self, room: Room) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(room, &mut out);
        out
    }

    fn write(&self, room: Room, out: &mut String) -> std::fmt::Result {
        let time = self.time.iter().flat_map(|time| &time.amounts);
        let all = || self.ended.iter().chain(time.clone()).chain(self.bytes.iter().flatten());
        if all().any(|(labels, _)| labels.as_ref().is_some_and(is_other)) {
            return writeln!(
                out,
                "what a request costs is not shown: there are more than 256 locations, routes or servers, and those beyond are not told apart"
            );
        }
        let Some(kind) = SubjectKind::of(all().filter_map(|(labels, _)| labels.as_ref())) else { return Ok(()) };
        let mut rows: BTreeMap<SubjectName<'_>, Sums> = BTreeMap::new();
        for (labels, count) in &self.ended {
            rows.entry(kind.name_in(labels.as_ref())).or_default().requests += count;
        }
        for (labels, amount) in time.clone() {
            let row = rows.entry(kind.name_in(labels.as_ref())).or_default();
            row.time += amount;
            // Errors of independent sums add up as squares.
            row.squares += self.time.as_ref().map_or(0.0, |time| time.error(labels.as_ref(), *amount).powi(2));
        }
        for (labels, amount) in self.bytes.iter().flatten() {
            rows.entry(kind.name_in(labels.as_ref())).or_default().bytes += amount;
        }
        // What belongs to no request cannot be divided by any.
        let unknown = rows.remove(&None).unwrap_or_default();
        let are_many = are_of_several_servers(rows.keys());
        let mut rows: Vec<_> = rows.into_iter().collect();
        rows.sort_by(|(a_name, a), (b_name, b)| {
            (b.time, b.bytes, b.requests).cmp(&(a.time, a.bytes, a.requests)).then_with(|| a_name.cmp(b_name))
        });
        let mut columns = vec![Column::right("requests", 9), Column::right("a second", 9)];
        columns.extend(self.time.as_ref().map(|time| Column::right(time.heading, 14)));
        columns.extend(self.bytes.as_ref().map(|_| Column::right("allocated each", 14)));
        let mut table = Table::new(columns).gap(2).end(kind.heading(), Fit::Label(LEAST_NAME), room);
        for (name, sums) in rows.iter().take(TOP) {
            table.row(self.cells(*sums), kind.written(*name, are_many));
        }
        if let Some(beyond) = rows.get(TOP..).filter(|beyond| !beyond.is_empty()) {
            let requests = beyond.iter().map(|(_, sums)| sums.requests).sum();
            table.row(self.counts(requests), counted(beyond.len() as u64, kind.more()));
        }
        if unknown.requests > 0 {
            table.row(self.counts(unknown.requests), kind.written(None, are_many));
        }
        write!(out, "{table}")
    }

    fn cells(&self, sums: Sums) -> Vec<String> {
        let mut cells = self.counts(sums.requests);
        cells.truncate(2);
        cells.extend(self.time.as_ref().map(|time| {
            let error = if sums.time == 0 { time.unseen() } else { sums.squares.sqrt() };
            time.each(sums.time, error, sums.requests)
        }));
        cells.extend(self.bytes.as_ref().map(|_| match sums.requests {
            0 => String::new(),
            requests => bytes(sums.bytes / requests),
        }));
        cells
    }

    /// The cells of a row that has requests alone.
    fn counts(&self, requests: u64) -> Vec<String> {
        let rate = if self.seconds > 0.0 { requests as f64 / self.seconds } else { 0.0 };
        let mut cells = vec![requests.to_string(), format!("{rate:.1}")];
        cells.extend(self.time.as_ref().map(|_| String::new()));
        cells.extend(self.bytes.as_ref().map(|_| String::new()));
        cells
    }
}

impl RequestTime {
    /// What one of `requests` takes, if all of them take `amount`, with this error.
    fn each(&self, amount: u64, error: f64, requests: u64) -> String {
        if requests == 0 {
            return String::new();
        }
        let of = |amount: f64| time(amount * self.unit / requests as f64);
        match self.errors {
            TimeErrors::Unknown => of(amount as f64),
            _ if amount == 0 => format!("< {}", of(error)),
            _ => format!("{} ±{:.0}%", of(amount as f64), (error / amount as f64 * 100.0).max(1.0)),
        }
    }

    /// The error of an amount in 19 of 20 cases.
    fn error(&self, labels: Option<&RequestLabels>, amount: u64) -> f64 {
        /// Standard errors within which 19 of 20 figures are.
        const ERRORS: f64 = 1.96;
        match &self.errors {
            TimeErrors::Unknown => 0.0,
            TimeErrors::Samples(weight) => ERRORS * (amount as f64 * f64::from(*weight)).sqrt(),
            TimeErrors::Known(errors, _) => labels.and_then(|labels| errors.get(labels)).copied().unwrap_or(0.0),
        }
    }

    /// What may have been missed of something of which nothing was found.
    fn unseen(&self) -> f64 {
        /// If nothing was hit, it is less than these samples in 19 of 20 cases.
        const UNSEEN: f64 = 3.0;
        match self.errors {
            TimeErrors::Unknown => 0.0,
            TimeErrors::Samples(weight) => UNSEEN * f64::from(weight),
            TimeErrors::Known(_, unseen) => unseen,
        }
    }
}

/// Whether names are kept of no more locations, routes or servers.
fn is_other(labels: &RequestLabels) -> bool {
    let keys = [RequestKey::Location, RequestKey::Route, RequestKey::Server];
    keys.into_iter().filter_map(|key| labels.get(key)).any(|name| &**name == OTHER)
}

/// A time in seconds, with three digits.
fn time(seconds: f64) -> String {
    let (value, unit) = match seconds {
        1.0.. => (seconds, "s"),
        1e-3.. => (seconds * 1e3, "ms"),
        _ => (seconds * 1e6, "us"),
    };
    match value {
        100.0.. => format!("{value:.0} {unit}"),
        10.0.. => format!("{value:.1} {unit}"),
        _ => format!("{value:.2} {unit}"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn labels(location: &str) -> Option<RequestLabels> {
        RequestLabels::new([(RequestKey::Location, Arc::from(location))])
    }

    fn table() -> PerRequest {
        PerRequest {
            ended: vec![(labels("/a"), 2000), (labels("/b"), 10), (labels("/c"), 500)],
            seconds: 10.0,
            time: Some(RequestTime {
                heading: "CPU each",
                amounts: vec![(labels("/a"), 400), (labels("/b"), 100), (None, 50)],
                unit: 0.01,
                errors: TimeErrors::Samples(1),
            }),
            bytes: None,
        }
    }

    #[test]
    fn one_request_takes_its_share() {
        let shown = table().text(Room::Unlimited);
        let lines: Vec<String> =
            shown.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(
            lines,
            [
                "requests a second CPU each location of the request",
                "2000 200.0 2.00 ms ±10% /a",
                "10 1.0 100 ms ±20% /b",
                "500 50.0 < 60.0 us /c",
            ],
            "{shown}"
        );
    }

    #[test]
    fn errors_that_are_known_are_told() {
        let mut table = table();
        let errors = [("/a", 40.0), ("/b", 50.0)].map(|(name, error)| (labels(name).unwrap(), error));
        table.time.as_mut().unwrap().errors = TimeErrors::Known(errors.into(), 30.0);
        let shown = table.text(Room::Unlimited);
        assert!(
            shown.contains("2.00 ms ±10%") && shown.contains("100 ms ±50%") && shown.contains("< 600 us"),
            "{shown}"
        );
        table.time.as_mut().unwrap().errors = TimeErrors::Unknown;
        let shown = table.text(Room::Unlimited);
        assert!(shown.contains("2.00 ms") && !shown.contains('±'), "{shown}");
    }

    #[test]
    fn bytes_are_exact_and_have_a_column_of_their_own() {
        let bytes = Some(vec![(labels("/a"), 4096 * 2000), (labels("/d"), 7)]);
        let shown = PerRequest { time: None, bytes, ..table() }.text(Room::Unlimited);
        assert!(shown.lines().next().unwrap().contains("allocated each"), "{shown}");
        assert!(shown.lines().nth(1).unwrap().contains("4.0 KiB"), "{shown}");
        // Nothing of /d has ended.
        assert!(shown.lines().any(|line| line.trim_start().starts_with("0 ") && line.ends_with("/d")), "{shown}");
    }

    #[test]
    fn where_names_are_missing_nothing_is_divided() {
        let mut table = table();
        table.ended.push((labels(OTHER), 1));
        let shown = table.text(Room::Unlimited);
        assert!(shown.starts_with("what a request costs is not shown") && shown.lines().count() == 1, "{shown}");
    }

    #[test]
    fn times_have_three_digits() {
        for (seconds, text) in [(1.5, "1.50 s"), (0.0421, "42.1 ms"), (0.000_312, "312 us"), (2e-6, "2.00 us")] {
            assert_eq!(time(seconds), text);
        }
    }
}
