//! The target's memory, read from within the kernel.

use core::mem::MaybeUninit;

use aya_ebpf::helpers::{bpf_probe_read_user, generated};
use lj_trace_common::memory::{Pod, ReadMemory, Unreadable};

/// The user memory of the process that the program interrupted. Pages that are not present are not brought in.
#[derive(Clone, Copy)]
pub struct UserMemory;

impl ReadMemory for UserMemory {
    #[inline(always)]
    fn read<T: Pod>(&self, address: u64) -> Result<T, Unreadable> {
        // SAFETY: the helper checks the address; `T` is plain data, valid for every bit pattern.
        unsafe { bpf_probe_read_user(address as *const T) }.map_err(|_| Unreadable)
    }

    #[inline(always)]
    fn read_array<'m, const N: usize>(
        &self,
        address: u64,
        into: &'m mut MaybeUninit<[u64; N]>,
    ) -> Result<&'m mut [u64; N], Unreadable> {
        // SAFETY: the helper fills all of it, with zeros where it fails, and checks the address.
        let outcome = unsafe {
            generated::bpf_probe_read_user(into.as_mut_ptr().cast(), size_of::<[u64; N]>() as u32, address as *const _)
        };
        // SAFETY: as above.
        if outcome == 0 { Ok(unsafe { into.assume_init_mut() }) } else { Err(Unreadable) }
    }

    #[inline(always)]
    fn read_over<const N: usize>(&self, address: u64, words: &mut [u64; N]) -> Result<(), Unreadable> {
        self.read_words(address, words)
    }

    #[inline(always)]
    fn read_words(&self, address: u64, words: &mut [u64]) -> Result<(), Unreadable> {
        // SAFETY: the helper writes no more than the slice's bytes, and checks the address.
        let outcome = unsafe {
            generated::bpf_probe_read_user(words.as_mut_ptr().cast(), size_of_val(words) as u32, address as *const _)
        };
        if outcome == 0 { Ok(()) } else { Err(Unreadable) }
    }
}
