//! Measures how long objects live, by following some until they die.
//!
//! Some of the blocks that windows see are chosen ([`choice`]). Those that are collectable objects ([`object`]) are checked
//! at the end of every mark phase, when their mark bits show which of them are dead. A BPF program on a hardware watchpoint
//! does that ([`lj_trace_common::lifetime`]), or a polling thread a little later if there is no watchpoint ([`polled`]). So
//! deaths are known exactly, without a probe on the freeing of memory. The more cycles there are, the fewer objects are
//! followed (`follow_budget`). A part of an object (the slots of a table, the stack of a coroutine) lives as long as the
//! object, unless a larger part replaces it. The owner of a part is found among the objects that were made lately
//! ([`part`]), among the followed objects, and in all of memory ([`search`]). [`lj_trace_estimate::life`] computes the
//! lifetimes of each source.
//!
//! Limits: a dead string that is not swept yet and is made again lives on, but counts as dead. An object with a finalizer
//! lives a cycle longer than it is reachable. Blocks without a known owner (string buffers, or the slots of a table if the
//! search takes longer than a cycle) are counted, but not followed.
//!
//! LuaJIT's sources: [`lj_str_new`], [`lj_gc_separateudata`].
//!
//! [`lj_str_new`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_str.c#L331-L336
//! [`lj_gc_separateudata`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_gc.c#L142-L169

pub mod choice;

mod follow_budget;
pub mod object;
mod observer;
pub mod part;
mod places;
pub mod polled;
pub mod search;

use std::collections::{HashMap, VecDeque};

use lj_trace_common::layout::gct;
use lj_trace_common::lifetime::{Followed, LifeState};
use lj_trace_estimate::life::{Fates, Living};
use lj_trace_estimate::observation::{Nanos, SourceId};
use lj_trace_luajit::Vm;
use lj_trace_luajit::object::{field, marked_offset};
use lj_trace_luajit::shape::Shape;
use lj_trace_probes::programs::{ProbeError, Programs};
use lj_trace_probes::watchpoints::Watchpoints;
use lj_trace_process::clocks::cpu_time;
use lj_trace_process::{Process, ProcessMemory};
use lj_trace_streams::memprof::Event;

use self::choice::{Choice, ChosenBlock};
use self::follow_budget::{FollowBudget, FollowVerdict};
use self::object::{FollowedObject, object_in};
use self::observer::LifeObserver;
use self::part::{RecentObjects, TablePart, find_owners};
use self::places::{FollowedPlace, FollowedPlaces};
use self::polled::Polled;
use self::search::BlockSearch;
use crate::bounded::now;
pub use lj_trace_estimate::life::{Kept, Life, rank};

/// Objects of one source to choose at a time, while there is much room to follow them.
const EACH: usize = 4;

/// The most rounds of thinning out in a row.
const MAX_ROUNDS: usize = 8;

/// The most objects of a VM to remember because they have grown.
const GROWN: usize = 64;

/// Follows objects until they die.
pub struct Lifetimes {
    observer: LifeObserver,
    memory: ProcessMemory,
    shapes: Vec<Shape>,
    choice: Choice,
    /// Recently allocated objects, by VM.
    recent: Vec<RecentObjects>,
    search: BlockSearch,
    /// Owners that the search has found, by VM: an object that has grown will grow again.
    grown: Vec<VecDeque<u64>>,
    fates: Fates,
    places: FollowedPlaces,
    /// The number of flips of each VM at the last look.
    flips: Vec<u32>,
    pid: u32,
    budget: FollowBudget,
    /// The address of each VM's `gc.currentwhite`.
    currentwhites: Vec<u64>,
    /// Whether the watchpoints were given up because they cost too much.
    gave_up: bool,
}

impl Lifetimes {
    /// Begins to watch the collectors of `vms`. The order of `vms` gives them their numbers.
    ///
    /// # Errors
    /// As [`Watchpoints::attach`].
    pub fn attach(programs: &mut Programs, process: &Process, vms: &[Vm]) -> Result<Self, ProbeError> {
        let watchpoints = Watchpoints::attach(programs, process, vms)?;
        Ok(Self::with(Some(watchpoints), Polled::new(process), process, vms))
    }

    /// The same with watchpoints if there are any. VMs without a watchpoint are polled with `polled`.
    pub fn with(watchpoints: Option<Watchpoints>, polled: Polled, process: &Process, vms: &[Vm]) -> Self {
        let mut lifetimes = Self {
            observer: LifeObserver::new(watchpoints, polled),
            memory: process.memory(),
            shapes: Vec::new(),
            choice: Choice::new(EACH),
            recent: Vec::new(),
            search: BlockSearch::new(process),
            grown: Vec::new(),
            fates: Fates::default(),
            places: FollowedPlaces::new(),
            flips: Vec::new(),
            pid: process.pid(),
            budget: FollowBudget::new(),
            currentwhites: Vec::new(),
            gave_up: false,
        };
        vms.iter().for_each(|vm| lifetimes.add_vm(vm));
        lifetimes
    }

