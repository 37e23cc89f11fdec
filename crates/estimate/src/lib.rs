//! Estimates how much each source has allocated, from windows that saw only a small part of it: the estimate of a memory
//! profile of bounded cost.
//!
//! To add up what the windows saw would be wrong. Probes slow the program down in a window, the more the program allocates,
//! so a window of some milliseconds covers little of a stretch that allocates much. For programs whose behaviour changes
//! over time, the error would be 20 points and more, however many windows there are. So:
//!
//! - Allocations in windows are known exactly, and added as they are (`exact`).
//! - The rest of the time is cut into slices of 10 ms. The collector's counters tell how much was allocated in a slice
//!   (`timeline`). A window belongs to the slice inside which it was opened, at a random moment.
//! - Slices in which the CPU did the same form a class (`classes`). The amount that a class has allocated is known, and its
//!   windows tell which sources allocated it. This is post-stratification: it is unbiased for any classes, and the better
//!   the classes are, the more precise it is.
//! - Within a class, a window is weighted by the allocation rate right before and after it. The rate stands for the amount
//!   of the program's own time that the window covers (`sums`).
//! - Classes with few windows are merged with similar classes (`strata`).
//! - The collector's counters do not include bytes that are freed explicitly. Windows show these in proportion to the
//!   remaining bytes, or, if next to nothing remains, in proportion to the CPU time (`used_time`).
//! - String tables are rare and large, and are known without windows (`tables`).
//! - The possible error of all this is found by drawing other windows from the existing ones (`bootstrap`).

mod bootstrap;
mod classes;
mod exact;
mod identities;
pub mod life;
pub mod observation;
mod outcome;
mod proportion;
pub mod random;
#[cfg(test)]
mod simulation;
mod strata;
mod sums;
mod tables;
#[cfg(test)]
mod tests;
mod timeline;
mod total;
mod used_time;
pub mod variance;
mod warnings;

use std::time::Duration;

use classes::Classes;
use exact::Exact;
pub use identities::Broken;
use strata::Strata;
pub use tables::Growers;
use timeline::ObservedTimeline;
pub use warnings::Warning;

use observation::{CpuSample, Nanos, Reading, SourceId, Window};

/// How long observations wait for windows that belong to them, in nanoseconds.
const HORIZON: Nanos = 10_000_000_000;

/// The length in nanoseconds from which on a window is not a random sample of what is around it, but a full trace. It then
/// counts only for itself.
const LONG_WINDOW: Nanos = 100_000_000;

/// Makes an [`Estimate`] from observations, in bounded memory.
///
/// Windows may arrive up to 10 s after they were opened. Hand over a trace that stays on in parts of a few seconds, each of
/// which begins where the previous one ended.
#[derive(Clone, Debug, Default)]
pub struct Estimator {
    first: Option<Reading>,
    last: Reading,
    timeline: ObservedTimeline,
    classes: Classes,
    exact: Exact,
    growers: Growers,
    /// The CPU time that a sample counts for, in nanoseconds; 0 if it is not known.
    period: f64,
}

impl Estimator {
    /// The estimator of a new recording.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the number of samples per second of CPU time.
    pub fn set_sampling(&mut self, rate: f64) {
        self.period = 1e9 / rate.max(1.0);
    }

    /// Starts anew from the last counters: the estimate covers only later observations.
    pub fn begin_anew(&mut self) {
        let Self { last, first, period, .. } = std::mem::take(self);
        self.period = period;
        if first.is_some() {
            self.reading(last);
        }
    }

    /// Takes the counters, in the order of time, about 1000 times per second.
    pub fn reading(&mut self, reading: Reading) {
        if self.first.is_none() {
            self.first = Some(reading);
        }
        if !self.timeline.reading(reading) {
            return;
        }
        self.last = reading;
        let classes = &mut self.classes;
        self.timeline.advance(reading.at.saturating_sub(HORIZON), |slice| classes.add(slice));
    }

    /// Takes a sample, roughly in the order of time.
    pub fn sample(&mut self, sample: CpuSample) {
        self.timeline.sample(sample);
    }

