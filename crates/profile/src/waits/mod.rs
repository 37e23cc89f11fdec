//! Where coroutines wait: found by occasional snapshots ("looks") of all coroutines.
//!
//! Each look stands for a stretch of time, and happens at a random moment in it. So the number of coroutines that a
//! look finds at a place, times the length of the stretch, is an unbiased estimate of the time that coroutines have
//! waited there, however long each wait was: a wait of length `w` is found with probability `w / stretch`, and then
//! counts for a whole stretch. The length of waits is another question, which pairs of looks answer ([`lengths`]).

mod callers;
mod groups;
pub mod lengths;
mod text;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use lj_trace_estimate::variance::Variance;
use lj_trace_text::Room;

pub use groups::GroupTime;
pub use lengths::{Length, Pairs};
pub use text::{WaitPlace, time_of};

use crate::Frame;
use crate::model::{FrameId, Measure, Profile, StackId, StackTable, Unit};

/// Time of waiting.
pub const WAIT: Measure = Measure::new("wait", Unit::Nanoseconds, 0);
/// How many coroutines wait at a time, on average.
pub const COROUTINES: Measure = Measure::new("coroutines", Unit::Coroutines, 1);
/// The estimated number of waits.
pub const WAITS: Measure = Measure::new("waits", Unit::Events, 2);

/// Memory for stacks, in bytes, as in a CPU profile.
const STACKS: usize = 16 << 20;

/// Where coroutines wait, and how long.
#[derive(Debug, Default)]
pub struct WaitProfile {
    stacks: StackTable,
    /// By the stack's number.
    figures: Vec<Figures>,
    /// What all stacks of a group have in common, by the group's name.
    groups: BTreeMap<Arc<str>, Figures>,
    losses: BTreeMap<String, u64>,
    about: AboutLooks,
    /// What was recorded, as a title.
    pub title: String,
    /// The process, if there is one.
    pub pid: Option<u32>,
}

/// What is known of one stack.
#[derive(Clone, Debug, Default)]
struct Figures {
    /// What the last look that found a coroutine here counted, in nanoseconds, and the number of that look.
    last: (f64, u64),
    /// What the first look of all counted, squared: as if there was nobody before. So a count that never changes has an
    /// error, too.
    first: f64,
    differences: Differences,
    pairs: Pairs,
}

/// The differences between what each look counted and what the next one did.
#[derive(Clone, Copy, Debug, Default)]
struct Differences {
    /// The sum of their squares.
    squares: f64,
    /// The sum of their fourth powers.
    fourths: f64,
}

impl Differences {
    fn add(&mut self, difference: f64) {
        self.squares += difference.powi(2);
        self.fourths += difference.powi(4);
    }

    /// How well the sum of the squares is known, in degrees of freedom: twice its square over its own variance. That is the
    /// sum of the fourth powers if the counts are normally distributed, since each count is in two differences.
    fn freedom(&self) -> f64 {
        if self.fourths > 0.0 { (2.0 * self.squares.powi(2) / self.fourths).min(CERTAIN) } else { CERTAIN }
    }
}

/// What is known of all looks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AboutLooks {
    /// The number of looks.
    pub looks: u64,
    /// The time that the looks stand for.
    pub time: Duration,
    /// The summed lifetime of all coroutines that had not ended, whatever they did, in seconds.
    pub there: f64,
}

/// The result of one look.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WaitLook {
    /// How much time the look stands for.
    pub stretch: Duration,
    /// How many coroutines there were that had not ended.
    pub there: f64,
    /// How many of them waited with each stack: all were counted, or the number is estimated from a part of them.
    pub waiting: Vec<(StackId, f64)>,
}

