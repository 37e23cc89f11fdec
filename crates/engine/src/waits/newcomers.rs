//! Finds the coroutines that are new on a VM's list of objects, without walking all of it.
//!
//! New objects are put at the list's head, and nothing on it ever changes places (`lj_mem_newgco`). So whoever walks it meets
//! all that is new before what was known. An address is no identity: what was freed may be there again, as something new. But
//! then it is met out of order. So the walk goes on until it has met [`RUN`] known objects one after the other as they were,
//! with no unknown coroutine between them. What they may be is remembered: the newest coroutines, and of all other objects a
//! few groups.

use std::collections::HashMap;

use lj_trace_common::layout::gct;

/// So many known objects in their order are no chance.
const RUN: usize = 4;
/// So many of the newest coroutines are looked out for.
const NEWEST: usize = 256;
/// So many other objects.
const ANCHORS: usize = 256;
/// Old ones are so far apart.
const SPACING: u64 = 4096;

/// An object that was on the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marker {
    /// Its address.
    pub address: u64,
    /// Its type.
    pub kind: u8,
    /// Its place in the order of all: the newest has the highest.
    pub order: u64,
}

/// Walks from the head of the list until it meets what is known.
#[derive(Debug)]
pub struct Meeting {
    /// The order of what is known, by address; its type with it.
    known: HashMap<u64, (usize, u8)>,
    markers: Vec<Marker>,
    /// Coroutines, the newest first, with how many objects were met before.
    met: Vec<(u64, u64)>,
    /// Others, a few.
    anchors: Vec<(u64, u8, u64)>,
    count: u64,
    last: Option<usize>,
    run: usize,
    /// How many coroutines of `met`, and how many objects, there were before the run began.
    before_run: (usize, u64),
}

/// What a walk has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Met {
    /// The coroutines that are new, the oldest first.
    pub new: Vec<Marker>,
    /// Of other new objects a few, the oldest first.
    pub anchors: Vec<Marker>,
    /// What is older than this in the order was not met.
    pub known_below: u64,
}

impl Meeting {
    /// One that knows these coroutines and other objects, each the oldest first.
    pub fn new(coroutines: impl DoubleEndedIterator<Item = Marker>, anchors: &[Marker]) -> Self {
        let mut markers: Vec<Marker> = coroutines.rev().take(NEWEST).chain(anchors.iter().copied()).collect();
        markers.sort_unstable_by_key(|marker| marker.order);
        let known = markers.iter().enumerate().map(|(index, marker)| (marker.address, (index, marker.kind))).collect();
        let (met, anchors) = (Vec::new(), Vec::new());
        Self { known, markers, met, anchors, count: 0, last: None, run: 0, before_run: (0, 0) }
    }

    /// One that walks the whole list.
    pub fn with_all() -> Self {
        Self::new(std::iter::empty(), &[])
    }

    /// Meets the next object; false once all that follows is known.
    pub fn meet(&mut self, address: u64, kind: u8) -> bool {
        let known = self.known.get(&address).filter(|(_, known)| *known == kind).map(|(index, _)| *index);
        match known {
            Some(index) => {
                if self.last != Some(index + 1) {
                    self.run = 0;
                }
                if self.run == 0 {
                    self.before_run = (self.met.len(), self.count);
                }
                (self.last, self.run) = (Some(index), self.run + 1);
            }
            None if kind == gct::THREAD => (self.last, self.run) = (None, 0),
            None => {}
        }
        if kind == gct::THREAD {
            self.met.push((address, self.count));
        } else if is_anchor(self.count) {
            self.anchors.push((address, kind, self.count));
        }
        self.count += 1;
        self.run < RUN
    }

    /// How many objects it has met.
    #[cfg(test)]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// What it has found, if it has met `RUN` known objects in their order (`stopped`), or all objects. `next` is higher than
    /// all orders so far, and becomes so again.
    pub fn finish(self, stopped: bool, next: &mut u64) -> Met {
        let Self { markers, mut met, mut anchors, count, last, run, before_run, .. } = self;
        let mut known_below = 0;
        let mut objects = count;
        if stopped {
            met.truncate(before_run.0);
            objects = before_run.1;
            anchors.retain(|(_, _, rank)| *rank < objects);
            let first = last.map_or(0, |last| last + run - 1);
            known_below = markers.get(first).map_or(0, |marker| marker.order + 1);
        }
        let order = |rank: u64| *next + (objects - rank);
        let new = met
            .iter()
            .rev()
            .map(|&(address, rank)| Marker { address, kind: gct::THREAD, order: order(rank) })
            .collect();
        let anchors =
            anchors.iter().rev().map(|&(address, kind, rank)| Marker { address, kind, order: order(rank) }).collect();
        *next += objects + 1;
        Met { new, anchors, known_below }
    }
}

