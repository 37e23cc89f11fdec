//! Gathers samples by the turn that they belong to.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use lj_trace_profile::Frame;
use lj_trace_profile::model::RequestLabels;

use super::reason;

/// The most turns to gather at a time: one for each thread in a turn, and turns whose end was lost.
pub const MAX_TURNS: usize = 1024;

/// The most different stacks of a turn to keep.
pub const MAX_STACKS: usize = 500;

/// The place where Lua was entered: the outermost coroutine and its C frame.
pub type LuaEntry = Option<(u64, u64)>;

/// A stack in a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TurnStack {
    /// Where Lua was entered.
    pub entry: LuaEntry,
    /// The nanoseconds that it counts for.
    pub weight: u64,
    /// The frames, innermost first.
    pub frames: Vec<Arc<Frame>>,
    /// The request that it belongs to, if there is one and it is known.
    pub request: Option<RequestLabels>,
}

impl TurnStack {
    fn is_same(&self, other: &Self) -> bool {
        (self.entry, &self.request) == (other.entry, &other.request) && self.frames == other.frames
    }
}

/// The samples of one turn.
#[derive(Clone, Debug, Default)]
pub struct TurnSamples {
    stacks: Vec<TurnStack>,
    count: u64,
    beyond: u64,
    /// The current entry of Lua, and its nanoseconds so far.
    current: Option<(LuaEntry, u64)>,
    /// The longest earlier entry, and the number of earlier entries.
    longest: Option<(LuaEntry, u64)>,
    entries: usize,
    /// The reasons of waits, with their nanoseconds.
    reasons: BTreeMap<String, u64>,
    weight: u64,
}

impl TurnSamples {
    /// Adds a sample.
    pub fn add(&mut self, sample: TurnStack) {
        let TurnStack { entry, weight, .. } = sample;
        self.count += 1;
        self.weight += weight;
        if let Some(reason) = sample.frames.first().and_then(|frame| reason(frame)) {
            *self.reasons.entry(reason.to_owned()).or_default() += weight;
        }
        match &mut self.current {
            Some((current, so_far)) if *current == entry => *so_far += weight,
            current => {
                let before = current.replace((entry, weight));
                self.note_entry(before);
            }
        }
        // Most samples have the same stack as the previous one.
        if let Some(same) = self.stacks.iter_mut().rev().find(|own| own.is_same(&sample)) {
            same.weight += weight;
        } else if self.stacks.len() < MAX_STACKS {
            self.stacks.push(sample);
        } else {
            self.beyond += weight;
        }
    }

    fn note_entry(&mut self, ended: Option<(LuaEntry, u64)>) {
        let Some((entry, weight)) = ended else { return };
        self.entries += usize::from(entry.is_some());
        if self.longest.is_none_or(|(_, longest)| weight > longest) {
            self.longest = Some((entry, weight));
        }
    }

    /// The number of entries of Lua, and the longest of them: where it entered Lua, and its nanoseconds.
    pub fn entries(&self) -> (usize, Option<(LuaEntry, u64)>) {
        let current = self.current.filter(|(_, weight)| self.longest.is_none_or(|(_, longest)| *weight > longest));
        let is_one_more = self.current.is_some_and(|(entry, _)| entry.is_some());
        (self.entries + usize::from(is_one_more), current.or(self.longest))
    }

    /// The stacks, each once.
    pub fn stacks(&self) -> &[TurnStack] {
        &self.stacks
    }

    /// The number of samples.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The nanoseconds of samples whose stacks had no room.
    pub fn beyond(&self) -> u64 {
        self.beyond
    }

    /// The nanoseconds of all samples.
    pub fn weight(&self) -> u64 {
        self.weight
    }

    /// The reasons of waits and their nanoseconds, the longest first.
    pub fn reasons(&self) -> Vec<(String, u64)> {
        let mut reasons: Vec<_> = self.reasons.iter().map(|(reason, weight)| (reason.clone(), *weight)).collect();
        reasons.sort_by_key(|(_, weight)| std::cmp::Reverse(*weight));
        reasons
    }
}

/// The turns under way.
#[derive(Debug, Default)]
pub struct Gathered {
    /// The turns by thread: a thread is in one turn at a time.
    threads: HashMap<u32, (u64, TurnSamples)>,
    /// Samples without room.
    pub lost: u64,
}

impl Gathered {
    /// Adds a sample of a thread in a turn of its loop. Samples of the thread's earlier turn are dropped: that turn was not
    /// too long.
    pub fn add(&mut self, (tid, turn): (u32, u64), sample: TurnStack) {
        if self.threads.len() >= MAX_TURNS && !self.threads.contains_key(&tid) {
            self.lost += 1;
            return;
        }
        let (known, samples) = self.threads.entry(tid).or_default();
        if *known > turn {
            // The stack was walked after the turn had ended.
            self.lost += 1;
            return;
        }
        if *known < turn {
            (*known, *samples) = (turn, TurnSamples::default());
        }
        samples.add(sample);
    }

    /// The samples of a turn that is over.
    pub fn take(&mut self, tid: u32, turn: u64) -> TurnSamples {
        match self.threads.remove(&tid) {
            Some((known, samples)) if known == turn => samples,
            Some(other) if other.0 > turn => {
                self.threads.insert(tid, other);
                TurnSamples::default()
            }
            _ => TurnSamples::default(),
        }
    }
}
