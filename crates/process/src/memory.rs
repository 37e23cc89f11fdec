//! The target's memory, read with `process_vm_readv`: the target is neither stopped nor changed.

use std::mem::MaybeUninit;

use lj_trace_common::memory::{Pod, ReadMemory, Unreadable};

/// Read access to the memory of a process.
#[derive(Clone, Copy, Debug)]
pub struct ProcessMemory {
    pid: libc::pid_t,
}

impl ProcessMemory {
    /// Memory of the process `pid`. Nothing is checked until the first read.
    pub fn new(pid: u32) -> Self {
        // Linux pids fit: the kernel's limit is 2^22.
        Self { pid: pid as libc::pid_t }
    }

    /// Reads up to `buffer.len()` bytes at `address`; returns how many were read, which is fewer where
    /// the memory ends.
    ///
    /// # Errors
    /// [`Unreadable`] if not even the first byte can be read.
    pub fn read_some(&self, address: u64, buffer: &mut [u8]) -> Result<usize, Unreadable> {
        let local = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: buffer.len() };
        // SAFETY: `local` describes `buffer`, which is writable and outlives the call; `remote` is only an
        // address in the other process, which the kernel checks.
        let count = unsafe { libc::process_vm_readv(self.pid, &local, 1, &remote, 1, 0) };
        usize::try_from(count).ok().filter(|&count| count > 0 || buffer.is_empty()).ok_or(Unreadable)
    }

    /// Fills `buffer` from `address`.
    ///
    /// # Errors
    /// [`Unreadable`] if any byte of it cannot be read.
    pub fn read_exact(&self, address: u64, buffer: &mut [u8]) -> Result<(), Unreadable> {
        let mut done = 0;
        while done < buffer.len() {
            done += self.read_some(address.wrapping_add(done as u64), &mut buffer[done..])?;
        }
        Ok(())
    }

    /// Reads several places at once, each an address and a number of bytes, one after the other into one buffer. The
    /// result ends before the first place that cannot be read in full. There may be at most 1024 places (`IOV_MAX`).
    pub fn read_scattered(&self, places: &[(u64, usize)]) -> Vec<u8> {
        let mut bytes = vec![0; places.iter().map(|(_, size)| size).sum()];
        let count = self.read_places(places, &mut bytes);
        bytes.truncate(count);
        bytes
    }

    /// Like [`ProcessMemory::read_scattered`], but into a given buffer. Returns the number of bytes read.
    pub fn read_places(&self, places: &[(u64, usize)], buffer: &mut [u8]) -> usize {
        self.read_places_of_living(places, buffer).unwrap_or(0)
    }

    /// The same; [`None`] if the process does not exist any more, so that nothing of it can be read.
    pub(crate) fn read_places_of_living(&self, places: &[(u64, usize)], buffer: &mut [u8]) -> Option<usize> {
        let local = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        let remote = |&(address, size): &(u64, usize)| libc::iovec { iov_base: address as *mut _, iov_len: size };
        let remote: Vec<libc::iovec> = places.iter().map(remote).collect();
        // SAFETY: `local` describes `buffer`, which is writable and outlives the call; `remote` has as many elements as is
        // said, which are only addresses in the other process, which the kernel checks.
        let count =
            unsafe { libc::process_vm_readv(self.pid, &local, 1, remote.as_ptr(), remote.len() as libc::c_ulong, 0) };
        match usize::try_from(count) {
            Ok(count) => Some(count),
            // A zombie has no memory, either.
            Err(_) if std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH) => None,
            Err(_) => Some(0),
        }
    }

    /// Reads `length` bytes at `address`.
    ///
    /// # Errors
    /// [`Unreadable`] if any byte of it cannot be read.
    pub fn read_bytes(&self, address: u64, length: usize) -> Result<Vec<u8>, Unreadable> {
        let mut bytes = vec![0; length];
        self.read_exact(address, &mut bytes)?;
        Ok(bytes)
    }
}

impl ReadMemory for ProcessMemory {
    fn read<T: Pod>(&self, address: u64) -> Result<T, Unreadable> {
        let mut value = MaybeUninit::<T>::zeroed();
        // SAFETY: the slice covers exactly the zeroed bytes of `value`, which has no other borrow.
        let bytes = unsafe { std::slice::from_raw_parts_mut(value.as_mut_ptr().cast::<u8>(), size_of::<T>()) };
        self.read_exact(address, bytes)?;
        // SAFETY: all bytes are initialized, and `Pod` makes every bit pattern valid.
        Ok(unsafe { value.assume_init() })
    }

    fn read_words(&self, address: u64, words: &mut [u64]) -> Result<(), Unreadable> {
        // SAFETY: the slice covers exactly the bytes of `words`, and every bit pattern of theirs is a valid one.
        let bytes = unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), size_of_val(words)) };
        self.read_exact(address, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_its_own_memory() {
        let memory = ProcessMemory::new(std::process::id());
        let value = 0x0123_4567_89ab_cdef_u64;
        assert_eq!(memory.read::<u64>((&raw const value) as u64), Ok(value));
        assert_eq!(memory.read::<[u16; 2]>((&raw const value) as u64), Ok([0xcdef, 0x89ab]));
        assert_eq!(memory.read::<u64>(0), Err(Unreadable));
        let (pair, mut words) = ([value, !value], [0; 2]);
        assert_eq!(memory.read_words((&raw const pair) as u64, &mut words), Ok(()));
        assert_eq!((words, memory.read_words(0, &mut words)), ([value, !value], Err(Unreadable)));
        let other = 0x77_u8;
        let places = [((&raw const value) as u64 + 4, 2), ((&raw const other) as u64, 1), (0, 4)];
        assert_eq!(memory.read_scattered(&places[..2]), [0x67, 0x45, 0x77]);
        assert_eq!(memory.read_scattered(&places), [0x67, 0x45, 0x77], "the last one is not readable");
    }
}