/// Whether the object at this place is remembered: groups of them, at distances that double, and then at even ones.
fn is_anchor(rank: u64) -> bool {
    let group = RUN as u64;
    rank > 0 && (rank - (1 << rank.ilog2()) < group || rank % SPACING < group)
}

/// Keeps only so many anchors: every other group of them goes.
pub fn thin(anchors: &mut Vec<Marker>) {
    while anchors.len() > ANCHORS {
        let mut number = 0;
        anchors.retain(|_| {
            number += 1;
            (number - 1) / RUN % 2 == 0
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A list of objects as a VM has it, whose addresses are used again.
    struct Heap {
        /// The oldest first: address, type, identity.
        list: Vec<(u64, u8, u64)>,
        free: Vec<u64>,
        next_address: u64,
        next_identity: u64,
    }

    impl Heap {
        fn new_object(&mut self, rng: &mut fastrand::Rng, kind: u8) {
            let reused = if self.free.is_empty() || rng.u32(..4) == 0 { None } else { self.free.pop() };
            let address = reused.unwrap_or_else(|| {
                self.next_address += 16;
                self.next_address
            });
            self.next_identity += 1;
            self.list.push((address, kind, self.next_identity));
        }

        fn collect(&mut self, rng: &mut fastrand::Rng, share: f64) {
            let mut freed = Vec::new();
            self.list.retain(|object| {
                let stays = rng.f64() > share;
                if !stays {
                    freed.push(object.0);
                }
                stays
            });
            if rng.bool() {
                freed.reverse();
            }
            self.free.extend(freed);
        }
    }

    /// All coroutines that are there are known after each walk, with their identities, as long as those that are gone are
    /// noticed.
    #[test]
    fn walks_find_all_that_is_new_whatever_addresses_are_used_again() {
        let (mut walked, mut all) = (0, 0);
        for seed in 0..300 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut heap = Heap { list: Vec::new(), free: Vec::new(), next_address: 0, next_identity: 0 };
            let mut known: Vec<(Marker, u64)> = Vec::new();
            let (mut anchors, mut next) = (Vec::new(), 1);
            for _ in 0..30 {
                for _ in 0..rng.usize(..300) {
                    let kind = if rng.u32(..10) == 0 { gct::THREAD } else { gct::TAB };
                    heap.new_object(&mut rng, kind);
                }
                if rng.u32(..3) == 0 {
                    let share = rng.f64();
                    heap.collect(&mut rng, share);
                    for _ in 0..rng.usize(..50) {
                        heap.new_object(&mut rng, gct::THREAD);
                    }
                }
                // Heads tell those that are gone, unless their addresses are those of others by now.
                known.retain(|(marker, _)| {
                    heap.list.iter().any(|object| object.0 == marker.address && object.1 == gct::THREAD)
                });
                anchors.retain(|marker: &Marker| {
                    heap.list.iter().any(|object| object.0 == marker.address && object.1 == marker.kind)
                });
                let mut meeting = Meeting::new(known.iter().map(|(marker, _)| *marker), &anchors);
                let goes_on = heap.list.iter().rev().all(|&(address, kind, _)| meeting.meet(address, kind));
                walked += meeting.count();
                all += heap.list.len() as u64;
                let met = meeting.finish(!goes_on, &mut next);
                let identity = |address: u64| heap.list.iter().find(|object| object.0 == address).unwrap().2;
                known.retain(|(marker, _)| {
                    marker.order < met.known_below && !met.new.iter().any(|new| new.address == marker.address)
                });
                known.extend(met.new.iter().map(|new| (*new, identity(new.address))));
                anchors.retain(|marker| marker.order < met.known_below);
                anchors.extend(met.anchors);
                thin(&mut anchors);
                let there: Vec<(u64, u64)> = heap
                    .list
                    .iter()
                    .filter(|object| object.1 == gct::THREAD)
                    .map(|object| (object.0, object.2))
                    .collect();
                let found: Vec<(u64, u64)> =
                    known.iter().map(|(marker, identity)| (marker.address, *identity)).collect();
                assert_eq!(found, there, "seed {seed}");
            }
        }
        assert!(walked < all * 3 / 4, "{walked} of {all} objects were walked");
    }
}
