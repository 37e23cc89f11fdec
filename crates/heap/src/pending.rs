//! What a walk has met and will look at next: each object once, on the path that comes first by its names.
//!
//! Of paths of the same length the first one found would depend on the order of addresses, so that a program in which
//! nothing has changed could have the same table on another path a minute later.

use std::cmp::Ordering;

use lj_trace_streams::hash::AddrMap;

use super::index::PlaceNumber;
use super::paths::{PathId, Paths};

/// An object that was met, and is to be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    /// Where it is.
    pub place: PlaceNumber,
    /// The place of the object through which it was met, or what stands for a root.
    pub parent: u32,
    /// The type that it must have in its upper eight bits, 0 if it may be any; below, the path to it.
    bits: u32,
}

impl Pending {
    /// An object of a type, 0 if it may be any, on a path.
    pub fn new(place: PlaceNumber, parent: u32, gct: u8, path: PathId) -> Self {
        Self { place, parent, bits: u32::from(gct) << 24 | path.0 & 0xff_ffff }
    }

    /// The type that it must have; 0 if it may be any.
    pub const fn gct(self) -> u8 {
        (self.bits >> 24) as u8
    }

    /// The path to it.
    pub const fn path(self) -> PathId {
        PathId(self.bits & 0xff_ffff)
    }
}

/// The objects of a level.
#[derive(Debug, Default)]
pub struct PendingLevel {
    pending: Vec<Pending>,
    /// Once there are so many, what is in there more than once is looked for.
    enough: usize,
    /// What was added lately, and when, so that a metatable that a million objects have is not added a million times.
    recent: Vec<(u32, u32, u32)>,
    /// How many levels there were: what was added to an earlier one is not in this one.
    number: u32,
}

/// So many are remembered.
const RECENT: usize = 1 << 12;

/// So many take 12 MB.
const MANY: usize = 1 << 20;

impl PendingLevel {
    /// Adds an object.
    pub fn add(&mut self, pending: Pending, order: &mut PathOrder, paths: &Paths) {
        if self.recent.is_empty() {
            self.recent = vec![(u32::MAX, u32::MAX, u32::MAX); RECENT];
        }
        let (place, path) = (pending.place.0, pending.path().0);
        let slot = (place ^ place >> 12 ^ path.wrapping_mul(0x9e37_79b1) >> 7) as usize % RECENT;
        if self.recent[slot] == (place, path, self.number) {
            return;
        }
        self.recent[slot] = (place, path, self.number);
        self.pending.push(pending);
        if self.pending.len() >= self.enough.max(MANY) {
            self.unite(order, paths);
            self.enough = 2 * self.pending.len();
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// How many there are, some of them more than once.
    pub fn len(&self) -> usize {
        self.pending.len()
    }

    /// All of them in the order of their places, each once.
    pub fn take(&mut self, order: &mut PathOrder, paths: &Paths) -> Vec<Pending> {
        self.unite(order, paths);
        self.number = self.number.wrapping_add(1);
        self.enough = 0;
        std::mem::take(&mut self.pending)
    }

    fn unite(&mut self, order: &mut PathOrder, paths: &Paths) {
        self.pending.sort_unstable_by_key(|pending| (pending.place, pending.parent, pending.bits));
        self.pending.dedup_by(|other, kept| {
            let same = other.place == kept.place;
            if same && order.is_before(paths, other.path(), kept.path()) {
                *kept = *other;
            }
            same
        });
    }
}

/// Which path comes first: what was asked before is remembered.
#[derive(Debug, Default)]
pub struct PathOrder(AddrMap<(u32, u32), bool>);

/// So many answers are.
const MAX_KNOWN: usize = 1 << 16;

impl PathOrder {
    fn is_before(&mut self, paths: &Paths, one: PathId, other: PathId) -> bool {
        if one == other {
            return false;
        }
        if self.0.len() >= MAX_KNOWN {
            self.0.clear();
        }
        let compare = || paths.compare(one, other) == Ordering::Less;
        *self.0.entry((one.0, other.0)).or_insert_with(compare)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_object_is_there_once_on_the_first_way() {
        let (mut paths, mut order) = (Paths::default(), PathOrder::default());
        let root = paths.root("globals");
        let (last, first) = (paths.step(root, ".z"), paths.step(root, ".a"));
        let mut level = PendingLevel::default();
        for parent in 0..3 * MANY as u32 {
            // They are not added in vain, but none of them is there twice.
            let path = if parent % 2 == 0 { last } else { first };
            level.add(Pending::new(PlaceNumber(parent % 7), parent, 5, path), &mut order, &paths);
        }
        assert!(level.len() <= MANY);
        let all = level.take(&mut order, &paths);
        assert_eq!(all.iter().map(|pending| pending.place.0).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 6]);
        assert!(all.iter().all(|pending| pending.path() == first && pending.gct() == 5), "{all:?}");
        assert!(level.is_empty());
    }
}
