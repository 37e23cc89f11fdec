//! The beginnings of objects, read in one piece: in the kernel, a read costs about as much for one field as for
//! all of them.

use crate::memory::{Plain, ReadMemory, Unreadable};

/// Room for the heads of functions and prototypes.
pub const SMALL: usize = 12;

/// Room for the heads of coroutines and traces.
pub const LARGE: usize = 16;

/// The first words of an object, whose fields lie in one word each, as compilers align them: one less than there is
/// room for, since the BPF verifier does not see that offsets are multiples of 8, and takes the last word to end up to
/// 7 bytes later.
///
/// One is used for one object after the other, since the stack of a BPF program is small.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head<const ROOM: usize = SMALL> {
    words: [u64; ROOM],
}

// SAFETY: an array of integers.
unsafe impl<const ROOM: usize> Plain for Head<ROOM> {}

impl<const ROOM: usize> Head<ROOM> {
    /// Nothing read yet.
    pub const EMPTY: Self = Self { words: [0; ROOM] };

    /// Reads the head of the object at `address`: `WIDE` words of it if `gc64`, else `NARROW`, since objects with
    /// narrower references are shorter, and may end where their page does.
    ///
    /// # Errors
    /// [`Unreadable`] if any of the words is.
    #[inline(always)]
    pub fn read<const WIDE: usize, const NARROW: usize>(
        &mut self,
        memory: &impl ReadMemory,
        gc64: bool,
        address: u64,
    ) -> Result<(), Unreadable> {
        const { assert!(NARROW <= WIDE && WIDE < ROOM) };
        if gc64 {
            memory.read_words(address, &mut self.words[..WIDE])
        } else {
            memory.read_words(address, &mut self.words[..NARROW])
        }
    }

    /// The word at `offset`.
    ///
    /// # Errors
    /// As for all fields: [`Unreadable`] if it does not lie within a head.
    #[inline(always)]
    pub fn u64(&self, offset: u16) -> Result<u64, Unreadable> {
        let word = usize::from(offset / 8);
        if word < ROOM - 1 { Ok(self.words[word]) } else { Err(Unreadable) }
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

impl<const ROOM: usize> Default for Head<ROOM> {
    fn default() -> Self {
        Self::EMPTY
    }
}