    /// Begins to watch the collector of a further VM. It has the next number.
    pub fn add_vm(&mut self, vm: &Vm) {
        let currentwhite = field(vm.global, vm.layout.g_gc_currentwhite);
        self.observer.add(self.shapes.len(), currentwhite);
        self.currentwhites.push(currentwhite);
        self.shapes.push(Shape::new(vm.layout));
        self.recent.push(RecentObjects::default());
        self.grown.push(VecDeque::new());
        self.flips.push(0);
    }

    /// Whether there are VMs whose flips are noticed by polling.
    pub fn is_polled(&self) -> bool {
        self.observer.is_polled(self.shapes.len().saturating_sub(1))
    }

    /// Whether watchpoints were given up, because so many collection cycles made them cost too much.
    pub fn gave_up(&self) -> bool {
        self.gave_up
    }

    /// Takes a call of the allocator by VM number `vm`, in the order of time.
    #[inline]
    pub fn event(&mut self, source: SourceId, vm: usize, event: &Event) {
        let (Some(shape), Some(recent)) = (self.shapes.get(vm), self.recent.get_mut(vm)) else { return };
        if let Event::Alloc { addr, size, .. } = *event {
            recent.add(shape, addr, size);
        }
        self.choice.event(source, vm, event, recent);
    }

    /// Begins to follow some of the blocks that were allocated since the last call, all of them after `since`: the time
    /// when a window was opened or when the events were last drained. Call it as soon as the events are there: after a flip
    /// it is too late, and none of the blocks is followed.
    pub fn follow(&mut self, since: Nanos) {
        self.look();
        let blocks = self.choice.take(if 2 * self.places.taken() < self.places.limit() { EACH } else { 1 }, since);
        let in_time_of: Vec<bool> = (0..self.shapes.len()).map(|vm| self.flipped(vm) < since).collect();
        let (freed, blocks): (Vec<_>, Vec<_>) =
            blocks.into_iter().filter(|block| in_time_of[block.vm]).partition(|block| block.freed);
        let mut added = Vec::new();
        let mut rest: Vec<HashMap<u64, ChosenBlock>> = self.shapes.iter().map(|_| HashMap::new()).collect();
        for block in blocks {
            match object_in(&self.memory, &self.shapes[block.vm], block.address, block.size) {
                Some(object) => added.extend(self.add(&block, object, None)),
                None => _ = rest[block.vm].insert(block.address, block),
            }
        }
        for (vm, rest) in rest.iter_mut().enumerate().filter(|(_, rest)| !rest.is_empty()) {
            let recent = rest.values().flat_map(|block| block.recent.addresses());
            let owners: Vec<u64> = recent.chain(self.owners(vm)).collect();
            for (block, part) in find_owners(&self.memory, &self.shapes[vm], owners.into_iter(), rest) {
                added.extend(self.add(&block, part.owner, Some(part)));
            }
        }
        self.begin(&added, since);
        // Only now is it certain that there was no flip before.
        for block in freed {
            if self.flipped(block.vm) < since {
                self.fates.died(block.source, block.weight, 0);
            }
        }
        for block in self.search.start(rest.into_iter().flat_map(HashMap::into_values), since) {
            self.fates.part(block.source, block.weight.bytes);
        }
    }

    /// The time of a VM's last flip.
    fn flipped(&self, vm: usize) -> Nanos {
        self.observer.watched(vm).flipped
    }

