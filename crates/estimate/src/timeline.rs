//! The order of time: readings, samples and windows become slices.

use std::cmp::Ordering;
use std::collections::VecDeque;

use super::LONG_WINDOW;
use super::exact;
use super::tables::{self, TableLog};
use crate::observation::{ActivityId, CpuSample, Nanos, Reading, Window};

/// How much of the time outside of windows makes a slice.
const SLICE: Nanos = 10_000_000;

/// Where the rate changes, a slice may end after this.
const SHORTEST_SLICE: Nanos = 2_000_000;

/// A slice without a sample waits for one for this long.
const LONGEST_SLICE: Nanos = 40_000_000;

/// The rate at which is allocated near a window is that of this time before, and after: three readings, and somewhat
/// more, since they are not quite regular.
const NEAR: Nanos = 3_600_000;

/// Readings that are further apart came late, and tell nothing of what was allocated at once.
const ON_TIME: Nanos = 2_000_000;

/// Rates that differ by this factor are not taken for one.
const CHANGE: f64 = 3.0;

/// By this factor a rate must be off the middle of two others, to be nearer to one of them for certain.
const CLEAR: f64 = 1.2;

/// In bytes per nanosecond: whatever is less is taken for this.
const QUIET: f64 = 0.003;

/// Samples that wait for the counters of their time: more than there are at 1000 Hz on many CPUs, over the horizon.
const MOST_SAMPLES: usize = 500_000;

/// What is observed, until it is old enough to be cut into slices.
#[derive(Clone, Debug, Default)]
pub struct ObservedTimeline {
    /// Those that wait, and before them some that have passed.
    readings: VecDeque<Reading>,
    /// How many have passed; the last of them begins the next interval.
    passed: usize,
    /// By time: those that wait, and before them some that have passed.
    samples: VecDeque<CpuSample>,
    /// How many have passed.
    heard: usize,
    /// By the time of opening.
    windows: VecDeque<Window>,
    /// When the window before the first of those was closed.
    closed: Nanos,
    /// When the first of the windows was opened that have followed each other without a gap up to now.
    stretch: Option<Nanos>,
    /// What is known of string tables.
    pub tables: TableLog,
    /// The most events per nanosecond in a window so far.
    densest: f64,
    slice: Slice,
}

/// Some milliseconds outside of windows, with the windows amid them.
#[derive(Clone, Debug, Default)]
pub struct Slice {
    /// How long, without the windows.
    pub time: Nanos,
    /// What was allocated, without what was in the windows.
    pub volume: Volume,
    /// The most that was allocated between two readings, and how many readings there are.
    pub peak: f64,
    pub intervals: u32,
    /// What ran, and in how many samples.
    pub activities: Vec<(ActivityId, u32)>,
    /// The windows.
    pub windows: Vec<Settled>,
}

/// A window that is over.
#[derive(Clone, Debug)]
pub struct Settled {
    pub window: Window,
    /// The rate in bytes per nanosecond around it.
    pub rate: Option<f64>,
    /// About the rate in it.
    pub within: Option<f64>,
    /// Samples of CPU time in it.
    pub ran: f64,
}

/// What was allocated, in bytes, without string tables. A difference of two noisy numbers may be negative.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Volume {
    /// All, where the VM counts it.
    pub gross: f64,
    /// What was not freed explicitly, where the VM counts only that.
    pub net: f64,
}

impl Volume {
    /// What was allocated between two readings.
    fn between(from: &Reading, to: &Reading) -> Self {
        let tables = to.tables.since(&from.tables);
        let made = tables.made() as f64;
        match (from.gross, to.gross) {
            (Some(from), Some(to)) => Self { gross: to.saturating_sub(from) as f64 - made, net: 0.0 },
            _ => Self { gross: 0.0, net: to.net.saturating_sub(from.net) as f64 - (made - tables.freed as f64) },
        }
    }

    /// What was allocated in a window, as a reading would tell it.
    fn of(window: &Window, counted: bool) -> Self {
        if counted {
            Self { gross: exact::made(window) as f64, net: 0.0 }
        } else {
            Self { gross: 0.0, net: exact::net(window) }
        }
    }

