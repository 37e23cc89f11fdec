//! The target's memory at the time when parts of it were copied.

use lj_trace_common::frame::ReadFrames;
use lj_trace_common::memory::{Pod, ReadMemory, Unreadable};

use lj_trace_luajit::overlay::plain_at;
use lj_trace_luajit::page_cache::PageCache;
use lj_trace_process::ProcessMemory;
use lj_trace_unwind::StackCopy;

/// A copied range of memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopiedRange {
    /// The address of the first byte.
    pub start: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

impl CopiedRange {
    /// Copies up to `length` bytes at `start`, or fewer if the memory ends earlier. It uses as few system calls as
    /// possible, so that the copy shows nearly a single moment.
    pub fn read(memory: &ProcessMemory, start: u64, length: usize) -> Self {
        let mut bytes = vec![0; length];
        let mut done = 0;
        while done < length {
            match memory.read_some(start.wrapping_add(done as u64), &mut bytes[done..]) {
                Ok(count) => done += count,
                Err(Unreadable) => break,
            }
        }
        bytes.truncate(done);
        Self { start, bytes }
    }

    /// The copy as a native stack, for unwinding.
    pub fn as_stack(&self) -> StackCopy<'_> {
        StackCopy { start: self.start, bytes: &self.bytes }
    }

    /// The value at `address`, if the copy contains all of it.
    fn read_at<T: Pod>(&self, address: u64) -> Option<T> {
        plain_at(&self.bytes, address.checked_sub(self.start)?)
    }
}

/// Reads from copies if they cover an address, otherwise from live memory, each page once: functions and prototypes do not
/// change while they are in use.
pub struct View<'a> {
    /// The live memory.
    pub live: &'a PageCache<'a, ProcessMemory>,
    /// The copies.
    pub copies: Vec<&'a CopiedRange>,
}

impl ReadFrames for View<'_> {}

impl ReadMemory for View<'_> {
    fn read<T: Pod>(&self, address: u64) -> Result<T, Unreadable> {
        match self.copies.iter().find_map(|copy| copy.read_at(address)) {
            Some(value) => Ok(value),
            None => self.live.read(address),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_come_before_live_memory() {
        let mut value = [1_u64, 2];
        let address = value.as_ptr() as u64;
        let memory = ProcessMemory::new(std::process::id());
        let copy = CopiedRange::read(&memory, address, 8);
        assert_eq!(copy.bytes, 1_u64.to_le_bytes());
        value = std::hint::black_box([3, 4]);
        let live = PageCache::new(&memory);
        let view = View { live: &live, copies: vec![&copy] };
        assert_eq!(view.read::<u64>(address), Ok(1));
        assert_eq!(view.read::<u64>(address + 8), Ok(4));
        assert_eq!(view.read::<u64>(address + 4), Ok(4 << 32), "partly outside: all from live memory");
        assert_eq!(value[0], 3);
    }
}
