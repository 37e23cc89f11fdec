//! The target's memory, read from within the kernel.

use aya_ebpf::helpers::bpf_probe_read_user;
use lj_trace_common::memory::{Plain, ReadMemory, Unreadable};

/// The user memory of the process that the program interrupted. Pages that are not present are not brought in.
#[derive(Clone, Copy)]
pub struct UserMemory;

impl ReadMemory for UserMemory {
    #[inline(always)]
    fn read<T: Plain>(&self, address: u64) -> Result<T, Unreadable> {
        // SAFETY: the helper checks the address; `T` is plain data, valid for every bit pattern.
        unsafe { bpf_probe_read_user(address as *const T) }.map_err(|_| Unreadable)
    }
}
