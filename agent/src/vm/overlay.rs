//! A copy of one range of memory, laid over the live memory.

use lj_trace_common::memory::{Plain, ReadMemory, Unreadable};

use super::object::read_some;

/// Reads from a copy where it covers an address, and from the live memory elsewhere. So several fields of a
/// running VM are seen as they were at one moment.
pub struct Overlay<'a, M> {
    memory: &'a M,
    start: u64,
    copy: Vec<u8>,
}

impl<'a, M: ReadMemory> Overlay<'a, M> {
    /// Copies up to `length` bytes at `start`, fewer where the memory ends.
    pub fn new(memory: &'a M, start: u64, length: usize) -> Self {
        Self { memory, start, copy: read_some(memory, start, length) }
    }
}

impl<M: ReadMemory> ReadMemory for Overlay<'_, M> {
    fn read<T: Plain>(&self, address: u64) -> Result<T, Unreadable> {
        match address.checked_sub(self.start).map(|offset| plain_at(&self.copy, offset)) {
            Some(Some(value)) => Ok(value),
            _ => self.memory.read(address),
        }
    }
}

/// Takes a value of plain data out of `bytes` at `offset`.
pub fn plain_at<T: Plain>(bytes: &[u8], offset: u64) -> Option<T> {
    let start = usize::try_from(offset).ok()?;
    let bytes = bytes.get(start..start.checked_add(size_of::<T>())?)?;
    // SAFETY: `bytes` has exactly the size of `T`, `Plain` accepts every bit pattern, and the read is unaligned.
    Some(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::object::tests::Saved;

    #[test]
    fn prefers_the_copy() {
        let before = Saved::new(0x1000, vec![1, 2, 3, 4, 5, 6, 7, 8]);
        let memory = Saved::new(0x1000, vec![9; 8]);
        let overlay = Overlay { memory: &memory, ..Overlay::new(&before, 0x1000, 4) };
        assert_eq!(overlay.read::<u32>(0x1000), Ok(0x0403_0201));
        assert_eq!(overlay.read::<u16>(0x1003), Ok(0x0909), "half outside: all of it from the live memory");
        assert_eq!(overlay.read::<u8>(0xfff), Err(Unreadable));
    }
}
