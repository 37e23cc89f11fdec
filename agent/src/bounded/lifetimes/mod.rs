//! How long objects live: some are followed to their death.
//!
//! Of the blocks that windows see some are chosen ([`choice`]). Those that are collectable objects ([`object`]) are looked
//! at at the end of every mark phase, when their mark bits tell which of them are dead, by a BPF program on a hardware
//! watchpoint ([`lj_trace_common::lifetime`]). So deaths are known exactly, without a probe where memory is freed.
//! [`life`] has what follows for each source.
//!
//! Limits: a string that is made again while it is dead and not swept yet lives on, and counts as dead. What has a
//! finalizer lives a cycle longer than it is in reach. Parts of objects (the slots of a table, the stack of a coroutine)
//! live as long as the object; they are counted, but not followed.

pub mod choice;
pub mod life;
pub mod object;

use std::collections::BTreeMap;

use lj_trace_common::lifetime::{Followed, MAX_FOLLOWED, State};

use self::choice::{Block, Choice};
use self::life::{Fates, Living};
pub use self::life::{Kept, Life, rank};
use self::object::object_in;
use crate::bounded::estimate::random::Random;
use crate::bounded::observation::{Nanos, SourceId};
use crate::heap::shape::Shape;
use crate::probes::programs::{ProbeError, Programs};
use crate::probes::watchpoints::Watchpoints;
use crate::stream::memprof::Event;
use crate::target::{Process, ProcessMemory};
use crate::vm::Vm;

/// Objects of one source that are chosen at a time, while there is much room to follow them.
const EACH: usize = 4;

/// Follows objects.
pub struct Lifetimes {
    watchpoints: Watchpoints,
    memory: ProcessMemory,
    shapes: Vec<Shape>,
    choice: Choice,
    fates: Fates,
    /// Who has allocated the object in each place, and how many bytes it stands for.
    places: Vec<Option<(SourceId, f64)>>,
    /// The flips of each VM at the last look.
    flips: Vec<u32>,
    random: Random,
}

impl Lifetimes {
    /// Begins to watch the collectors of `vms`, which have their numbers from that order.
    ///
    /// # Errors
    /// As [`Watchpoints::attach`].
    pub fn attach(programs: &mut Programs, process: &Process, vms: &[Vm]) -> Result<Self, ProbeError> {
        let watchpoints = Watchpoints::attach(programs, process, vms)?;
        let watched = watchpoints.vms() as usize;
        Ok(Self {
            watchpoints,
            memory: process.memory(),
            shapes: vms[..watched].iter().map(|vm| Shape::new(vm.layout)).collect(),
            choice: Choice::new(EACH),
            fates: Fates::default(),
            places: vec![None; MAX_FOLLOWED as usize],
            flips: vec![0; watched],
            random: Random::new(3),
        })
    }

    /// Takes a call of the allocator by the VM of this number, in the order of time.
    #[inline]
    pub fn event(&mut self, source: SourceId, vm: usize, event: &Event) {
        if vm < self.shapes.len() {
            self.choice.event(source, vm, event);
        }
    }

    /// Begins to follow some of what was allocated since the last time: all of it after `since`, when a window was opened
    /// or the events were last drained. To be called as soon as the events are there: where a flip has come in between,
    /// it is too late, and nothing of it is followed.
    pub fn follow(&mut self, since: Nanos) {
        self.look();
        let free = self.places.iter().filter(|place| place.is_none()).count();
        let (blocks, resized) = self.choice.take(if 2 * free > self.places.len() { EACH } else { 1 });
        let in_time = |this: &Self, vm: usize| this.watchpoints.watched(vm as u32).flipped < since;
        let mut in_time_of: Vec<bool> = (0..self.shapes.len()).map(|vm| in_time(self, vm)).collect();
        let mut added = Vec::new();
        for block in blocks {
            if in_time_of[block.vm]
                && let Some(place) = self.add(&block)
            {
                added.push((place, block.vm));
            }
        }
        let end = self.places.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        self.watchpoints.set_end(end as u32);
        for (vm, was) in (0..).zip(&mut in_time_of) {
            *was = *was && in_time(self, vm);
        }
        // It is only by now certain that there was no flip before they were followed.
        for (place, vm) in added {
            if !in_time_of[vm] {
                self.leave(place);
            }
        }
        for (source, bytes) in resized {
            self.fates.part(source, bytes as f64);
        }
    }

