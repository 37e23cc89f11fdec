//! Finds what has blocked an event loop: long turns, each with its samples.
//!
//! The lengths of turns are measured. Samples of the CPU and of waits, which carry the number of their turn, show what
//! happened in it (`gather`). This module is pure logic: no kernel, no process.

mod blame;
mod gather;
mod longest;

pub use blame::{Blame, blame};
pub use gather::{Gathered, LuaEntry, MAX_STACKS, MAX_TURNS, TurnSamples, TurnStack};
pub use longest::Longest;

use std::collections::BTreeMap;

use lj_trace_common::turn::EndedTurn;
use lj_trace_profile::Frame;
use lj_trace_profile::model::{RequestKey, RequestLabels};

/// A long turn, and what it did.
#[derive(Clone, Debug, PartialEq)]
pub struct Blocker {
    /// The turn.
    pub turn: EndedTurn,
    /// The process id.
    pub pid: u32,
    /// Whether the turn has ended. It has not if the recording ended first.
    pub has_ended: bool,
    /// The number of its samples: ticks and waits.
    pub samples: u64,
    /// The reasons of its waits with their nanoseconds according to samples, the longest first. Waits for a CPU are not
    /// included.
    pub reasons: Vec<(String, u64)>,
    /// How often Lua was entered, according to samples.
    pub entries: usize,
    /// The share of the longest entry in the turn according to samples, from 0 to 1.
    pub longest_entry: f64,
    /// The function and line to blame; [`None`] without samples, or if the kernel did not show most of the turn.
    pub blame: Option<Blame>,
    /// The request of most samples of the function to blame, if it is known.
    pub request: Option<RequestLabels>,
    /// The nanoseconds of samples that had no room.
    pub beyond: u64,
}

/// What a turn spent most of its time on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockerKind {
    /// The thread ran.
    Cpu,
    /// The thread waited inside a call.
    Blocked,
    /// The thread was ready to run, but other threads had the CPU.
    Preempted,
    /// The kernel did not show when the thread came back to a CPU.
    Unknown,
}

impl BlockerKind {
    /// The kind in a word.
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
    /// A long turn with these samples.
    pub fn new(pid: u32, turn: EndedTurn, has_ended: bool, samples: &TurnSamples) -> Self {
        let all = samples.weight();
        let (entries, longest) = samples.entries();
        let longest_entry = longest.map_or(0.0, |(_, weight)| weight as f64 / all.max(1) as f64);
        // If a single entry took most of the turn, blame that one; otherwise blame the whole turn.
        let own = |stack: &&TurnStack| longest.is_none_or(|(entry, _)| longest_entry < 0.5 || stack.entry == entry);
        let blamed: Vec<&TurnStack> = samples.stacks().iter().filter(own).collect();
        let stacks = blamed.iter().map(|stack| (stack.weight, &stack.frames[..]));
        let stacks: Vec<(u64, &[_])> = stacks.chain((turn.unseen != 0).then_some((turn.unseen, &[][..]))).collect();
        let blame = blame(&stacks).filter(|_| 2 * turn.unseen < turn.length());
        let request = blame.as_ref().and_then(|_| request_of_most(&blamed, turn.unseen));
        let (count, beyond) = (samples.count(), samples.beyond());
        let reasons = samples.reasons();
        Self { turn, pid, has_ended, samples: count, reasons, entries, longest_entry, blame, request, beyond }
    }

    /// The nanoseconds that the turn ran, waited inside a call, waited for a CPU, and that are unknown.
    pub fn parts(&self) -> [u64; 4] {
        let EndedTurn { waited, preempted, unseen, .. } = self.turn;
        let waited = waited.min(self.turn.length());
        let preempted = preempted.min(waited);
        let unseen = unseen.min(self.turn.length() - waited);
        [self.turn.length() - waited - unseen, waited - preempted, preempted, unseen]
    }

    /// What the turn spent most of its time on.
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

    /// Whether the turn was long because of many entries, none of which took most of it.
    pub fn is_of_many(&self) -> bool {
        self.entries > 2 && self.longest_entry < 0.5
    }
}

/// The request of more than half of these stacks, when `unseen` further nanoseconds have no known request. If it was in no plugin,
/// or in no phase, for so long, its labels are without; if there is no such request, they are those that several have in common.
fn request_of_most(stacks: &[&TurnStack], unseen: u64) -> Option<RequestLabels> {
    let all = stacks.iter().map(|stack| stack.weight).sum::<u64>() + unseen;
    let mut weights: BTreeMap<RequestLabels, u64> = BTreeMap::new();
    for stack in stacks {
        if let Some(request) = &stack.request {
            *weights.entry(request.clone()).or_default() += stack.weight;
        }
    }
    let without = |keys: &[RequestKey]| {
        let mut fewer: BTreeMap<RequestLabels, u64> = BTreeMap::new();
        for (request, weight) in &weights {
            if let Some(request) = keys.iter().try_fold(request.clone(), |request, key| request.without(*key)) {
                *fewer.entry(request).or_default() += weight;
            }
        }
        fewer.into_iter().find(|(_, weight)| 2 * weight > all).map(|(request, _)| request)
    };
    use RequestKey::{Phase, Plugin, TraceId};
    let unused: [&[RequestKey]; 6] =
        [&[], &[Plugin], &[Plugin, Phase], &[TraceId], &[TraceId, Plugin], &[TraceId, Plugin, Phase]];
    unused.into_iter().find_map(without)
}

/// What a thread waits for in this frame, if the frame is a wait for something other than a CPU.
fn reason(frame: &Frame) -> Option<&str> {
    frame.waits_for().filter(|cause| *cause != "CPU")
}

#[cfg(test)]
mod tests;
