//! Puts readings, samples and windows into the order of time, and cuts that into slices.

use std::cmp::Ordering;
use std::collections::VecDeque;

use super::LONG_WINDOW;
use super::exact;
use super::tables::{self, TableLog};
use crate::observation::{ActivityId, CpuSample, Nanos, Reading, Window};

/// The time outside of windows that makes a slice, in nanoseconds.
const SLICE: Nanos = 10_000_000;

/// If the rate changes, a slice may end after this time already.
const SHORTEST_SLICE: Nanos = 2_000_000;

/// The longest time that a slice without samples waits for one.
const LONGEST_SLICE: Nanos = 40_000_000;

/// The time before and after a window from which the rate near the window is taken: three readings and a bit more, since
/// readings are not quite regular.
const NEAR: Nanos = 3_600_000;

/// Readings that are further apart came late, and do not show what was allocated at once.
const ON_TIME: Nanos = 2_000_000;

/// Rates that differ by this factor or more count as different.
const CHANGE: f64 = 3.0;

/// A rate is clearly nearer to one of two others if it is off their middle by this factor.
const CLEAR: f64 = 1.2;

/// The least rate, in bytes per nanosecond. Lower rates count as this one.
const QUIET: f64 = 0.003;

/// The most samples that wait for readings of their time: more than 1000 Hz on many CPUs take within the horizon.
const MOST_SAMPLES: usize = 500_000;

/// Observations, until they are old enough to be cut into slices.
#[derive(Clone, Debug, Default)]
pub struct ObservedTimeline {
    /// Waiting readings, and before them some that have passed.
    readings: VecDeque<Reading>,
    /// The number of passed readings. The last of them begins the next interval.
    passed: usize,
    /// By time: waiting samples, and before them some that have passed.
    samples: VecDeque<CpuSample>,
    /// The number of passed samples.
    heard: usize,
    /// Waiting windows, by the time of opening.
    windows: VecDeque<Window>,
    /// When the window before the first waiting one was closed.
    closed: Nanos,
    /// When the current gapless series of windows began.
    stretch: Option<Nanos>,
    /// What is known about string tables.
    pub tables: TableLog,
    /// The most events per nanosecond in a window so far.
    densest: f64,
    slice: Slice,
}

/// Some milliseconds outside of windows, with the windows inside them.
#[derive(Clone, Debug, Default)]
pub struct Slice {
    /// The length without the windows.
    pub time: Nanos,
    /// The allocations without those in the windows.
    pub volume: Volume,
    /// The most that was allocated between two readings, and the number of intervals between readings.
    pub peak: f64,
    pub intervals: u32,
    /// What ran, with the number of samples.
    pub activities: Vec<(ActivityId, u32)>,
    /// The windows.
    pub windows: Vec<Settled>,
}

/// A window that has ended, with what was observed around it.
#[derive(Clone, Debug)]
pub struct Settled {
    pub window: Window,
    /// The rate in bytes per nanosecond around it.
    pub rate: Option<f64>,
    /// The approximate rate inside it.
    pub within: Option<f64>,
    /// The samples of CPU time inside it.
    pub ran: f64,
}

/// Allocated bytes without string tables. May be negative, as a difference of two noisy numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Volume {
    /// All allocated bytes, if the VM counts them.
    pub gross: f64,
    /// The bytes that were not freed explicitly, if the VM counts only these.
    pub net: f64,
}

impl Volume {
    /// The allocations between two readings.
    fn between(from: &Reading, to: &Reading) -> Self {
        let tables = to.tables.since(&from.tables);
        let made = tables.made() as f64;
        match (from.gross, to.gross) {
            (Some(from), Some(to)) => Self { gross: to.saturating_sub(from) as f64 - made, net: 0.0 },
            _ => Self { gross: 0.0, net: to.net.saturating_sub(from.net) as f64 - (made - tables.freed as f64) },
        }
    }

    /// The allocations in a window, in the terms of a reading.
    fn of(window: &Window, counted: bool) -> Self {
        if counted {
            Self { gross: exact::made(window) as f64, net: 0.0 }
        } else {
            Self { gross: 0.0, net: exact::net(window) }
        }
    }

