//! The first words of objects, read in one piece: in the kernel, reading one field costs about as much as reading all of them.

use crate::arch::C_FRAME_WORDS;
use crate::memory::{Pod, ReadMemory, Unreadable};

/// As many words as a trace's fields need.
const TRACE_WORDS: usize = 16;

/// The most words of an object that are read: as many as traces and C frames need, and a power of two, so that a mask
/// makes an index safe ([`Head::u64`]).
const WORDS: usize = if C_FRAME_WORDS > TRACE_WORDS { C_FRAME_WORDS.next_power_of_two() } else { TRACE_WORDS };

/// The first words of an object. Each field lies within one word, as compilers align them.
///
/// One `Head` is reused for one object after the other, because the stack of a BPF program is small.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    words: [u64; WORDS],
}

// SAFETY: an array of integers.
unsafe impl Pod for Head {}

impl Head {
    /// A head without any words read yet.
    pub const EMPTY: Self = Self { words: [0; WORDS] };

    /// Reads the head of the object at `address`: `WIDE` words if `gc64`, else `NARROW`. Objects with narrower
    /// references are shorter, and may end at the end of their page.
    ///
    /// # Errors
    /// [`Unreadable`] if any of the words cannot be read.
    #[inline(always)]
    pub fn read<const WIDE: usize, const NARROW: usize>(
        &mut self,
        memory: &impl ReadMemory,
        gc64: bool,
        address: u64,
    ) -> Result<(), Unreadable> {
        const { assert!(NARROW <= WIDE && WIDE <= WORDS) };
        if gc64 {
            memory.read_words(address, &mut self.words[..WIDE])
        } else {
            memory.read_words(address, &mut self.words[..NARROW])
        }
    }

    /// The word at `offset`.
    ///
    /// # Errors
    /// [`Unreadable`] if the word does not lie within a head. The other accessors fail in the same way.
    #[inline(always)]
    pub fn u64(&self, offset: u16) -> Result<u64, Unreadable> {
        let word = usize::from(offset / 8);
        // Verifiers before Linux 6.8 forget what a comparison says about an index that the compiler keeps on the stack,
        // but they understand a mask. The compiler keeps the mask only because the access comes before the comparison,
        // and is volatile.
        // SAFETY: a reference to a word that is there.
        let value = unsafe { (&raw const self.words[word % WORDS]).read_volatile() };
        if word < WORDS { Ok(value) } else { Err(Unreadable) }
    }

    /// The 4 bytes at `offset`.
    #[inline(always)]
    pub fn u32(&self, offset: u16) -> Result<u32, Unreadable> {
        Ok((self.u64(offset)? >> (u32::from(offset & 4) * 8)) as u32)
    }

    /// The 2 bytes at `offset`.
    #[inline(always)]
    pub fn u16(&self, offset: u16) -> Result<u16, Unreadable> {
        Ok((self.u64(offset)? >> (u32::from(offset & 6) * 8)) as u16)
    }

    /// The byte at `offset`.
    #[inline(always)]
    pub fn u8(&self, offset: u16) -> Result<u8, Unreadable> {
        Ok((self.u64(offset)? >> (u32::from(offset & 7) * 8)) as u8)
    }

    /// The GC reference or GC-width pointer at `offset`.
    #[inline(always)]
    pub fn reference(&self, gc64: bool, offset: u16) -> Result<u64, Unreadable> {
        if gc64 { self.u64(offset) } else { Ok(u64::from(self.u32(offset)?)) }
    }
}

impl Default for Head {
    fn default() -> Self {
        Self::EMPTY
    }
}
