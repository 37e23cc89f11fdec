//! A hasher for addresses and symbols.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

/// A map by addresses, small numbers, or stacks of them. The standard hasher would take most of the time of reading a stream.
pub type AddrMap<K, V> = HashMap<K, V, BuildHasherDefault<AddrHasher>>;

/// Strings that are held once.
pub type StringSet = HashSet<Arc<[u8]>, BuildHasherDefault<AddrHasher>>;

/// Multiplies and folds: the low bits of addresses are zero, those of the result are not.
#[derive(Clone, Copy, Debug, Default)]
pub struct AddrHasher(u64);

impl Hasher for AddrHasher {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|&word| self.write_u64(u64::from_le_bytes(word)));
        let last = rest.iter().fold(rest.len() as u64, |last, &byte| last << 8 | u64::from(byte));
        self.write_u64(last);
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        // 2^64 divided by the golden ratio.
        let product = u128::from(self.0.rotate_left(5) ^ value) * 0x9e37_79b9_7f4a_7c15;
        self.0 = product as u64 ^ (product >> 64) as u64;
    }

    fn write_isize(&mut self, value: isize) {
        self.write_u64(value as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// A map by the addresses of a heap.
pub type HeapMap<V> = HashMap<u64, V, BuildHasherDefault<HeapHasher>>;

/// Keeps the neighbours of a page together, in the table as in the heap: what is allocated together is freed together,
/// and a heap is larger than the caches.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeapHasher(u64);

impl Hasher for HeapHasher {
    fn write(&mut self, bytes: &[u8]) {
        let mut hasher = AddrHasher(self.0);
        hasher.write(bytes);
        self.0 = hasher.finish();
    }

    fn write_u64(&mut self, addr: u64) {
        // The table takes its position from the low bits, and 7 bits to compare from the high ones.
        let page = (addr >> 12).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let slot = (addr >> 4) & 0xff;
        self.0 = (page >> 20) << 8 & !0 >> 7 | slot | addr.wrapping_mul(0x9e37_79b9_7f4a_7c15) & !0 << 57;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
