//! How the walkers read a target's memory: one trait, implemented over BPF helpers in the kernel, over
//! `process_vm_readv` and over saved memory in user space.

use core::mem::MaybeUninit;

/// Plain old data: values that may be read from arbitrary bytes of another process.
///
/// # Safety
/// Every bit pattern must be a valid value, and the type must have no padding.
pub unsafe trait Pod: Copy {}

// SAFETY: integers have no padding and no invalid values.
unsafe impl Pod for u8 {}
// SAFETY: as above.
unsafe impl Pod for u16 {}
// SAFETY: as above.
unsafe impl Pod for u32 {}
// SAFETY: as above.
unsafe impl Pod for i32 {}
// SAFETY: as above.
unsafe impl Pod for u64 {}
// SAFETY: arrays of plain values have neither padding nor invalid values.
unsafe impl<T: Pod, const N: usize> Pod for [T; N] {}

/// Sets all of `value` to zero, word by word.
///
/// LLVM's BPF backend clears memory only with a loop over its bytes (`MaxStoresPerMemset` is 0, `BPFISelLowering.cpp`).
/// It turns neighbouring assignments of zero into such a loop, too: slow to run, and slower to verify.
#[inline(always)]
pub fn clear<T: Pod>(value: &mut T) {
    // SAFETY: it is valid for writes of its size.
    unsafe { clear_words(value) };
}

/// Creates a value of all zeros in an uninitialized place. Moving a zero value there would compile to such a loop, too.
#[inline(always)]
pub fn zeroed<T: Pod>(place: &mut MaybeUninit<T>) -> &mut T {
    // SAFETY: all of the value is written, with what is a valid one of plain data.
    unsafe {
        clear_words(place.as_mut_ptr());
        place.assume_init_mut()
    }
}

/// Copies a value, word by word. A plain copy may compile to a loop over its bytes, as above.
///
/// # Safety
/// `to` must be valid for writes and aligned.
#[inline(always)]
pub unsafe fn copy_words<T: Pod>(from: &T, to: *mut T) {
    const { assert!(size_of::<T>().is_multiple_of(8) && align_of::<T>() == 8) };
    let (from, to) = ((&raw const *from).cast::<u64>(), to.cast::<u64>());
    for word in 0..size_of::<T>() / 8 {
        // SAFETY: both have so many words. Volatile, so that the compiler does not make a copy of bytes of it.
        unsafe { to.add(word).write_volatile(from.add(word).read()) };
    }
}

/// # Safety
/// `value` must be valid for writes.
#[inline(always)]
unsafe fn clear_words<T: Pod>(value: *mut T) {
    const { assert!(align_of::<T>() == 8 && size_of::<T>().is_multiple_of(8)) };
    for index in 0..size_of::<T>() / 8 {
        // SAFETY: the word lies within the value.
        unsafe { value.cast::<u64>().add(index).write_volatile(0) };
    }
}

/// The address could not be read: not mapped, paged out, or outside of what was saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreadable;

impl core::fmt::Display for Unreadable {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("the memory cannot be read")
    }
}

impl core::error::Error for Unreadable {}

/// Reads the memory of a target process. Addresses are the target's.
pub trait ReadMemory {
    /// Reads a value of plain data at `address`, of any alignment.
    fn read<T: Pod>(&self, address: u64) -> Result<T, Unreadable>;

    /// Reads neighbouring words into `words`, at once where that is cheaper. After an error, the contents of `words`
    /// are undefined.
    #[inline(always)]
    fn read_words(&self, address: u64, words: &mut [u64]) -> Result<(), Unreadable> {
        for (word, offset) in words.iter_mut().zip((0..).step_by(8)) {
            *word = self.read(address.wrapping_add(offset))?;
        }
        Ok(())
    }

    /// Reads neighbouring words into uninitialized memory.
    #[inline(always)]
    fn read_array<'m, const N: usize>(
        &self,
        address: u64,
        into: &'m mut MaybeUninit<[u64; N]>,
    ) -> Result<&'m mut [u64; N], Unreadable> {
        Ok(into.write(self.read(address)?))
    }

    /// Reads neighbouring words over existing ones. After an error, their contents are undefined.
    #[inline(always)]
    fn read_over<const N: usize>(&self, address: u64, words: &mut [u64; N]) -> Result<(), Unreadable> {
        *words = self.read(address)?;
        Ok(())
    }

    /// Reads a GC reference or a GC-width pointer: 8 bytes if `gc64`, else 4.
    #[inline(always)]
    fn read_ref(&self, gc64: bool, address: u64) -> Result<u64, Unreadable> {
        if gc64 { self.read::<u64>(address) } else { Ok(u64::from(self.read::<u32>(address)?)) }
    }
}