impl WaitProfile {
    /// An empty profile.
    pub fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), ..Self::default() }
    }

    /// From now on shows the root of each stack, even if it is the only one: it is a group.
    pub fn show_roots(&mut self) {
        self.stacks.show_roots();
    }

    /// The number of a stack, root first.
    pub fn stack(&mut self, frames: impl IntoIterator<Item = Frame>) -> StackId {
        let frames: Vec<FrameId> = frames.into_iter().map(|frame| self.stacks.intern(frame)).collect();
        self.stacks.stack(&frames)
    }

    /// The number of the stack with the frames of both stacks, `outer` first. If these are more than `most`, it is the
    /// number of the `inner` stack.
    pub fn join(&mut self, outer: StackId, inner: StackId, most: usize) -> StackId {
        let frames_of = |stack| self.stacks.all_frames(stack).map_or(&[][..], |(_, frames)| frames);
        let is_code = |id: &&FrameId| !matches!(self.stacks.frame(**id), Some(Frame::Root { .. }));
        let frames: Vec<FrameId> =
            frames_of(outer).iter().chain(frames_of(inner).iter().filter(is_code)).copied().collect();
        if frames.len() > most { inner } else { self.stacks.stack(&frames) }
    }

    /// Adds the result of a look.
    pub fn add(&mut self, look: &WaitLook) {
        let nanoseconds = look.stretch.as_nanos() as f64;
        self.about.looks += 1;
        self.about.time += look.stretch;
        self.about.there += look.there * look.stretch.as_secs_f64();
        for &(stack, count) in &look.waiting {
            let weight = nanoseconds * count;
            self.stacks.add(stack, WAIT.index, weight as u64);
            let number = self.about.looks;
            self.of(stack).note(weight, number);
        }
        groups::note(self, look, nanoseconds);
    }

    /// Adds a pair of looks, `lag` apart: `same` coroutines were in the same wait in both, and `gone` others, which the
    /// first look had found there, had moved on by the second.
    pub fn pair(&mut self, stack: StackId, lag: Duration, same: u64, gone: u64) {
        self.of(stack).pairs.add(lag, same, gone);
    }

    /// Removes time that was added for coroutines that no longer existed.
    pub fn take_back(&mut self, stack: StackId, time: Duration) {
        self.stacks.take(stack, WAIT.index, u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    fn of(&mut self, stack: StackId) -> &mut Figures {
        if stack.index() >= self.figures.len() {
            self.figures.resize_with(stack.index() + 1, Figures::default);
        }
        &mut self.figures[stack.index()]
    }

    /// Folds the rarest stacks once all stacks take too much memory. If their numbers have changed, returns the new
    /// number of each stack, indexed by its old number.
    pub fn keep_within_room(&mut self) -> Option<Vec<StackId>> {
        let own = self.figures.len() * size_of::<Figures>();
        if self.stacks.bytes() + own <= STACKS {
            return None;
        }
        let moved = self.stacks.fold_rare(STACKS / 4);
        for (figures, to) in std::mem::take(&mut self.figures).into_iter().zip(&moved) {
            self.of(*to).merge(&figures);
        }
        Some(moved)
    }

    /// Counts losses, by reason.
    pub fn lose(&mut self, reason: &str, count: u64) {
        if count > 0 {
            *self.losses.entry(reason.to_owned()).or_insert(0) += count;
        }
    }

    /// What is known of all looks.
    pub fn about(&self) -> AboutLooks {
        self.about
    }

    /// Forgets all figures and losses, for the next interval. Stacks keep their numbers.
    pub fn begin_anew(&mut self) {
        let stacks: Vec<StackId> = self.stacks.numbered().map(|(id, _)| id).collect();
        for stack in stacks {
            [WAIT, COROUTINES, WAITS].iter().for_each(|measure| self.stacks.take(stack, measure.index, u64::MAX));
        }
        (self.figures, self.groups, self.losses, self.about) = Default::default();
    }

    /// Computes from the time the other two weights of each stack: how many coroutines wait at a time, and how many
    /// waits there were. Call this before a format is written.
    pub fn weigh(&mut self) {
        let seconds = self.about.time.as_secs_f64().max(1e-9);
        let of = |(stack, row): (StackId, crate::model::Row<'_>)| {
            let wait = row.weights[WAIT.index] as f64 / 1e9;
            let waits = self.length(stack).map_or(0.0, |length| wait / length.seconds);
            (stack, [wait / seconds, waits])
        };
        let all: Vec<(StackId, [f64; 2])> = self.stacks.numbered().map(of).collect();
        for (stack, values) in all {
            for (measure, value) in [COROUTINES, WAITS].into_iter().zip(values) {
                self.stacks.take(stack, measure.index, u64::MAX);
                self.stacks.add(stack, measure.index, value.round() as u64);
            }
        }
    }

    /// The mean length of a wait with this stack; [`None`] if no pair of looks tells.
    pub fn length(&self, stack: StackId) -> Option<Length> {
        self.figures.get(stack.index())?.pairs.length()
    }

    /// The variance of the time of waiting with this stack, in square nanoseconds.
    fn variance(&self, stack: StackId) -> Variance {
        let mut variance = Variance::default();
        if let Some(figures) = self.figures.get(stack.index()) {
            figures.add_to(&mut variance, self.about.looks);
        }
        variance
    }

    /// The places where coroutines wait, longest time first.
    pub fn places(&self) -> Vec<WaitPlace> {
        text::places(self)
    }

    /// How long coroutines of each group have waited, if stacks are grouped.
    pub fn groups(&self) -> Vec<GroupTime> {
        groups::times(self)
    }

    /// A sentence about the waits; nothing if no coroutine waits.
    pub fn sentence(&self) -> Option<String> {
        text::sentence(self)
    }
}

impl Figures {
    /// Notes that a look has counted `weight` here.
    fn note(&mut self, weight: f64, look: u64) {
        let (last, number) = self.last;
        match look {
            1 => self.first = weight.powi(2),
            _ if number + 1 == look => self.differences.add(weight - last),
            // The looks in between found no coroutine here.
            _ => [last, weight].into_iter().for_each(|difference| self.differences.add(difference)),
        }
        self.last = (weight, look);
    }

    /// Adds the variance of the sum of all looks.
    fn add_to(&self, variance: &mut Variance, looks: u64) {
        let (mut differences, (last, number)) = (self.differences, self.last);
        if number < looks {
            differences.add(last);
        }
        let sum = (self.first + differences.squares) / 2.0;
        if sum > 0.0 {
            variance.add(sum, differences.freedom());
        }
    }

    fn merge(&mut self, other: &Self) {
        if other.last.1 > self.last.1 {
            self.last = other.last;
        }
        self.first += other.first;
        self.differences.squares += other.differences.squares;
        self.differences.fourths += other.differences.fourths;
        self.pairs.merge(&other.pairs);
    }
}

impl Profile for WaitProfile {
    fn weighted(&self) -> &StackTable {
        &self.stacks
    }

    fn title(&self) -> String {
        if self.title.is_empty() { "waits of coroutines".to_owned() } else { self.title.clone() }
    }

    fn subtitle(&self) -> String {
        let AboutLooks { looks, time, .. } = self.about;
        let waiting = self.total() as f64 / (time.as_nanos() as f64).max(1.0);
        let lost = match self.losses.values().sum::<u64>() {
            0 => String::new(),
            lost => format!(", {lost} not told"),
        };
        format!("{waiting:.1} coroutines wait at a time, from {looks} looks{lost}: green Lua, orange C")
    }

    fn measures(&self) -> Vec<Measure> {
        vec![WAIT, COROUTINES, WAITS]
    }

    fn shown(&self) -> Measure {
        WAIT
    }

    fn process(&self) -> Option<u32> {
        self.pid
    }

    fn errors(&self, measure: &Measure) -> std::collections::HashMap<StackId, f64> {
        let seconds = self.about.time.as_nanos() as f64;
        let unit = match measure.index {
            0 => 1.0,
            1 => seconds.max(1.0),
            _ => return std::collections::HashMap::new(),
        };
        let shown = self.stacks.numbered().filter(|(_, row)| row.weights[WAIT.index] > 0);
        shown.map(|(stack, _)| (stack, self.variance(stack).error(CERTAIN) / unit)).collect()
    }

    fn losses(&self) -> &BTreeMap<String, u64> {
        &self.losses
    }

    fn write_text(&self, room: Room, out: &mut dyn io::Write) -> io::Result<()> {
        text::write(self, room, out)
    }
}

/// The degrees of freedom of a variance that is certain.
const CERTAIN: f64 = 1e9;

#[cfg(test)]
mod tests;