    /// Both together, as a measure of how much.
    pub fn sum(&self) -> f64 {
        self.gross + self.net
    }

    pub fn add(&mut self, other: &Self) {
        self.gross += other.gross;
        self.net += other.net;
    }

    pub fn subtract(&mut self, other: &Self) {
        self.gross -= other.gross;
        self.net -= other.net;
    }
}

impl ObservedTimeline {
    /// Takes a reading; one out of order is left out, and `false`.
    pub fn reading(&mut self, reading: Reading) -> bool {
        if self.readings.back().is_some_and(|last| reading.at <= last.at || reading.net < last.net) {
            return false;
        }
        if self.readings.is_empty() {
            self.passed = 1;
        }
        let has_table = self.readings.back().is_some_and(|last| last.tables != reading.tables);
        self.readings.push_back(reading);
        if has_table {
            // What has passed is cut into slices.
            let passed = self.passed - 1;
            tables::move_back(&mut self.readings.make_contiguous()[passed..]);
        }
        true
    }

    /// Takes a sample, unless its time has passed.
    pub fn sample(&mut self, sample: CpuSample) {
        if sample.at < self.now() || self.samples.len() >= MOST_SAMPLES {
            return;
        }
        let at = self.samples.iter().rposition(|other| other.at <= sample.at).map_or(0, |at| at + 1);
        self.samples.insert(at, sample);
    }

    /// Takes a window. If its time has passed, the volume is returned that has wrongly become part of slices.
    pub fn window(&mut self, window: Window) -> Option<Volume> {
        if window.opened < self.now() {
            return Some(Volume::of(&window, self.readings.back().is_some_and(|reading| reading.gross.is_some())));
        }
        let at = self.windows.iter().rposition(|other| other.opened <= window.opened).map_or(0, |at| at + 1);
        self.windows.insert(at, window);
        None
    }

    /// Up to when all is cut into slices.
    fn now(&self) -> Nanos {
        self.passed.checked_sub(1).and_then(|last| self.readings.get(last)).map_or(0, |reading| reading.at)
    }

    /// Cuts what was before `until`. What is left of the last slice is one as well if that is the end of time.
    pub fn advance(&mut self, until: Nanos, mut done: impl FnMut(Slice)) {
        while let Some(to) = self.readings.get(self.passed).copied().filter(|to| to.at <= until) {
            let Some(from) = self.passed.checked_sub(1).and_then(|last| self.readings.get(last)).copied() else {
                break;
            };
            let open = self.interval(&from, &to, &mut done);
            self.passed += 1;
            if !open && self.ends_slice() {
                done(std::mem::take(&mut self.slice));
            }
            self.forget(from.at);
        }
        if until == Nanos::MAX {
            self.cut_short();
            if self.slice.time > 0 {
                done(std::mem::take(&mut self.slice));
            }
        }
    }

    /// Whether the slice ends at the last reading that has passed. It goes on up to a change that is near.
    fn ends_slice(&self) -> bool {
        let (slice, last) = (&self.slice, self.passed - 1);
        if slice.time >= SLICE && (!slice.activities.is_empty() || slice.time >= LONGEST_SLICE) {
            return !self.changes(last + 1) && !self.changes(last + 2);
        }
        slice.time >= SHORTEST_SLICE && self.changes(last)
    }

    /// Settles windows that were open at the last reading, as far as it got.
    fn cut_short(&mut self) {
        let Some(last) = self.readings.back() else { return };
        for window in self.windows.iter().filter(|window| window.opened < last.at && window.closed > last.at) {
            let part = (last.at - window.opened) as f64 / (window.closed - window.opened) as f64;
            let whole = Volume::of(window, last.gross.is_some());
            self.slice.volume.subtract(&Volume { gross: whole.gross * part, net: whole.net * part });
        }
    }

