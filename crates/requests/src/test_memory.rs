//! Memory of a program that tests make up.

use std::collections::BTreeMap;

use lj_trace_common::memory::{Pod, ReadMemory, Unreadable};

/// Memory with words at chosen addresses.
#[derive(Clone, Default)]
pub struct Words(BTreeMap<u64, u64>);

impl ReadMemory for Words {
    fn read<T: Pod>(&self, address: u64) -> Result<T, Unreadable> {
        let mut bytes = Vec::new();
        for offset in 0..size_of::<T>() as u64 {
            let at = address.wrapping_add(offset);
            let word = self.0.get(&(at & !7)).ok_or(Unreadable)?;
            bytes.push(word.to_le_bytes()[(at & 7) as usize]);
        }
        // SAFETY: there are as many bytes as the value has, and `Pod` makes every pattern valid.
        Ok(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
    }
}

impl Words {
    pub fn put(&mut self, address: u64, word: u64) {
        self.0.insert(address, word);
    }

    /// From now on nothing can be read there.
    pub fn remove(&mut self, address: u64) {
        self.0.remove(&address);
    }

    pub fn put_words(&mut self, address: u64, words: &[u64]) {
        for (word, at) in words.iter().zip((address..).step_by(8)) {
            self.put(at, *word);
        }
    }

    pub fn put_half(&mut self, address: u64, half: u32) {
        let word = self.0.entry(address & !7).or_default();
        let shift = (address & 4) * 8;
        *word = *word & !(0xffff_ffff << shift) | u64::from(half) << shift;
    }

    /// Puts a text there, and zeros up to the next word.
    pub fn text(&mut self, address: u64, text: &[u8]) {
        for (chunk, at) in text.chunks(8).zip((address..).step_by(8)) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.put(at, u64::from_le_bytes(word));
        }
    }
}
