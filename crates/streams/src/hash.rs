//! Maps by addresses and symbols.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher as _, BuildHasherDefault, Hasher};
use std::sync::Arc;

use foldhash::fast::{FixedState, RandomState};

/// A map by addresses, small numbers, or stacks of them. The standard hasher would take most of the time of reading a
/// stream.
pub type AddrMap<K, V> = HashMap<K, V, FixedState>;

/// A set in which each string is stored once.
pub type StringSet = HashSet<Arc<[u8]>, RandomState>;

/// A map by the addresses of a heap.
pub type HeapMap<V> = HashMap<u64, V, BuildHasherDefault<HeapHasher>>;

/// Keeps the addresses of a page together in the table: objects that are allocated together are freed together, and a heap
/// is larger than the CPU caches.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeapHasher(u64);

impl Hasher for HeapHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = FixedState::with_seed(self.0).hash_one(bytes);
    }

    fn write_u64(&mut self, addr: u64) {
        // The table uses the low bits for the position, and the 7 high bits for comparisons.
        let page = (addr >> 12).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let slot = (addr >> 4) & 0xff;
        self.0 = (page >> 20) << 8 & !0 >> 7 | slot | addr.wrapping_mul(0x9e37_79b9_7f4a_7c15) & !0 << 57;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
