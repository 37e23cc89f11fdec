//! The largest strings and tables of a heap.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::object::Kind;
use super::paths::PathId;

/// A large object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Big {
    /// The bytes that it accounts for in `gc.total`.
    pub bytes: u64,
    /// The address of the object.
    pub address: u64,
    /// The number of the path that keeps it alive.
    pub path: u32,
}

/// The largest strings and the largest tables, up to a limit of each.
#[derive(Clone, Debug)]
pub struct Biggest {
    limit: usize,
    strings: BinaryHeap<Reverse<Big>>,
    tables: BinaryHeap<Reverse<Big>>,
}

impl Biggest {
    /// Keeps the largest `limit` objects of each type.
    pub fn new(limit: usize) -> Self {
        Self { limit, strings: BinaryHeap::new(), tables: BinaryHeap::new() }
    }

    /// Adds an object, if it is large enough.
    pub fn offer(&mut self, kind: Kind, bytes: u64, address: u64, path: PathId) {
        let heap = match kind {
            Kind::String => &mut self.strings,
            Kind::Table => &mut self.tables,
            _ => return,
        };
        if heap.len() >= self.limit && heap.peek().is_none_or(|Reverse(least)| least.bytes >= bytes) {
            return;
        }
        heap.push(Reverse(Big { bytes, address, path: path.0 }));
        if heap.len() > self.limit {
            heap.pop();
        }
    }

    /// The largest strings, the largest first.
    pub fn strings(&self) -> Vec<Big> {
        sorted(&self.strings)
    }

    /// The largest tables, the largest first.
    pub fn tables(&self) -> Vec<Big> {
        sorted(&self.tables)
    }
}

fn sorted(heap: &BinaryHeap<Reverse<Big>>) -> Vec<Big> {
    let mut all: Vec<Big> = heap.iter().map(|Reverse(big)| *big).collect();
    all.sort_unstable_by_key(|big| (Reverse(big.bytes), big.address));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_of_each_type_are_kept() {
        let mut biggest = Biggest::new(3);
        for size in [5, 1, 9, 7, 3, 9] {
            biggest.offer(Kind::String, size, 100 + size, PathId(0));
            biggest.offer(Kind::Table, 2 * size, size, PathId(1));
            biggest.offer(Kind::Upvalue, 1000, 1, PathId(1));
        }
        assert_eq!(biggest.strings().iter().map(|big| big.bytes).collect::<Vec<_>>(), [9, 9, 7]);
        assert_eq!(biggest.tables().iter().map(|big| big.bytes).collect::<Vec<_>>(), [18, 18, 14]);
        let mut none = Biggest::new(0);
        none.offer(Kind::String, 1, 1, PathId(0));
        assert!(none.strings().is_empty());
    }
}
