//! What an estimate is made from.

use super::notes::{ESTIMATE, parse_figure, write_figure};
use crate::bounded::estimate::{Estimate, Figure};
use crate::report::memory::amount;
use crate::stream::Annotation;

/// What is known of all lines together, and what it is known from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct About {
    /// Windows; 0 as long as nothing is known.
    pub windows: u64,
    /// Calls of the allocator in them.
    pub events: u64,
    /// Seconds that they were open.
    pub covered: f64,
    /// Bytes allocated, less what was freed explicitly. Measured.
    pub net: u64,
    /// Bytes allocated.
    pub gross: Option<Figure>,
    /// Cycles of the collector. Measured.
    pub cycles: u64,
    /// What a line that no window saw may still have, as a share.
    pub unseen: f64,
    /// The largest error of a line's share.
    pub error: Option<f64>,
    /// What makes it doubtful.
    pub warnings: Vec<String>,
    /// Why its figures are withheld, if they are: they contradict each other.
    pub withheld: Vec<String>,
    /// Whether the order of the lines is known.
    pub verdict: Option<String>,
}

impl About {
    /// That of an estimate.
    pub fn new(estimate: &Estimate) -> Self {
        let errors = estimate.lines.iter().filter_map(|line| line.share.error);
        Self {
            windows: estimate.windows,
            events: estimate.events,
            covered: estimate.covered.as_secs_f64(),
            net: estimate.total.net,
            gross: Some(estimate.total.gross),
            cycles: estimate.total.cycles,
            unseen: estimate.unseen,
            error: errors.reduce(f64::max),
            warnings: estimate.warnings.iter().map(ToString::to_string).collect(),
            withheld: estimate.contradictions.iter().map(ToString::to_string).collect(),
            verdict: estimate.verdict.map(|verdict| verdict.to_string()),
        }
    }

    /// All was seen: so many bytes were allocated.
    pub(super) fn exact(&mut self, gross: u64) {
        self.gross = Some(Figure::measured(gross as f64));
        self.error = None;
        self.warnings.clear();
        self.withheld.clear();
        self.verdict = None;
    }

    /// Whether anything is known.
    pub fn is_known(&self) -> bool {
        self.gross.is_some()
    }

    /// Whether its figures contradict each other, so that none is shown.
    pub fn is_withheld(&self) -> bool {
        !self.withheld.is_empty()
    }

    /// Whether all was seen, so that nothing is estimated.
    pub fn is_exact(&self) -> bool {
        self.is_known() && self.error.is_none() && self.windows > 0
    }

    /// The same for the notes of a stream.
    pub fn properties(&self) -> Vec<Annotation> {
        let property = |key: &str, value: String| Annotation::Property { key: format!("{ESTIMATE}{key}"), value };
        let mut properties = vec![
            property("windows", self.windows.to_string()),
            property("events", self.events.to_string()),
            property("covered", self.covered.to_string()),
            property("net", self.net.to_string()),
            property("cycles", self.cycles.to_string()),
            property("unseen", self.unseen.to_string()),
        ];
        properties.extend(self.error.map(|error| property("error", error.to_string())));
        properties.extend(self.warnings.iter().map(|warning| property("warning", warning.clone())));
        properties.extend(self.withheld.iter().map(|reason| property("withheld", reason.clone())));
        properties.extend(self.verdict.iter().map(|verdict| property("verdict", verdict.clone())));
        properties.extend(self.gross.map(|gross| property("gross", write_figure(gross))));
        properties
    }

    /// Takes a property of a stream; whether it is one of an estimate.
    pub fn take(&mut self, key: &str, value: &str) -> bool {
        let Some(key) = key.strip_prefix(ESTIMATE) else { return false };
        let number = || value.parse().unwrap_or(0);
        let share = || value.parse::<f64>().ok().filter(|share| share.is_finite()).unwrap_or(0.0);
        match key {
            "windows" => self.windows = number(),
            "events" => self.events = number(),
            "covered" => self.covered = share(),
            "net" => self.net = number(),
            "cycles" => self.cycles = number(),
            "unseen" => self.unseen = share(),
            "error" => self.error = Some(share()),
            "warning" => self.warnings.push(value.to_owned()),
            "withheld" => self.withheld.push(value.to_owned()),
            "verdict" => self.verdict = Some(value.to_owned()),
            "gross" => self.gross = parse_figure(value),
            _ => {}
        }
        true
    }

    /// For a title: `bytes allocated (estimate, ±1.2 points)`.
    pub fn title(&self) -> String {
        match self.error {
            _ if self.is_withheld() => "bytes allocated (withheld: figures contradict each other)".to_owned(),
            _ if !self.is_known() => "bytes allocated in windows (a sample, not weighed)".to_owned(),
            Some(error) => format!("bytes allocated (estimate, ±{:.1} points)", error * 100.0),
            None => "bytes allocated".to_owned(),
        }
    }

    /// In half a sentence.
    pub fn made_from(&self) -> String {
        let Self { windows, events, covered, .. } = self;
        if self.is_exact() {
            format!("all of it seen ({events} events)")
        } else if self.is_known() {
            format!("estimated from {windows} windows, {events} events, covering {covered:.2} s")
        } else {
            "as windows saw it: the stream ends before its estimate".to_owned()
        }
    }

    /// The totals, in a line each.
    pub fn lines(&self) -> Vec<String> {
        let Some(gross) = self.gross else { return vec![self.made_from()] };
        if self.is_withheld() {
            let mut lines = vec![
                "NO VERDICT: figures contradict each other, so those that are estimated are withheld".to_owned(),
                self.made_from(),
            ];
            lines.extend(self.withheld.iter().map(|reason| format!("because            {reason}")));
            lines.push(format!("collection cycles  {} (measured)", self.cycles));
            lines.push("Record again, for longer or when the machine has more time for it.".to_owned());
            return lines;
        }
        let total = match gross.error {
            Some(error) => {
                let error = amount(error.round() as u64);
                format!("total allocated    {} ±{error} (estimate)", amount(gross.value.round() as u64))
            }
            None => format!("total allocated    {} (measured)", amount(gross.value.round() as u64)),
        };
        let net = format!("less explicit frees {} (measured)", amount(self.net));
        let cycles = format!("collection cycles  {} (measured)", self.cycles);
        let mut lines: Vec<String> =
            self.verdict.iter().map(|verdict| format!("verdict            {verdict}")).collect();
        lines.extend([self.made_from(), total, net, cycles]);
        if !self.is_exact() {
            let unseen = self.unseen * 100.0;
            lines.push(format!("unseen lines       may still have up to {unseen:.2}% each"));
        }
        lines.extend(self.warnings.iter().map(|warning| format!("WARNING: {warning}")));
        lines
    }
}
