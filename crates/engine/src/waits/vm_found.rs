//! The results of a look at a VM, and the doubts about them.

use std::collections::HashMap;
use std::time::Instant;

use lj_trace_process::{Process, ProcessMemory};
use lj_trace_profile::WaitProfile;
use lj_trace_profile::model::StackId;

use super::c_stacks::{CStacks, UsedStacks};
use super::names::WaitNames;
use super::requests::WaitRequests;
use crate::coroutines::Status;

/// A coroutine, as of the last look.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// The address of its `lua_State`.
    pub address: u64,
    /// The hash that identifies its wait.
    pub print: u64,
    /// Its own stack, if it waits.
    pub own: Option<StackId>,
    /// Its stack appended to the stack of the coroutine that waits for it, if that one is known. Also [`None`] if the
    /// coroutine is left out because of its request.
    pub waits: Option<StackId>,
    /// Whether its stack has to be walked: it has moved since the last walk, or was never walked.
    pub has_moved: bool,
    /// Whether this look has found it.
    pub is_new: bool,
    /// Whether this look has walked its stack.
    pub is_fresh: bool,
    /// When it was last certain that the coroutine existed.
    pub certain: Instant,
}

impl Known {
    /// A coroutine that has just been found.
    pub fn new(address: u64, now: Instant) -> Self {
        let (own, waits) = (None, None);
        Self { address, print: 0, own, waits, has_moved: true, is_new: true, is_fresh: false, certain: now }
    }

    /// Notes that the coroutine has left its wait. If it `may_wait`, its stack has to be walked.
    pub fn go_on(&mut self, may_wait: bool) {
        (self.own, self.waits, self.print, self.has_moved) = (None, None, 0, may_wait);
    }
}

/// The inputs of looks at a process's coroutines.
pub struct Looking<'a> {
    /// The process.
    pub process: &'a Process,
    /// Its memory.
    pub memory: &'a ProcessMemory,
    /// Names frames.
    pub names: &'a mut WaitNames,
    /// Finds requests, if the options ask for them.
    pub requests: &'a mut Option<WaitRequests>,
    /// The profile that gets the figures.
    pub profile: &'a mut WaitProfile,
    /// The number of VMs of the process.
    pub vms: usize,
    /// The C stacks that threads use. They are read on demand, once for all VMs of the process.
    pub used_stacks: &'a mut Option<UsedStacks>,
    /// The known address ranges of C stacks.
    pub c_stacks: &'a mut CStacks,
}

impl Looking<'_> {
    /// Whether a thread uses the C stack with this C frame.
    pub fn uses(&mut self, cframe: u64, is_current: bool) -> bool {
        let Self { process, used_stacks, c_stacks, .. } = self;
        used_stacks.get_or_insert_with(|| c_stacks.look(process)).has(cframe, is_current)
    }
}

/// The results of a look at a VM.
#[derive(Debug, Default)]
pub struct VmFound {
    /// The number of coroutines that are not over.
    pub there: f64,
    /// The number of waiting coroutines, by stack.
    pub waiting: HashMap<StackId, f64>,
    /// For each stack, how many coroutines are in the same wait as at the last look, and how many have gone on.
    pub pairs: HashMap<StackId, [u64; 2]>,
}

impl VmFound {
    /// Counts a coroutine that waited at the last look: whether it is still in the same wait.
    pub fn count_pair(&mut self, waits: Option<StackId>, is_same: bool) {
        if let Some(waits) = waits {
            self.pairs.entry(waits).or_insert([0; 2])[usize::from(!is_same)] += 1;
        }
    }

    /// Corrects the counts: what counted as the same coroutine in the same wait is another one.
    pub fn is_other(&mut self, known: &Known) {
        if let Some([same, gone]) = known.waits.and_then(|waits| self.pairs.get_mut(&waits)) {
            (*same, *gone) = (same.saturating_sub(1), *gone + 1);
        }
        self.there = (self.there - 1.0).max(0.0);
    }
}

/// The doubts about the results of looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Doubts {
    /// How often a coroutine moved each time it was read. It then does not count as waiting.
    pub moving: u64,
    /// Coroutines that were gone from the list, although their memory still looked valid.
    pub stale: u64,
    /// Coroutines that only a walk of the whole list has found.
    pub late: u64,
    /// Walks for new coroutines that changes of the list led astray, or that took too long.
    pub torn: u64,
    /// New coroutines that were over before their stacks could be read.
    pub over: u64,
    /// The number of coroutines beyond the limit.
    pub too_many: u64,
    /// Functions without a name, because it would take too much work to find.
    pub unsearched: u64,
}

/// How much a coroutine counts among the existing ones.
pub fn there(status: Status) -> f64 {
    if matches!(status, Status::Finished | Status::Dead) { 0.0 } else { 1.0 }
}

impl Doubts {
    /// Adds the doubts of another VM.
    pub fn add(&mut self, other: Self) {
        self.moving += other.moving;
        self.stale += other.stale;
        self.late += other.late;
        self.torn += other.torn;
        self.over += other.over;
        self.too_many += other.too_many;
        self.unsearched += other.unsearched;
    }
}
