//! Measures how long objects live, by following some until they die.
//!
//! Of the blocks that windows see some are chosen ([`choice`]). Those that are collectable objects ([`object`]) are looked
//! at at the end of every mark phase, when their mark bits tell which of them are dead, by a BPF program on a hardware
//! watchpoint ([`lj_trace_common::lifetime`]), or a little later where there is none ([`polled`]). So deaths are known
//! exactly, without a probe where memory is freed. They are fewer the more cycles there are (`follow_budget`). What is part of
//! an object (the slots of a table, the stack of a coroutine) lives as long as that does, and as long as it is not
//! replaced by a larger one: the object that refers to it is found among those that were made lately ([`part`]), those that
//! are followed, and in all of memory ([`search`]). [`lj_trace_estimate::life`] has what follows for each source.
//!
//! Limits: a string that is made again while it is dead and not swept yet lives on, and counts as dead. What has a
//! finalizer lives a cycle longer than it is in reach. Blocks that nothing is found to refer to (string buffers, or a table's
//! slots if the table is looked for longer than a cycle takes) are counted, but not followed.
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

/// Objects of one source that are chosen at a time, while there is much room to follow them.
const EACH: usize = 4;

/// How often objects are thinned out at a time.
const MAX_ROUNDS: usize = 8;

/// How many objects of a VM are kept in mind that have grown.
const GROWN: usize = 64;

/// Follows objects.
pub struct Lifetimes {
    observer: LifeObserver,
    memory: ProcessMemory,
    shapes: Vec<Shape>,
    choice: Choice,
    /// By VM.
    recent: Vec<RecentObjects>,
    search: BlockSearch,
    /// What was found by searching, by VM: whatever has grown will grow again.
    grown: Vec<VecDeque<u64>>,
    fates: Fates,
    places: FollowedPlaces,
    /// The flips of each VM at the last look.
    flips: Vec<u32>,
    pid: u32,
    budget: FollowBudget,
    /// Where each VM has its `gc.currentwhite`.
    currentwhites: Vec<u64>,
    /// The watchpoints were given up: that cost too much.
    gave_up: bool,
}

impl Lifetimes {
    /// Begins to watch the collectors of `vms`, which have their numbers from that order.
    ///
    /// # Errors
    /// As [`Watchpoints::attach`].
    pub fn attach(programs: &mut Programs, process: &Process, vms: &[Vm]) -> Result<Self, ProbeError> {
        let watchpoints = Watchpoints::attach(programs, process, vms)?;
        Ok(Self::with(Some(watchpoints), Polled::new(process), process, vms))
    }

    /// The same with what there is: the VMs that no watchpoint is there for are those of `polled`.
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

    /// Begins to watch the collector of one more VM, which has the next number.
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

    /// Whether watchpoints were given up, since there are so many collection cycles that they cost too much.
    pub fn gave_up(&self) -> bool {
        self.gave_up
    }

    /// Takes a call of the allocator by the VM of this number, in the order of time.
    #[inline]
    pub fn event(&mut self, source: SourceId, vm: usize, event: &Event) {
        let (Some(shape), Some(recent)) = (self.shapes.get(vm), self.recent.get_mut(vm)) else { return };
        if let Event::Alloc { addr, size, .. } = *event {
            recent.add(shape, addr, size);
        }
        self.choice.event(source, vm, event, recent);
    }

    /// Begins to follow some of what was allocated since the last time: all of it after `since`, when a window was opened
    /// or the events were last drained. To be called as soon as the events are there: where a flip has come in between,
    /// it is too late, and nothing of it is followed.
    pub fn follow(&mut self, since: Nanos) {
        self.look();
        let blocks = self.choice.take(if 2 * self.places.taken() < self.places.limit() { EACH } else { 1 });
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
        // It is only by now certain that there was no flip before.
        for block in freed {
            if self.flipped(block.vm) < since {
                self.fates.died(block.source, block.weight, 0);
            }
        }
        for block in self.search.start(rest.into_iter().flat_map(HashMap::into_values), since) {
            self.fates.part(block.source, block.weight);
        }
    }

    /// When a VM was last flipped.
    fn flipped(&self, vm: usize) -> Nanos {
        self.observer.watched(vm).flipped
    }

    /// Objects of a VM that may have parts: those that are followed, and those that had.
    fn owners(&self, vm: usize) -> impl Iterator<Item = u64> + '_ {
        let marked = marked_offset(self.shapes[vm].gc64());
        let places = self.places.iter().map(|(_, place)| place).filter(move |place| place.vm == vm);
        let owners = places.filter(|place| matches!(place.object.gct, gct::TAB | gct::THREAD));
        owners
            .map(|place| place.object.place)
            .chain(self.grown[vm].iter().copied())
            .map(move |at| at.wrapping_sub(marked))
    }

    /// Has those that were added looked at from now on, unless there was a flip since they were allocated.
    fn begin(&mut self, added: &[usize], since: Nanos) {
        self.observer.set_end(self.places.end());
        for &index in added {
            if self.places.get(index).is_some_and(|place| self.flipped(place.vm) >= since) {
                self.leave(index);
            }
        }
    }

    /// Follows the object in a block, or that which it is part of; where.
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
            // No more VMs are known than this has numbers for (`MAX_VMS`).
            watched: block.vm as u8,
            wide: u8::from(self.shapes[block.vm].gc64()),
            gct: object.gct,
            state: LifeState::Alive as u8,
        };
        self.observer.follow(block.vm, index, followed);
        Some(index)
    }

    /// Goes on with the search for what parts belong to.
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
                _ => self.fates.part(block.source, block.weight),
            }
        }
    }

    /// Forgets about half of the objects, for which the others stand.
    fn thin_out(&mut self) {
        self.places.thin_out().into_iter().for_each(|index| self.leave(index));
    }

    /// Follows no more than may be: where there are many cycles, looking at all of them at each costs the target too much.
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
        // Each round leaves about half of them, or of those whose source has many.
        for _ in 0..MAX_ROUNDS {
            if self.places.taken() <= self.places.limit() {
                break;
            }
            self.thin_out();
        }
        self.close_up();
    }

    /// Has the program look at no more places than there must be: those at the end are moved to free ones.
    fn close_up(&mut self) {
        loop {
            let end = self.places.end();
            self.observer.set_end(end);
            let (Some(last), Some(free)) = (end.checked_sub(1), self.places.first_free()) else { return };
            // Some free ones in between do no harm.
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
                // It may be that nobody has looked at it at this flip.
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

    /// Takes note of who has died. To be called some times a second.
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

    /// A flip of this VM was missed: who has died in it is unknown.
    fn lose(&mut self, vm: usize) {
        for index in 0..self.places.len() {
            let Some(place) = self.places.get(index).filter(|place| place.vm == vm) else { continue };
            self.fates.lost(place.source, place.weight);
            self.leave(index);
        }
    }

    /// Cycles that ended while it watched, of all VMs.
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