    /// Objects of a VM that may have parts: followed objects, and objects that had parts before.
    fn owners(&self, vm: usize) -> impl Iterator<Item = u64> + '_ {
        let marked = marked_offset(self.shapes[vm].gc64());
        let places = self.places.iter().map(|(_, place)| place).filter(move |place| place.vm == vm);
        let owners = places.filter(|place| matches!(place.object.gct, gct::TAB | gct::THREAD));
        owners
            .map(|place| place.object.place)
            .chain(self.grown[vm].iter().copied())
            .map(move |at| at.wrapping_sub(marked))
    }

    /// Starts to check the added objects from now on, unless there was a flip since they were allocated.
    fn begin(&mut self, added: &[usize], since: Nanos) {
        self.observer.set_end(self.places.end());
        for &index in added {
            if self.places.get(index).is_some_and(|place| self.flipped(place.vm) >= since) {
                self.leave(index);
            }
        }
    }

    /// Follows the object in a block, or the object that the block is part of. Returns its place.
    fn add(&mut self, block: &ChosenBlock, object: FollowedObject, part: Option<TablePart>) -> Option<usize> {
        if self.places.taken() >= self.places.limit() {
            self.thin_out();
        }
        let has_room = self.places.taken() < self.places.limit();
        let Some(index) = self.places.first_free().filter(|_| has_room) else {
            self.fates.lost(block.source, block.weight);
            return None;
        };
        self.places.set(index, FollowedPlace { source: block.source, weight: block.weight, vm: block.vm, object });
        let followed = Followed {
            place: object.place,
            link: part.map_or(0, |part| part.link),
            part: part.map_or(0, |part| part.address),
            survived: 0,
            // There are never more VMs than fit into this number (`MAX_VMS`).
            watched: block.vm as u8,
            wide: u8::from(self.shapes[block.vm].gc64()),
            gct: object.gct,
            state: LifeState::Alive as u8,
        };
        self.observer.follow(block.vm, index, followed);
        Some(index)
    }

    /// Continues the search for the owners of parts.
    fn search(&mut self) {
        for (wanted, part) in self.search.go_on(&self.shapes) {
            let block = wanted.block;
            if let (Some(part), Some(grown)) = (part, self.grown.get_mut(block.vm)) {
                grown.truncate(GROWN - 1);
                grown.push_front(part.owner.place);
            }
            match part {
                Some(part) if self.flipped(block.vm) < wanted.since => {
                    let added = self.add(&block, part.owner, Some(part));
                    self.begin(added.as_slice(), wanted.since);
                }
                _ => self.fates.part(block.source, block.weight.bytes),
            }
        }
    }

    /// Drops about half of the objects. The others then represent them.
    fn thin_out(&mut self) {
        self.places.thin_out().into_iter().for_each(|index| self.leave(index));
    }

    /// Limits the number of objects to the budget: with many cycles, checking all objects in each would cost the target too
    /// much.
    fn keep_to_budget(&mut self) {
        let Some(spent) = self.observer.spent().filter(|_| self.budget.is_due(now())) else { return };
        let Some(cpu) = cpu_time(self.pid) else { return };
        match self.budget.judge(now(), cpu, spent, self.places.taken()) {
            FollowVerdict::AtMost(limit) => self.places.set_limit(limit),
            FollowVerdict::TooFrequent => {
                (0..self.shapes.len()).for_each(|vm| self.lose(vm));
                self.observer.give_up_watchpoints(self.currentwhites.iter().copied());
                self.places.set_limit(usize::MAX);
                self.gave_up = true;
                return;
            }
        }
        // Each round leaves about half of the objects, or half of the objects of sources that have many.
        for _ in 0..MAX_ROUNDS {
            if self.places.taken() <= self.places.limit() {
                break;
            }
            self.thin_out();
        }
        self.close_up();
    }

    /// Moves objects from the last places to free ones, so that the BPF program has fewer places to look at.
    fn close_up(&mut self) {
        loop {
            let end = self.places.end();
            self.observer.set_end(end);
            let (Some(last), Some(free)) = (end.checked_sub(1), self.places.first_free()) else { return };
            // Some free places in between do no harm.
            if last < 2 * self.places.limit() || free > last {
                return;
            }
            let Some(place) = self.places.free(last) else { return };
            let before = self.observer.watched(place.vm).flips;
            let followed = self.observer.followed(place.vm, last);
            self.observer.follow(place.vm, last, Followed::default());
            self.observer.follow(place.vm, free, followed);
            self.observer.set_end(last);
            if self.observer.watched(place.vm).flips == before {
                self.places.set(free, place);
            } else {
                // This flip may not have been checked for the object.
                self.observer.follow(place.vm, free, Followed::default());
                self.fates.lost(place.source, place.weight);
            }
        }
    }

    fn leave(&mut self, index: usize) {
        if let Some(place) = self.places.free(index) {
            self.observer.follow(place.vm, index, Followed::default());
        }
    }

    /// Notes which objects have died. Call it some times per second.
    pub fn look(&mut self) {
        self.keep_to_budget();
        let mut flipped = false;
        for (vm, known) in self.flips.iter_mut().enumerate() {
            let flips = self.observer.watched(vm).flips;
            flipped |= flips != *known;
            *known = flips;
        }
        if flipped {
            (0..self.places.len()).for_each(|place| self.look_at(place));
        }
        for vm in 0..self.shapes.len() {
            if !self.observer.is_complete(vm) {
                self.lose(vm);
            }
        }
        self.search();
    }

    fn look_at(&mut self, index: usize) {
        let Some(FollowedPlace { source, weight, vm, .. }) = self.places.get(index) else { return };
        let followed = self.observer.followed(vm, index);
        if followed.state == LifeState::Dead as u8 {
            self.fates.died(source, weight, followed.survived);
        } else if followed.state == LifeState::Gone as u8 {
            self.fates.lost(source, weight);
        } else {
            return;
        }
        self.leave(index);
    }

    /// Handles a missed flip of this VM: it is unknown which objects died in it.
    fn lose(&mut self, vm: usize) {
        for index in 0..self.places.len() {
            let Some(place) = self.places.get(index).filter(|place| place.vm == vm) else { continue };
            self.fates.lost(place.source, place.weight);
            self.leave(index);
        }
    }

    /// The number of cycles of all VMs that ended while watched.
    pub fn cycles(&self) -> u64 {
        self.flips.iter().map(|&flips| u64::from(flips)).sum()
    }

    /// How long the objects of each source live.
    pub fn lives(&mut self) -> Vec<Life> {
        self.look();
        let living = |(index, &FollowedPlace { source, weight, vm, .. }): (usize, &FollowedPlace)| Living {
            source,
            weight,
            survived: self.observer.followed(vm, index).survived,
        };
        self.fates.lives(self.places.iter().map(living))
    }
}
