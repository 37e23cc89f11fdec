//! What a memory profile of bounded cost estimates: who has allocated how much, from windows that saw little of it.
//!
//! Adding up what the windows saw would be wrong: within one the program runs in slow time, the slower the more it
//! allocates, so a window of some milliseconds covers little of a stretch that allocates much. In programs whose
//! behaviour changes with time that is an error of 20 points and more, however many windows there are. So:
//!
//! - What was allocated in windows is known exactly, and added as it is (`exact`).
//! - The rest of the time is cut into slices of 10 ms, in which the collector's counters tell how much was allocated
//!   (`timeline`). A window belongs to the slice in whose midst it was opened, at a random place.
//! - Slices in which the CPU did the same are a class (`classes`): what a class has allocated is known, and what its
//!   windows saw tells who. This is post-stratification; it holds however good or bad the classes are, and is the more
//!   precise the better they are.
//! - Within a class, a window counts by the rate at which was allocated right before and after it, which stands for the
//!   amount of the program's own time that it covers (`sums`).
//! - Classes with few windows are put together with similar ones (`strata`).
//! - What of that is freed explicitly, the collector's counters do not have. Windows tell it in proportion to the rest, or,
//!   where there is next to no rest, in proportion to the CPU time (`ran`).
//! - String tables are rare and large, and known without windows (`tables`).
//! - How far all that may be off is found by drawing other windows from those there are (`bootstrap`).

mod bootstrap;
mod classes;
mod exact;
mod identities;
pub mod life;
pub mod observation;
mod outcome;
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

/// For how long observations wait for windows that belong to them.
const HORIZON: Nanos = 10_000_000_000;

/// Windows of this length and more are no random sample of what is around them, but a full trace: they count for
/// themselves alone.
const LONG_WINDOW: Nanos = 100_000_000;

/// Makes an [`Estimate`] from what is observed, in bounded memory.
///
/// Windows may come up to 10 s after they were opened: so a trace that stays on is to be handed over in parts of a few
/// seconds, each of which begins where the last one ended.
#[derive(Clone, Debug, Default)]
pub struct Estimator {
    first: Option<Reading>,
    last: Reading,
    timeline: ObservedTimeline,
    classes: Classes,
    exact: Exact,
    growers: Growers,
    /// How much CPU time a sample stands for, in nanoseconds; 0 if that is not known.
    period: f64,
}

impl Estimator {
    /// Of a recording that begins.
    pub fn new() -> Self {
        Self::default()
    }

    /// Says how many samples there are in a second of CPU time.
    pub fn set_sampling(&mut self, rate: f64) {
        self.period = 1e9 / rate.max(1.0);
    }

    /// Begins anew with the last counters: what is observed from now on is all that there is.
    pub fn begin_anew(&mut self) {
        let Self { last, first, period, .. } = std::mem::take(self);
        self.period = period;
        if first.is_some() {
            self.reading(last);
        }
    }

    /// Takes the counters, in the order of time; about 1000 times a second.
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
    /// What was opened long before the first reading is not part of the total, and only counted.
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

    /// Says whose what is that no window saw, but the counters tell: string tables.
    pub fn set_growers(&mut self, growers: Growers) {
        self.growers = growers;
    }

    /// What all that amounts to.
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

/// What was allocated while a memory profile of bounded cost was recorded.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimate {
    /// By all.
    pub total: Total,
    /// By each source that was seen to allocate, the largest first.
    pub lines: Vec<Line>,
    /// How long the counters were read.
    pub recorded: Duration,
    /// What must hold, and does not: figures in bytes are not to be shown then.
    pub broken: Vec<Broken>,
    /// Windows there were.
    pub windows: u64,
    /// Calls of the allocator in them.
    pub events: u64,
    /// For how long they were open, in the time of the clock.
    pub covered: Duration,
    /// A source that was not seen may still have this share of all bytes, in one of 20 recordings: where `n` windows
    /// have not seen something, it is rarely more than `3 / n` of what they were drawn from.
    pub unseen: f64,
    /// What makes the figures doubtful.
    pub warnings: Vec<Warning>,
}

/// What was allocated by all sources.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Total {
    /// Bytes allocated, less those that were freed or given back explicitly: measured, unless readings came late.
    pub net: Figure,
    /// Bytes allocated.
    pub gross: Figure,
    /// Collection cycles that were begun. Measured.
    pub cycles: u64,
}

/// What one source has allocated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// Who.
    pub source: SourceId,
    /// Its share of all bytes, from 0 to 1.
    pub share: Figure,
    /// Bytes.
    pub bytes: Figure,
    /// How many blocks, made new or to a new size.
    pub count: Figure,
}

/// A figure, measured or estimated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// How much.
    pub value: f64,
    /// By how much the truth may be more or less, in 19 of 20 cases. `None` is a figure that was measured.
    pub error: Option<f64>,
}

impl Figure {
    /// Of something that was counted.
    pub fn measured(value: f64) -> Self {
        Self { value, error: None }
    }

    /// How much of it the error is; 0 of what was measured.
    pub fn relative_error(self) -> f64 {
        self.error.map_or(0.0, |error| error / self.value.max(1.0))
    }

    /// Of something that was estimated, in all likelihood to within `error`.
    pub fn estimated(value: f64, error: f64) -> Self {
        Self { value, error: Some(error) }
    }
}
