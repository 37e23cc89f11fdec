//! The target's memory, read from within the kernel.

use core::hint::black_box;
use core::mem::MaybeUninit;

use aya_ebpf::helpers::{bpf_probe_read_user, generated};
use lj_trace_common::event::FrameRecord;
use lj_trace_common::frame::{self, ReadFrames};
use lj_trace_common::layout::VmLayout;
use lj_trace_common::memo::Memo;
use lj_trace_common::memory::{Pod, ReadMemory, Unreadable};

use crate::maps::{SCRATCH, VMS};

/// The user memory of the process that the program interrupted. Reads do not page in missing pages.
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

/// The same memory, read for the sample in the working area with this index.
#[derive(Clone, Copy)]
pub struct SampledMemory {
    pub area: u32,
}

impl ReadMemory for SampledMemory {
    #[inline(always)]
    fn read<T: Pod>(&self, address: u64) -> Result<T, Unreadable> {
        UserMemory.read(address)
    }

    #[inline(always)]
    fn read_array<'m, const N: usize>(
        &self,
        address: u64,
        into: &'m mut MaybeUninit<[u64; N]>,
    ) -> Result<&'m mut [u64; N], Unreadable> {
        UserMemory.read_array(address, into)
    }

    #[inline(always)]
    fn read_over<const N: usize>(&self, address: u64, words: &mut [u64; N]) -> Result<(), Unreadable> {
        UserMemory.read_over(address, words)
    }

    #[inline(always)]
    fn read_words(&self, address: u64, words: &mut [u64]) -> Result<(), Unreadable> {
        UserMemory.read_words(address, words)
    }
}

impl ReadFrames for UserMemory {}

impl ReadFrames for SampledMemory {
    #[inline(always)]
    fn is_frame(&self, _: &VmLayout, record: &mut FrameRecord, memo: &mut Memo) -> bool {
        // `is_sampled_frame` reaches these two through the map, so the compiler must assume that it changes them.
        black_box((&raw mut *record, &raw mut *memo));
        is_sampled_frame(self.area) != 0
    }
}

/// [`frame::is_frame`] for the record, the memo and the VM of the sample in this working area.
///
/// This is a global function: the verifier checks it once, separately, and not again for each of the some forty states
/// that a caller may be in. That more than halves the verifier's work, and so the time that attaching takes. On some
/// kernels, global functions can only have numbers as arguments, so everything else is in the working area.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn is_sampled_frame(area: u32) -> u32 {
    let Some(scratch) = SCRATCH.get_ptr_mut(area) else { return 0 };
    // SAFETY: whoever samples has the area to itself. It has given away its references to these two fields for as long as this
    // function runs (`SampledMemory::is_frame`).
    let machine = unsafe { &mut (*scratch).machine };
    let Some(vm) = VMS.get(machine.vm) else { return 0 };
    u32::from(frame::is_frame(&UserMemory, &vm.layout, &mut machine.record, &mut machine.memo))
}
