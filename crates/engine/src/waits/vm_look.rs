//! Looks at all coroutines of a VM: what each of them does, and whether it is still in the same wait.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use lj_trace_common::memory::ReadMemory;
use lj_trace_luajit::object::field;
use lj_trace_luajit::{Vm, VmStatus};
use lj_trace_process::ProcessMemory;
use lj_trace_profile::model::StackId;

use super::heads::{AT_ONCE, BatchReader, CoroutineHead};
use super::vm_found::{Doubts, Known, Looking, VmFound, there};
use crate::coroutines::Status;

/// A VM, and what is known about its coroutines.
pub struct CoroutineLooks {
    /// The VM.
    pub vm: Vm,
    pub(super) index: usize,
    /// The known coroutines: the main thread, then the others, the oldest first.
    pub(super) known: Vec<Known>,
    /// Which coroutine waits for which, by the address of the one that is waited for; and the coroutines with joined
    /// stacks.
    pub(super) links: HashMap<u64, u64>,
    pub(super) joined: Vec<u64>,
    /// When to walk the whole list next.
    pub(super) next_census: Option<Instant>,
    pub(super) looked: Option<Instant>,
    places: BatchReader,
    pub(super) rng: fastrand::Rng,
    /// The cost of walking the stack of one coroutine, in seconds of CPU time.
    pub(super) walk_cost: f64,
    /// The doubts so far.
    pub doubts: Doubts,
}

impl CoroutineLooks {
    /// The looks at a VM with this index.
    pub fn new(vm: Vm, index: usize, now: Instant) -> Self {
        let known = vec![Known::new(vm.main_thread, now)];
        let (places, doubts) = (BatchReader::default(), Doubts::default());
        Self {
            vm,
            index,
            known,
            links: HashMap::new(),
            joined: Vec::new(),
            next_census: None,
            looked: None,
            places,
            rng: fastrand::Rng::new(),
            walk_cost: 1e-5,
            doubts,
        }
    }

    /// The index of the VM among the VMs of the process.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Updates the numbers of stacks after they have changed.
    pub fn renumber(&mut self, moved: &[StackId]) {
        for stack in self.known.iter_mut().flat_map(|known| [&mut known.own, &mut known.waits]).flatten() {
            if let Some(to) = moved.get(stack.index()) {
                *stack = *to;
            }
        }
    }

    /// Looks at all coroutines; returns the results.
    pub fn look(&mut self, looking: &mut Looking<'_>) -> VmFound {
        let mut found = VmFound::default();
        let began = Instant::now();
        self.look_at_known(looking, &mut found, None);
        if self.next_census.is_none_or(|due| due <= began) {
            self.take_census(looking, &mut found, began);
        } else {
            self.find_new(looking, &mut found, began);
        }
        let each = self.walk_moved(looking, &mut found, began);
        self.join(looking);
        for known in &mut self.known {
            let weight = if std::mem::take(&mut known.is_fresh) { each } else { 1.0 };
            if let Some(waits) = known.waits {
                *found.waiting.entry(waits).or_insert(0.0) += weight;
            }
        }
        self.looked = Some(began);
        found
    }

    /// Looks again at some of the waiting coroutines, to see whether they are still in the same wait. Returns the time
    /// since the last look, with the results.
    pub fn echo(
        &mut self,
        looking: &mut Looking<'_>,
        most: usize,
        rng: &mut fastrand::Rng,
    ) -> Option<(Duration, VmFound)> {
        let looked = self.looked?;
        let waiting: Vec<usize> = (0..self.known.len()).filter(|&index| self.known[index].waits.is_some()).collect();
        let chosen: Vec<usize> = match waiting.len() {
            few if few <= most => waiting,
            many => (0..most).map(|_| waiting[rng.usize(..many)]).collect(),
        };
        let mut found = VmFound::default();
        let lag = looked.elapsed();
        self.look_at_known(looking, &mut found, Some(&chosen));
        Some((lag, found))
    }

    /// The collector's current white.
    fn white(&self, memory: &ProcessMemory) -> Option<u8> {
        memory.read::<u8>(field(self.vm.global, self.vm.layout.g_gc_currentwhite)).ok()
    }

    /// Reads all known coroutines, or only the `chosen` ones, and compares. Does not change what is known about chosen
    /// ones.
    fn look_at_known(&mut self, looking: &mut Looking<'_>, found: &mut VmFound, chosen: Option<&[usize]>) {
        let all: Vec<usize> = if chosen.is_none() { (0..self.known.len()).collect() } else { Vec::new() };
        let indices = chosen.unwrap_or(&all);
        let size = usize::from(self.vm.layout.sizeof_l);
        let gc64 = self.vm.layout.is_gc64();
        let current = VmStatus::read(looking.memory, &self.vm).ok().and_then(|status| status.current);
        let mut gone: HashSet<usize> = HashSet::new();
        let mut heads: Vec<Option<CoroutineHead>> = Vec::with_capacity(AT_ONCE);
        for group in indices.chunks(AT_ONCE) {
            let places: Vec<(u64, usize)> = group.iter().map(|&index| (self.known[index].address, size)).collect();
            heads.clear();
            let white = self.white(looking.memory);
            let Self { vm, places: reader, .. } = &mut *self;
            reader.read(looking.memory, &places, |_, bytes| {
                heads.push(bytes.and_then(|bytes| CoroutineHead::parse(vm, bytes)))
            });
            // If the collector has just changed the colours, they say nothing.
            let white = white.filter(|_| self.white(looking.memory) == white);
            // The coroutines that may wait, with the values next to their place.
            let mut may_wait: Vec<(usize, CoroutineHead, (u64, usize))> = Vec::new();
            for (&index, head) in group.iter().zip(&heads) {
                let known = self.known[index];
                let Some(head) = head.filter(|head| {
                    // The main thread is never collected.
                    index == 0 || !white.is_some_and(|white| head.is_dead(white))
                }) else {
                    found.count_pair(known.waits, false);
                    if index > 0 {
                        gone.insert(index);
                    }
                    continue;
                };
                let status = head.status(gc64);
                let may = match status {
                    Status::Suspended => true,
                    Status::Running => !looking.uses(head.cframe, current == Some(known.address)),
                    _ => false,
                };
                found.there += there(status);
                self.known[index].is_new = false;
                if may {
                    may_wait.push((index, head, head.window()));
                    continue;
                }
                found.count_pair(known.waits, false);
                if chosen.is_none() {
                    self.known[index].go_on(false);
                }
            }
            let windows: Vec<(u64, usize)> = may_wait.iter().map(|(_, _, window)| *window).collect();
            let Self { known, places: reader, .. } = &mut *self;
            reader.read(looking.memory, &windows, |number, bytes| {
                let (index, head, _) = may_wait[number];
                let known = &mut known[index];
                let print = bytes.map(|bytes| head.print(bytes));
                if known.own.is_some() && print == Some(known.print) {
                    found.count_pair(known.waits, true);
                } else {
                    found.count_pair(known.waits, false);
                    if chosen.is_none() {
                        known.go_on(true);
                    }
                }
            });
        }
        if chosen.is_none() && !gone.is_empty() {
            let mut index = 0;
            self.known.retain(|_| {
                index += 1;
                !gone.contains(&(index - 1))
            });
        }
    }
}
