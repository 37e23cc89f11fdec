//! A hasher for addresses.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map by addresses and small numbers. The standard hasher would take most of the time of reading a stream.
pub(super) type AddrMap<K, V> = HashMap<K, V, BuildHasherDefault<AddrHasher>>;

/// Multiplies and folds: the low bits of addresses are zero, those of the result are not.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AddrHasher(u64);

impl Hasher for AddrHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
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
