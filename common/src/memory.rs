//! How the walkers read a target's memory: one trait, implemented over BPF helpers in the kernel, over
//! `process_vm_readv` and over saved memory in user space.

/// Plain data that may be read from arbitrary bytes of another process.
///
/// # Safety
/// Every bit pattern must be a valid value, and the type must have no padding.
pub unsafe trait Plain: Copy {}

// SAFETY: integers have no padding and no invalid values.
unsafe impl Plain for u8 {}
// SAFETY: as above.
unsafe impl Plain for u16 {}
// SAFETY: as above.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for i32 {}
// SAFETY: as above.
unsafe impl Plain for u64 {}
// SAFETY: arrays of plain values have neither padding nor invalid values.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

/// The address could not be read: not mapped, paged out, or outside of what was saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreadable;

/// Reads the memory of a target process. Addresses are the target's.
pub trait ReadMemory {
    /// Reads a value of plain data at `address`, of any alignment.
    fn read<T: Plain>(&self, address: u64) -> Result<T, Unreadable>;

    /// Reads neighbouring words into `words`, at once where that is cheaper. What they hold after an error is not
    /// defined.
    #[inline(always)]
    fn read_words(&self, address: u64, words: &mut [u64]) -> Result<(), Unreadable> {
        for (word, offset) in words.iter_mut().zip((0..).step_by(8)) {
            *word = self.read(address.wrapping_add(offset))?;
        }
        Ok(())
    }

    /// Reads a GC reference or a GC-width pointer: 8 bytes if `gc64`, else 4.
    #[inline(always)]
    fn read_ref(&self, gc64: bool, address: u64) -> Result<u64, Unreadable> {
        if gc64 { self.read::<u64>(address) } else { Ok(u64::from(self.read::<u32>(address)?)) }
    }
}
