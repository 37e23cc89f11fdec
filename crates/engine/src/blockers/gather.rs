//! Samples, by the turn that they are in.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use lj_trace_profile::Frame;
use lj_trace_profile::model::RequestLabels;

use super::reason;

/// So many turns are gathered for at once: one for each thread that is in a turn, and those whose end was lost.
pub const MAX_TURNS: usize = 1024;

/// So many different stacks of a turn are kept.
pub const MAX_STACKS: usize = 500;

/// Where Lua was entered: the outermost coroutine and its C frame.
pub type LuaEntry = Option<(u64, u64)>;

/// A stack of a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TurnStack {
    /// Where Lua was entered.
    pub entry: LuaEntry,
    /// For how many nanoseconds it stands.
    pub weight: u64,
    /// Innermost first.
    pub frames: Vec<Arc<Frame>>,
    /// The request that it was for, if there is one that is known.
    pub request: Option<RequestLabels>,
}

impl TurnStack {
    fn is_same(&self, other: &Self) -> bool {
        (self.entry, &self.request) == (other.entry, &other.request) && self.frames == other.frames
    }
}

/// What was seen in one turn.
#[derive(Clone, Debug, Default)]
pub struct TurnSamples {
    stacks: Vec<TurnStack>,
    count: u64,
    beyond: u64,
    /// The entry that is under way, and how long it has been.
    current: Option<(LuaEntry, u64)>,
    /// The longest one before, and how many there were before.
    longest: Option<(LuaEntry, u64)>,
    entries: usize,
    /// What was waited for.
    reasons: BTreeMap<String, u64>,
    weight: u64,
}

impl TurnSamples {
    /// One more.
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
        // Most are the same as the last one.
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

    /// How many entries of Lua there were, and the longest stretch of the turn: where it entered Lua, and for how many
    /// nanoseconds it was.
    pub fn entries(&self) -> (usize, Option<(LuaEntry, u64)>) {
        let current = self.current.filter(|(_, weight)| self.longest.is_none_or(|(_, longest)| *weight > longest));
        let is_one_more = self.current.is_some_and(|(entry, _)| entry.is_some());
        (self.entries + usize::from(is_one_more), current.or(self.longest))
    }

    /// The stacks, each once.
    pub fn stacks(&self) -> &[TurnStack] {
        &self.stacks
    }

    /// How many samples there were.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// For how many nanoseconds samples stand whose stacks there was no room for.
    pub fn beyond(&self) -> u64 {
        self.beyond
    }

    /// For how many nanoseconds all of them stand.
    pub fn weight(&self) -> u64 {
        self.weight
    }

    /// What was waited for, and for how many nanoseconds, most first.
    pub fn reasons(&self) -> Vec<(String, u64)> {
        let mut reasons: Vec<_> = self.reasons.iter().map(|(reason, weight)| (reason.clone(), *weight)).collect();
        reasons.sort_by_key(|(_, weight)| std::cmp::Reverse(*weight));
        reasons
    }
}

/// The turns that are under way.
#[derive(Debug, Default)]
pub struct Gathered {
    /// By thread: a thread is in one turn at a time.
    threads: HashMap<u32, (u64, TurnSamples)>,
    /// Samples that there was no room for.
    pub lost: u64,
}

impl Gathered {
    /// A sample of a thread in a turn of its loop. What was gathered of an earlier turn is forgotten: it was not too long.
    pub fn add(&mut self, (tid, turn): (u32, u64), sample: TurnStack) {
        if self.threads.len() >= MAX_TURNS && !self.threads.contains_key(&tid) {
            self.lost += 1;
            return;
        }
        let (known, samples) = self.threads.entry(tid).or_default();
        if *known > turn {
            // Its stack was walked when the turn had ended.
            self.lost += 1;
            return;
        }
        if *known < turn {
            (*known, *samples) = (turn, TurnSamples::default());
        }
        samples.add(sample);
    }

    /// What was seen in a turn that is over.
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
