//! The objects that a walk has met and will visit next: each object once, on the path that is first by its names.
//!
//! If the walk took the first path that it finds among paths of the same length, the result would depend on the order of
//! addresses: the same table could be on another path a minute later, even in a program in which nothing has changed.

use std::cmp::Ordering;

use lj_trace_streams::hash::AddrMap;

use super::index::PlaceNumber;
use super::paths::{PathId, Paths};

/// An object that was met and has to be visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    /// The place of the object.
    pub place: PlaceNumber,
    /// The place of the object through which it was met, or the number of a root.
    pub parent: u32,
    /// The upper eight bits are the type that the object must have, or 0 for any type. The rest is the path to it.
    bits: u32,
}

impl Pending {
    /// An object of a type, or 0 for any type, on a path.
    pub fn new(place: PlaceNumber, parent: u32, gct: u8, path: PathId) -> Self {
        Self { place, parent, bits: u32::from(gct) << 24 | path.0 & 0xff_ffff }
    }

    /// The type that the object must have; 0 for any type.
    pub const fn gct(self) -> u8 {
        (self.bits >> 24) as u8
    }

    /// The path to the object.
    pub const fn path(self) -> PathId {
        PathId(self.bits & 0xff_ffff)
    }
}

/// The objects of one level of the walk.
#[derive(Debug, Default)]
pub struct PendingLevel {
    pending: Vec<Pending>,
    /// The number of entries at which duplicates are removed.
    enough: usize,
    /// Recently added objects and their levels, so that a metatable of a million objects is not added a million times.
    recent: Vec<(u32, u32, u32)>,
    /// The number of this level. Entries of `recent` from an earlier level are not in this one.
    number: u32,
}

/// The most recent objects to remember.
const RECENT: usize = 1 << 12;

/// The number of entries that take 12 MB.
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

    /// Whether the level has no object.
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// The number of entries. An object may have several.
    pub fn len(&self) -> usize {
        self.pending.len()
    }

    /// All objects in the order of their places, each once.
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

/// Compares paths, and remembers the results.
#[derive(Debug, Default)]
pub struct PathOrder(AddrMap<(u32, u32), bool>);

/// The most results to remember.
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
            // Each object is added several times, and must be there once.
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
