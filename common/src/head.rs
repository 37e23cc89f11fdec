//! The beginnings of objects, read in one piece: in the kernel, a read costs about as much for one field as for
//! all of them.

use crate::memory::{ReadMemory, Unreadable};

/// The first `WORDS` words of an object.
///
/// Fields lie in one word each, as compilers align them.
#[derive(Clone, Copy, Debug)]
pub struct Head<const WORDS: usize>([u64; WORDS]);

impl<const WORDS: usize> Head<WORDS> {
    /// Reads the head of the object at `address`: `WORDS` words of it if `gc64`, else `NARROW`, since objects with
    /// narrower references are shorter, and may end where their page does.
    ///
    /// # Errors
    /// [`Unreadable`] if any of the words is.
    #[inline(always)]
    pub fn read<const NARROW: usize>(memory: &impl ReadMemory, gc64: bool, address: u64) -> Result<Self, Unreadable> {
        const { assert!(NARROW <= WORDS) };
        if gc64 {
            return memory.read(address).map(Self);
        }
        let narrow = memory.read::<[u64; NARROW]>(address)?;
        let mut words = [0; WORDS];
        let mut index = 0;
        while index < NARROW {
            words[index] = narrow[index];
            index += 1;
        }
        Ok(Self(words))
    }

    /// The word at `offset`.
    ///
    /// # Errors
    /// As for all fields: [`Unreadable`] if it does not lie within the head.
    #[inline(always)]
    pub fn u64(&self, offset: u16) -> Result<u64, Unreadable> {
        // The BPF verifier follows bounds through the shifts of an index, but not through the mask that LLVM would
        // make of them.
        let word = core::hint::black_box(usize::from(offset / 8));
        self.0.get(word).copied().ok_or(Unreadable)
    }

    /// The 4 bytes at `offset`.
    #[inline(always)]
    pub fn u32(&self, offset: u16) -> Result<u32, Unreadable> {
        Ok((self.u64(offset)? >> (u32::from(offset & 4) * 8)) as u32)
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
