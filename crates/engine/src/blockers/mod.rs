//! What has blocked an event loop: long turns, each with what was seen in it.
//!
//! The lengths of turns are measured; what a turn did is told by samples of the CPU and of waits, which carry the number of
//! their turn (`gather`). Pure logic: no kernel, no process.

mod blame;
mod gather;
mod longest;

pub use blame::{Blame, blame};
pub use gather::{Gathered, LuaEntry, MAX_STACKS, MAX_TURNS, TurnSamples, TurnStack};
pub use longest::Longest;

use std::collections::BTreeMap;

use lj_trace_common::turn::EndedTurn;
use lj_trace_profile::Frame;
use lj_trace_profile::model::RequestLabels;

/// A long turn, and what it was.
#[derive(Clone, Debug, PartialEq)]
pub struct Blocker {
    /// The turn.
    pub turn: EndedTurn,
    /// The process.
    pub pid: u32,
    /// Whether it has ended: recording may have ended before.
    pub has_ended: bool,
    /// Samples of it: ticks and waits.
    pub samples: u64,
    /// What it waited for, and for how many nanoseconds as far as samples tell, most first. The CPU is not among it.
    pub reasons: Vec<(String, u64)>,
    /// How often Lua was entered anew, as far as samples tell.
    pub entries: usize,
    /// The longest of these: its share of the turn as samples have it, from 0 to 1.
    pub longest_entry: f64,
    /// Where it was; [`None`] without samples, or if the kernel did not show what most of it was.
    pub blame: Option<Blame>,
    /// The request that most of what is to blame was for, if one is known.
    pub request: Option<RequestLabels>,
    /// For how many nanoseconds samples stand that there was no room for.
    pub beyond: u64,
}

/// What a turn spent most of its time with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockerKind {
    /// It ran.
    Cpu,
    /// It waited within a call.
    Blocked,
    /// It could have run, and others did.
    Preempted,
    /// The kernel did not show when its thread came back to a CPU.
    Unknown,
}

impl BlockerKind {
    /// In a word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Blocked => "blocked",
            Self::Preempted => "preempted",
            Self::Unknown => "unknown",
        }
    }
}

impl Blocker {
    /// What there is to say of a turn with these samples.
    pub fn new(pid: u32, turn: EndedTurn, has_ended: bool, samples: &TurnSamples) -> Self {
        let all = samples.weight();
        let (entries, longest) = samples.entries();
        let longest_entry = longest.map_or(0.0, |(_, weight)| weight as f64 / all.max(1) as f64);
        // An entry that took most of it is what is to blame, else all of it is.
        let own = |stack: &&TurnStack| longest.is_none_or(|(entry, _)| longest_entry < 0.5 || stack.entry == entry);
        let blamed: Vec<&TurnStack> = samples.stacks().iter().filter(own).collect();
        let stacks = blamed.iter().map(|stack| (stack.weight, &stack.frames[..]));
        let stacks: Vec<(u64, &[_])> = stacks.chain((turn.unseen != 0).then_some((turn.unseen, &[][..]))).collect();
        let blame = blame(&stacks).filter(|_| 2 * turn.unseen < turn.length());
        let request = blame.as_ref().and_then(|_| request_of_most(&blamed, turn.unseen)).cloned();
        let (count, beyond) = (samples.count(), samples.beyond());
        let reasons = samples.reasons();
        Self { turn, pid, has_ended, samples: count, reasons, entries, longest_entry, blame, request, beyond }
    }

    /// For how many nanoseconds it ran, waited within a call, and waited for a CPU, and for how many that is not known.
    pub fn parts(&self) -> [u64; 4] {
        let EndedTurn { waited, preempted, unseen, .. } = self.turn;
        let waited = waited.min(self.turn.length());
        let preempted = preempted.min(waited);
        let unseen = unseen.min(self.turn.length() - waited);
        [self.turn.length() - waited - unseen, waited - preempted, preempted, unseen]
    }

    /// What it spent most of its time with.
    pub fn kind(&self) -> BlockerKind {
        let [cpu, blocked, preempted, unseen] = self.parts();
        if unseen > cpu.max(blocked).max(preempted) {
            BlockerKind::Unknown
        } else if blocked >= cpu && blocked >= preempted {
            BlockerKind::Blocked
        } else if cpu >= preempted {
            BlockerKind::Cpu
        } else {
            BlockerKind::Preempted
        }
    }

    /// Whether it was long since it had many entries, none of which took most of it.
    pub fn is_of_many(&self) -> bool {
        self.entries > 2 && self.longest_entry < 0.5
    }
}

/// The request that more than half of this was for, where nobody knows it of so many nanoseconds more.
fn request_of_most<'s>(stacks: &[&'s TurnStack], unseen: u64) -> Option<&'s RequestLabels> {
    let mut weights: BTreeMap<&RequestLabels, u64> = BTreeMap::new();
    for stack in stacks {
        if let Some(request) = &stack.request {
            *weights.entry(request).or_default() += stack.weight;
        }
    }
    let all = stacks.iter().map(|stack| stack.weight).sum::<u64>() + unseen;
    weights.into_iter().find(|(_, weight)| 2 * weight > all).map(|(request, _)| request)
}

/// What a thread waits for in this frame, if it is a wait for something else than a CPU.
fn reason(frame: &Frame) -> Option<&str> {
    frame.waits_for().filter(|cause| *cause != "CPU")
}

#[cfg(test)]
mod tests;