    /// Takes a window, after it was closed.
    ///
    /// A window that was opened long before the first reading is not part of the total, and is only counted.
    pub fn window(&mut self, mut window: Window) {
        let at = self.first.map_or(0, |first| first.at);
        let early = at.saturating_sub(window.opened);
        let before_all = early > window.closed.saturating_sub(window.opened) / 100;
        self.exact.add(&window, before_all);
        window.opened = window.opened.max(at);
        if !before_all && let Some(late) = self.timeline.window(window) {
            self.classes.deduct(&late);
        }
    }

    /// Sets the sources of string tables that no window saw but that the counters show.
    pub fn set_growers(&mut self, growers: Growers) {
        self.growers = growers;
    }

    /// The estimate from all observations so far.
    pub fn estimate(&self) -> Estimate {
        let mut classes = self.classes.clone();
        let mut timeline = self.timeline.clone();
        timeline.advance(Nanos::MAX, |slice| classes.add(slice));
        let tables = self.last.tables.since(&self.first.unwrap_or_default().tables);
        let tables = timeline.tables.shares(&tables, &self.exact, &self.growers);
        let strata = Strata::new(&classes, &self.exact, &tables, self.period);
        let outcome = strata.outcome();
        let spread = bootstrap::spread(&strata, &outcome, &tables);
        let first = self.first.unwrap_or_default();
        let estimated = (self.exact.made > 0).then(|| strata.estimated());
        let total = total::total(&first, &self.last, &outcome, &spread, estimated);
        let lines = total::lines(&outcome, &spread, &total, estimated);
        let recorded = Duration::from_nanos(self.last.at.saturating_sub(first.at));
        let fallen = self.last.fallen.saturating_sub(first.fallen);
        let broken = identities::Account::of(&total, &lines, &self.exact, recorded, fallen).broken();
        Estimate {
            total,
            lines,
            recorded,
            broken,
            windows: self.exact.windows,
            events: self.exact.events,
            covered: Duration::from_nanos(self.exact.open),
            unseen: strata.unseen(),
            warnings: warnings::find(&classes, &strata, &self.exact),
        }
    }
}

/// The allocations during a recording of a memory profile of bounded cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimate {
    /// The allocations of all sources together.
    pub total: Total,
    /// The allocations of each source that was seen to allocate, the largest first.
    pub lines: Vec<Line>,
    /// How long the counters were read.
    pub recorded: Duration,
    /// The violated identities. If there are any, do not show figures in bytes.
    pub broken: Vec<Broken>,
    /// The number of windows.
    pub windows: u64,
    /// The number of allocator calls in the windows.
    pub events: u64,
    /// How long the windows were open, in wall-clock time.
    pub covered: Duration,
    /// The share of all bytes that an unseen source may still have, in one of 20 recordings: if `n` windows have not seen
    /// something, it is rarely more than `3 / n` of what they were drawn from.
    pub unseen: f64,
    /// The reasons why the figures are doubtful.
    pub warnings: Vec<Warning>,
}

/// The allocations of all sources together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Total {
    /// Bytes allocated, less bytes freed or given back explicitly. Measured, unless readings came late.
    pub net: Figure,
    /// Bytes allocated.
    pub gross: Figure,
    /// Collection cycles that have begun. Measured, unless they were too fast to be read one by one.
    pub cycles: Figure,
}

/// The allocations of one source.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// The source.
    pub source: SourceId,
    /// Its share of all bytes, from 0 to 1.
    pub share: Figure,
    /// The allocated bytes.
    pub bytes: Figure,
    /// The number of blocks that were allocated, or reallocated to a new size.
    pub count: Figure,
}

/// A figure, measured or estimated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// The value.
    pub value: f64,
    /// By how much the true value may be higher or lower, in 19 of 20 cases. `None` if the figure was measured.
    pub error: Option<f64>,
}

impl Figure {
    /// A counted figure.
    pub fn measured(value: f64) -> Self {
        Self { value, error: None }
    }

    /// The error relative to the value; 0 if the figure was measured.
    pub fn relative_error(self) -> f64 {
        self.error.map_or(0.0, |error| error / self.value.max(1.0))
    }

    /// An estimated figure. The true value is very likely within `error`.
    pub fn estimated(value: f64, error: f64) -> Self {
        Self { value, error: Some(error) }
    }
}