    /// Adds what was between two readings to the slice; `true` if that ends amid a window. Then the slice has part of
    /// what was allocated in that window, until the window's end is reached.
    fn interval(&mut self, from: &Reading, to: &Reading, done: &mut impl FnMut(Slice)) -> bool {
        let volume = Volume::between(from, to);
        self.tables.note(from, to, &self.samples);
        self.slice.volume.add(&volume);
        while let Some(sample) = self.samples.get(self.heard).filter(|sample| sample.at <= to.at) {
            self.heard += 1;
            let mut windows = self.windows.iter().take_while(|window| window.opened <= sample.at);
            if sample.at > from.at && sample.at >= self.closed && !windows.any(|window| sample.at < window.closed) {
                self.slice.ran(sample.activity);
            }
        }
        let mut outside = from.at;
        let mut inside = 0;
        let mut open = false;
        let mut i = 0;
        while let Some(window) = self.windows.get(i).filter(|window| window.opened < to.at) {
            let (begin, end) = (window.opened.max(outside), window.closed.min(to.at));
            inside += end.saturating_sub(begin);
            outside = outside.max(end);
            if window.closed > to.at {
                open = true;
                i += 1;
            } else if let Some(window) = self.windows.remove(i) {
                self.settle(window, to, done);
            }
        }
        self.slice.time += (to.at - from.at).saturating_sub(inside);
        self.slice.intervals += 1;
        if inside == 0 && self.closed <= from.at && to.at - from.at <= ON_TIME {
            self.slice.peak = self.slice.peak.max(volume.sum());
        }
        open
    }

    /// Puts a window that has ended into the slice, or between two.
    fn settle(&mut self, mut window: Window, to: &Reading, done: &mut impl FnMut(Slice)) {
        self.tables.take_out(&mut window, &self.readings);
        self.slice.volume.subtract(&Volume::of(&window, to.gross.is_some()));
        self.densest = self.densest.max(density(&window));
        let opened = *self.stretch.get_or_insert(window.opened);
        if self.windows.iter().any(|next| next.opened == window.closed) {
            return;
        }
        let (rate, side) = self.rate_near(opened, &window);
        self.closed = self.closed.max(window.closed);
        self.stretch = None;
        if window.closed.saturating_sub(opened) >= LONG_WINDOW {
            return;
        }
        if side == Side::Later {
            done(std::mem::take(&mut self.slice));
        }
        let ran = self.activities(window.opened, window.closed).count();
        let within = self.rate_within(&window);
        self.slice.windows.push(Settled { window, rate, within, ran: ran as f64 });
        if side == Side::Earlier {
            done(std::mem::take(&mut self.slice));
        }
    }

    /// The rate in bytes per nanosecond around a window, outside of all others. Where it is another before than after,
    /// what ran in the window tells to which side it belongs.
    fn rate_near(&self, opened: Nanos, window: &Window) -> (Option<f64>, Side) {
        let since = opened.saturating_sub(NEAR).max(self.closed);
        let next = self.windows.iter().map(|next| next.opened).find(|&opened| opened >= window.closed);
        let until = window.closed.saturating_add(NEAR).min(next.unwrap_or(Nanos::MAX));
        let (before, after) = (self.allocated(since, opened), self.allocated(window.closed, until));
        let together = before.and(&after).rate();
        if before.contrast(&after) < CHANGE {
            return (together, Side::Both);
        }
        let middle = (before.rate().unwrap_or(0.0).max(QUIET) * after.rate().unwrap_or(0.0).max(QUIET)).sqrt();
        let fast = match self.rate_within(window).map(|within| within / middle) {
            Some(factor) if factor > CLEAR => true,
            Some(factor) if factor * CLEAR < 1.0 => false,
            _ => {
                let ran: Vec<ActivityId> = self.activities(window.opened, window.closed).collect();
                let shared = |since, until| {
                    let around: Vec<ActivityId> = self.activities(since, until).collect();
                    ran.iter().filter(|activity| around.contains(activity)).count()
                };
                match shared(since, opened).cmp(&shared(window.closed, until)) {
                    Ordering::Equal => return (together, Side::Both),
                    order => (order == Ordering::Greater) == (before.rate() > after.rate()),
                }
            }
        };
        if fast == (before.rate() > after.rate()) {
            (before.rate(), Side::Earlier)
        } else {
            (after.rate(), Side::Later)
        }
    }

