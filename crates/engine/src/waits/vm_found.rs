//! What a look at a VM has found, and what may be wrong with it.

use std::collections::HashMap;
use std::time::Instant;

use lj_trace_process::{Process, ProcessMemory};
use lj_trace_profile::WaitProfile;
use lj_trace_profile::model::StackId;

use super::c_stacks::{CStacks, UsedStacks};
use super::names::WaitNames;
use super::requests::WaitRequests;
use crate::coroutines::Status;

/// A coroutine, as the last look has seen it.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// Where its `lua_State` is.
    pub address: u64,
    /// What tells its wait from others.
    pub print: u64,
    /// Its stack, if it waits.
    pub own: Option<StackId>,
    /// The same behind that of the coroutine that waits for it, if it is known which that is. [`None`] as well if it is left
    /// out: its request is none of those that are kept.
    pub waits: Option<StackId>,
    /// Whether it has moved since its stack was walked, or never was: that is to be done.
    pub has_moved: bool,
    /// Whether this look has found it.
    pub is_new: bool,
    /// Whether this look has walked its stack.
    pub is_fresh: bool,
    /// When it was known for certain to be there.
    pub certain: Instant,
}

impl Known {
    /// One of which nothing is known yet.
    pub fn new(address: u64, now: Instant) -> Self {
        let (own, waits) = (None, None);
        Self { address, print: 0, own, waits, has_moved: true, is_new: true, is_fresh: false, certain: now }
    }

    /// It is not in the wait any more that it was in. If it `may_wait`, its stack is to be walked.
    pub fn go_on(&mut self, may_wait: bool) {
        (self.own, self.waits, self.print, self.has_moved) = (None, None, 0, may_wait);
    }
}

/// What looks at a process's coroutines need.
pub struct Looking<'a> {
    /// The process.
    pub process: &'a Process,
    /// Its memory.
    pub memory: &'a ProcessMemory,
    /// What names frames.
    pub names: &'a mut WaitNames,
    /// What finds requests, if somebody asks for them.
    pub requests: &'a mut Option<WaitRequests>,
    /// Where the figures go.
    pub profile: &'a mut WaitProfile,
    /// How many VMs the process has.
    pub vms: usize,
    /// The C stacks that threads use, found out once for all VMs of the process, if it is asked for.
    pub used_stacks: &'a mut Option<UsedStacks>,
    /// Where they are.
    pub c_stacks: &'a mut CStacks,
}

impl Looking<'_> {
    /// Whether a thread uses the C stack with this C frame.
    pub fn uses(&mut self, cframe: u64, is_current: bool) -> bool {
        let Self { process, used_stacks, c_stacks, .. } = self;
        used_stacks.get_or_insert_with(|| c_stacks.look(process)).has(cframe, is_current)
    }
}

/// What a look at a VM has found.
#[derive(Debug, Default)]
pub struct VmFound {
    /// How many coroutines there are that are not over.
    pub there: f64,
    /// How many wait, by their stacks.
    pub waiting: HashMap<StackId, f64>,
    /// How many of each stack are in the same wait as at the last look, and how many have gone on since.
    pub pairs: HashMap<StackId, [u64; 2]>,
}

impl VmFound {
    /// Counts a coroutine that waited: whether it is still in the same wait.
    pub fn count_pair(&mut self, waits: Option<StackId>, is_same: bool) {
        if let Some(waits) = waits {
            self.pairs.entry(waits).or_insert([0; 2])[usize::from(!is_same)] += 1;
        }
    }

    /// What counted as the same coroutine, in the same wait, is another one.
    pub fn is_other(&mut self, known: &Known) {
        if let Some([same, gone]) = known.waits.and_then(|waits| self.pairs.get_mut(&waits)) {
            (*same, *gone) = (same.saturating_sub(1), *gone + 1);
        }
        self.there = (self.there - 1.0).max(0.0);
    }
}

/// What may be wrong with what looks have found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Doubts {
    /// Coroutines that moved each time that they were read: they do not count as waiting.
    pub moving: u64,
    /// Coroutines that were not on the list any more, though their memory looked as if they were.
    pub stale: u64,
    /// Coroutines that only a walk of the whole list has found.
    pub late: u64,
    /// Walks for new coroutines that the program led astray, or that took too long.
    pub torn: u64,
    /// New coroutines that were over before their stacks were read.
    pub over: u64,
    /// There are more than are looked at.
    pub too_many: u64,
    /// Functions that have no name, since that would have taken too much work to find.
    pub unsearched: u64,
}

/// How much a coroutine counts among those that are there.
pub fn there(status: Status) -> f64 {
    if matches!(status, Status::Finished | Status::Dead) { 0.0 } else { 1.0 }
}

impl Doubts {
    /// Adds those of another VM.
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