    /// The sum of both, as a measure of the amount.
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
    /// Takes a reading. Ignores a reading that is out of order, and returns `false` for it.
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
            // Readings that have passed are already in slices, so they stay as they are.
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

    /// Takes a window. If its time has passed, returns the volume that was wrongly counted for slices.
    pub fn window(&mut self, window: Window) -> Option<Volume> {
        if window.opened < self.now() {
            return Some(Volume::of(&window, self.readings.back().is_some_and(|reading| reading.gross.is_some())));
        }
        let at = self.windows.iter().rposition(|other| other.opened <= window.opened).map_or(0, |at| at + 1);
        self.windows.insert(at, window);
        None
    }

    /// The time up to which everything is cut into slices.
    fn now(&self) -> Nanos {
        self.passed.checked_sub(1).and_then(|last| self.readings.get(last)).map_or(0, |reading| reading.at)
    }

    /// Cuts everything before `until` into slices. At the end of time, the remainder becomes a slice as well.
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

    /// Whether the slice ends at the last passed reading. A slice goes on to a change that is near.
    fn ends_slice(&self) -> bool {
        let (slice, last) = (&self.slice, self.passed - 1);
        if slice.time >= SLICE && (!slice.activities.is_empty() || slice.time >= LONGEST_SLICE) {
            return !self.changes(last + 1) && !self.changes(last + 2);
        }
        slice.time >= SHORTEST_SLICE && self.changes(last)
    }

    /// Settles windows that were open at the last reading, up to that reading.
    fn cut_short(&mut self) {
        let Some(last) = self.readings.back() else { return };
        for window in self.windows.iter().filter(|window| window.opened < last.at && window.closed > last.at) {
            let part = (last.at - window.opened) as f64 / (window.closed - window.opened) as f64;
            let whole = Volume::of(window, last.gross.is_some());
            self.slice.volume.subtract(&Volume { gross: whole.gross * part, net: whole.net * part });
        }
    }

    /// Adds the interval between two readings to the slice. Returns `true` if the interval ends inside a window. The slice
    /// then includes part of that window's allocations until the end of the window is reached.
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

    /// Puts a window that has ended into the slice, or between two slices.
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

    /// The rate around a window in bytes per nanosecond, outside of all other windows. If the rate differs before and after
    /// the window, the activities in the window decide to which side it belongs.
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

    /// The approximate rate inside a window, from comparing it to the densest window, in which probes took nearly all the
    /// time. It only tells large rates from small ones.
    fn rate_within(&self, window: &Window) -> Option<f64> {
        let time = window.closed.saturating_sub(window.opened) as f64;
        let idle = (1.0 - window.events as f64 / time / self.densest).max(0.05);
        (self.densest > 0.0).then(|| exact::made(window) as f64 / (time * idle))
    }

    /// Whether the rate after the reading at this index differs from the rate before, and by more than at any reading near
    /// it.
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

    /// The bytes allocated between the first and the last reading in this time.
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

    /// The activities in this time.
    fn activities(&self, since: Nanos, until: Nanos) -> impl Iterator<Item = ActivityId> {
        let first = self.samples.partition_point(|sample| sample.at < since);
        let end = self.samples.partition_point(|sample| sample.at < until);
        self.samples.range(first..end.max(first)).map(|sample| sample.activity)
    }

    /// The number of observations that are kept.
    #[cfg(test)]
    pub fn waiting(&self) -> usize {
        self.readings.len() + self.samples.len() + self.windows.len()
    }

    /// Drops observations that nothing after `now` needs.
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

/// The bytes allocated in some time.
#[derive(Clone, Copy, Debug, Default)]
struct Allocated {
    volume: f64,
    time: Nanos,
}

/// Events per nanosecond in a window, if it has enough of them.
fn density(window: &Window) -> f64 {
    let time = window.closed.saturating_sub(window.opened);
    if time > 500_000 && window.events >= 200 { window.events as f64 / time as f64 } else { 0.0 }
}

/// The side of a change to which a window belongs.
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

    /// The ratio of the larger rate to the smaller one; 1 if one of them is not known.
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
