//! The data behind an estimate.

use lj_trace_estimate::{Estimate, Figure};
use lj_trace_streams::Annotation;
use lj_trace_text::bytes;

use super::notes::{ESTIMATE, parse_figure, write_figure};
use super::text::with_error;

/// What is known of all lines together, and from how much data.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AboutEstimate {
    /// The number of windows; 0 as long as nothing is known.
    pub windows: u64,
    /// The number of allocator calls in the windows.
    pub events: u64,
    /// For how many seconds windows were open.
    pub covered: f64,
    /// The length of the recording, in seconds.
    pub recorded: f64,
    /// Bytes allocated, less what was freed explicitly.
    pub net: Option<Figure>,
    /// Bytes allocated.
    pub gross: Option<Figure>,
    /// Why figures in bytes are withheld: the contradictions in the data.
    pub withheld: Vec<String>,
    /// Whether the shares contradict themselves, too.
    pub no_shares: bool,
    /// The number of collection cycles.
    pub cycles: Option<Figure>,
    /// The share that a line may have although no window saw it.
    pub unseen: f64,
    /// The largest error of a line's share.
    pub error: Option<f64>,
    /// Reasons to doubt the estimate.
    pub warnings: Vec<String>,
}

impl AboutEstimate {
    /// The facts about an estimate.
    pub fn new(estimate: &Estimate) -> Self {
        let errors = estimate.lines.iter().filter_map(|line| line.share.error);
        Self {
            windows: estimate.windows,
            events: estimate.events,
            covered: estimate.covered.as_secs_f64(),
            recorded: estimate.recorded.as_secs_f64(),
            net: Some(estimate.total.net),
            withheld: estimate.broken.iter().map(ToString::to_string).collect(),
            no_shares: estimate.broken.iter().any(|broken| broken.is_of_shares()),
            gross: Some(estimate.total.gross),
            cycles: Some(estimate.total.cycles),
            unseen: estimate.unseen,
            error: errors.reduce(f64::max),
            warnings: estimate.warnings.iter().map(ToString::to_string).collect(),
        }
    }

    /// To be called if every allocation was seen: `gross` bytes were allocated. False if the counters contradict that.
    pub(super) fn exact(&mut self, gross: u64) -> bool {
        /// Probes and counters start and stop some milliseconds apart.
        const APART: f64 = 0.03;
        const BYTES_APART: f64 = 65_536.0;
        let gross = gross as f64;
        let left = self.net.map_or(0.0, |net| net.value - net.error.unwrap_or(0.0));
        if left > gross * (1.0 + APART) + BYTES_APART {
            return false;
        }
        self.gross = Some(Figure::measured(gross));
        self.error = None;
        self.warnings.clear();
        self.withheld.clear();
        self.no_shares = false;
        true
    }

    /// Whether figures in bytes can be given.
    pub fn has_bytes(&self) -> bool {
        self.withheld.is_empty()
    }

    /// Whether anything is known.
    pub fn is_known(&self) -> bool {
        self.gross.is_some()
    }

    /// Whether everything was seen, so that nothing is estimated.
    pub fn is_exact(&self) -> bool {
        self.is_known() && self.error.is_none() && self.windows > 0
    }

    /// The facts as properties for the notes of a stream.
    pub fn properties(&self) -> Vec<Annotation> {
        let property = |key: &str, value: String| Annotation::Property { key: format!("{ESTIMATE}{key}"), value };
        let mut properties = vec![
            property("windows", self.windows.to_string()),
            property("events", self.events.to_string()),
            property("covered", self.covered.to_string()),
            property("recorded", self.recorded.to_string()),
            property("unseen", self.unseen.to_string()),
        ];
        properties.extend(self.error.map(|error| property("error", error.to_string())));
        properties.extend(self.warnings.iter().map(|warning| property("warning", warning.clone())));
        properties.extend(self.withheld.iter().map(|reason| property("withheld", reason.clone())));
        properties.extend(self.no_shares.then(|| property("no shares", String::new())));
        properties.extend(self.cycles.map(|cycles| property("cycles", write_figure(cycles))));
        properties.extend(self.net.map(|net| property("net", write_figure(net))));
        properties.extend(self.gross.map(|gross| property("gross", write_figure(gross))));
        properties
    }

    /// Reads a property of a stream. Returns whether it belongs to an estimate.
    pub fn take(&mut self, key: &str, value: &str) -> bool {
        let Some(key) = key.strip_prefix(ESTIMATE) else { return false };
        let number = || value.parse().unwrap_or(0);
        let share = || value.parse::<f64>().ok().filter(|share| share.is_finite()).unwrap_or(0.0);
        match key {
            "windows" => self.windows = number(),
            "events" => self.events = number(),
            "covered" => self.covered = share(),
            "net" => self.net = parse_figure(value),
            "recorded" => self.recorded = share(),
            "withheld" => self.withheld.push(value.to_owned()),
            "no shares" => self.no_shares = true,
            "cycles" => self.cycles = parse_figure(value),
            "unseen" => self.unseen = share(),
            "error" => self.error = Some(share()),
            "warning" => self.warnings.push(value.to_owned()),
            "gross" => self.gross = parse_figure(value),
            _ => {}
        }
        true
    }

    /// For a title: `bytes allocated (estimate, ±1.2 points)`.
    pub fn title(&self) -> String {
        match self.error {
            _ if !self.is_known() => "bytes allocated in windows (a sample, not weighed)".to_owned(),
            _ if !self.has_bytes() => "who allocates (estimated shares of what windows saw)".to_owned(),
            Some(error) => format!("bytes allocated (estimate, ±{:.1} points)", error * 100.0),
            None => "bytes allocated".to_owned(),
        }
    }

    /// Half a sentence about the data behind the estimate.
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

    /// The totals, one line each.
    pub fn lines(&self) -> Vec<String> {
        let Some(gross) = self.gross else { return vec![self.made_from()] };
        let said = |figure: Figure, show: fn(u64) -> String| {
            let how = if figure.error.is_some() { "estimate" } else { "measured" };
            format!("{} ({how})", with_error(figure, |value| show(value.round() as u64)))
        };
        let figure = |figure: Option<Figure>| {
            let figure = figure.filter(|_| self.has_bytes());
            figure.map_or_else(|| "withheld".to_owned(), |figure| said(figure, bytes))
        };
        let total = format!("total allocated    {}", figure(Some(gross)));
        let net = format!("less explicit frees {}", figure(self.net));
        let mut lines = vec![self.made_from(), total, net];
        lines.extend(
            self.cycles.map(|cycles| format!("collection cycles  {}", said(cycles, |value| value.to_string()))),
        );
        lines.extend(self.withheld.iter().map(|reason| format!("WITHHELD: {reason}; so no bytes are told")));
        if !self.is_exact() {
            let unseen = self.unseen * 100.0;
            lines.push(format!("unseen lines       may still have up to {unseen:.2}% each"));
        }
        lines.extend(self.warnings.iter().map(|warning| format!("WARNING: {warning}")));
        lines
    }
}