    /// Follows the object in a block, if that is one; where.
    fn add(&mut self, block: &Block) -> Option<usize> {
        let shape = &self.shapes[block.vm];
        let object = if block.freed { None } else { object_in(&self.memory, shape, block.address, block.size) };
        let Some(object) = object else {
            self.fates.part(block.source, block.weight);
            return None;
        };
        let place = self.places.iter().position(Option::is_none).or_else(|| self.thin_out())?;
        self.places[place] = Some((block.source, block.weight));
        let followed = Followed {
            place: object.place,
            survived: 0,
            watched: block.vm as u16,
            gct: object.gct,
            state: State::Alive as u8,
        };
        self.watchpoints.follow(place as u32, followed);
        Some(place)
    }

    /// Forgets about half of the objects, drawn by lot, each other of which stands for twice as much then: so that sums
    /// stay what they are on average. Sources with few objects keep them. A place that is free now.
    fn thin_out(&mut self) -> Option<usize> {
        let mut counts: BTreeMap<SourceId, usize> = BTreeMap::new();
        self.places.iter().flatten().for_each(|(source, _)| *counts.entry(*source).or_default() += 1);
        let fair = self.places.len() / 2 / counts.len().max(1);
        for place in 0..self.places.len() {
            match &mut self.places[place] {
                Some((source, weight)) if counts[source] > fair => {
                    if self.random.below(2) == 0 {
                        self.leave(place);
                    } else {
                        *weight *= 2.0;
                    }
                }
                _ => {}
            }
        }
        self.places.iter().position(Option::is_none)
    }

    fn leave(&mut self, place: usize) {
        self.places[place] = None;
        self.watchpoints.follow(place as u32, Followed::default());
    }

    /// Takes note of who has died. To be called some times a second.
    pub fn look(&mut self) {
        let mut flipped = false;
        for (vm, known) in (0..).zip(&mut self.flips) {
            let flips = self.watchpoints.watched(vm).flips;
            flipped |= flips != *known;
            *known = flips;
        }
        if flipped {
            (0..self.places.len()).for_each(|place| self.look_at(place));
        }
        for vm in 0..self.watchpoints.vms() {
            if !self.watchpoints.synchronize(vm) {
                self.lose(vm);
            }
        }
    }

    fn look_at(&mut self, place: usize) {
        let Some((source, weight)) = self.places[place] else { return };
        let followed = self.watchpoints.followed(place as u32);
        if followed.state == State::Dead as u8 {
            self.fates.died(source, weight, followed.survived);
        } else if followed.state == State::Gone as u8 {
            self.fates.lost(source, weight);
        } else {
            return;
        }
        self.leave(place);
    }

    /// A flip of this VM was missed: who has died in it is unknown.
    fn lose(&mut self, vm: u32) {
        for place in 0..self.places.len() {
            let Some((source, weight)) = self.places[place] else { continue };
            if u32::from(self.watchpoints.followed(place as u32).watched) == vm {
                self.fates.lost(source, weight);
                self.leave(place);
            }
        }
    }

    /// Cycles that ended while it watched, of all VMs.
    pub fn cycles(&self) -> u64 {
        self.flips.iter().map(|&flips| u64::from(flips)).sum()
    }

    /// How long the objects of each source live.
    pub fn lives(&mut self) -> Vec<Life> {
        self.look();
        let living = |(place, object): (u32, &Option<(SourceId, f64)>)| {
            let survived = self.watchpoints.followed(place).survived;
            object.map(|(source, weight)| Living { source, weight, survived })
        };
        self.fates.lives((0..).zip(&self.places).filter_map(living))
    }
}