    /// About the rate within a window, from how far it is from the densest one, in which next to all time was spent on
    /// probes. Tells large rates from small ones, and no more.
    fn rate_within(&self, window: &Window) -> Option<f64> {
        let time = window.closed.saturating_sub(window.opened) as f64;
        let idle = (1.0 - window.events as f64 / time / self.densest).max(0.05);
        (self.densest > 0.0).then(|| exact::made(window) as f64 / (time * idle))
    }

    /// Whether the rate is another after the reading of this index than before, and differs nowhere near it as much.
    fn changes(&self, index: usize) -> bool {
        let contrast = |index: usize| {
            let at = self.readings.get(index).map_or(0, |reading| reading.at);
            let next = self.windows.front().map_or(Nanos::MAX, |next| next.opened);
            if at < self.closed || at > next {
                return 1.0;
            }
            let before = self.allocated(at.saturating_sub(NEAR).max(self.closed), at);
            before.contrast(&self.allocated(at, at.saturating_add(NEAR).min(next)))
        };
        let here = contrast(index);
        here >= CHANGE && here >= contrast(index - 1) && here > contrast(index + 1)
    }

    /// How much was allocated between the first and the last reading within about some time.
    fn allocated(&self, since: Nanos, until: Nanos) -> Allocated {
        let first = self.readings.partition_point(|reading| reading.at < since);
        let end = self.readings.partition_point(|reading| reading.at <= until);
        match (self.readings.get(first), end.checked_sub(1).and_then(|last| self.readings.get(last))) {
            (Some(from), Some(to)) if from.at < to.at => {
                Allocated { volume: Volume::between(from, to).sum(), time: to.at - from.at }
            }
            _ => Allocated::default(),
        }
    }

    /// What ran within some time.
    fn activities(&self, since: Nanos, until: Nanos) -> impl Iterator<Item = ActivityId> {
        let first = self.samples.partition_point(|sample| sample.at < since);
        let end = self.samples.partition_point(|sample| sample.at < until);
        self.samples.range(first..end.max(first)).map(|sample| sample.activity)
    }

    /// How many observations are kept.
    #[cfg(test)]
    pub fn waiting(&self) -> usize {
        self.readings.len() + self.samples.len() + self.windows.len()
    }

    /// Lets go what nothing after `now` refers to.
    fn forget(&mut self, now: Nanos) {
        while self.passed > 2 && self.readings[1].at + 2 * NEAR < now {
            self.readings.pop_front();
            self.passed -= 1;
        }
        while self.heard > 0 && self.samples.front().is_some_and(|first| first.at + LONG_WINDOW + 2 * NEAR < now) {
            self.samples.pop_front();
            self.heard -= 1;
        }
    }
}

/// How much was allocated within some time.
#[derive(Clone, Copy, Debug, Default)]
struct Allocated {
    volume: f64,
    time: Nanos,
}

/// Events per nanosecond in a window, if it has enough to tell.
fn density(window: &Window) -> f64 {
    let time = window.closed.saturating_sub(window.opened);
    if time > 500_000 && window.events >= 200 { window.events as f64 / time as f64 } else { 0.0 }
}

/// To which side of a change a window belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Earlier,
    Both,
    Later,
}

impl Allocated {
    fn and(&self, other: &Self) -> Self {
        Self { volume: self.volume + other.volume, time: self.time + other.time }
    }

    fn rate(&self) -> Option<f64> {
        (self.time > 0).then(|| self.volume / self.time as f64)
    }

    /// The larger of two rates over the other, 1 if one of them is not known.
    fn contrast(&self, other: &Self) -> f64 {
        match (self.rate(), other.rate()) {
            (Some(one), Some(other)) => one.max(other).max(QUIET) / one.min(other).max(QUIET),
            _ => 1.0,
        }
    }
}

impl Slice {
    /// Counts a sample.
    fn ran(&mut self, activity: ActivityId) {
        match self.activities.iter_mut().find(|(other, _)| *other == activity) {
            Some((_, count)) => *count += 1,
            None => self.activities.push((activity, 1)),
        }
    }

    /// The rate in bytes per nanosecond.
    pub fn rate(&self) -> f64 {
        if self.time == 0 { 0.0 } else { (self.volume.sum() / self.time as f64).max(0.0) }
    }
}
