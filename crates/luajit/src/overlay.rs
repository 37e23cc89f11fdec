//! A copy of one range of memory, laid over the live memory.

use std::cell::RefCell;

use lj_trace_common::memory::{Pod, ReadMemory, Unreadable};

use super::object::read_some;

/// Reads from a copy if it covers an address, and from the live memory elsewhere. So several fields of a running VM are
/// seen as they were at one moment.
pub struct Overlay<'a, M> {
    memory: &'a M,
    start: u64,
    copy: Vec<u8>,
    /// What was read, and where, if the caller wants to know.
    used: Option<RefCell<Vec<Used>>>,
}

/// What was read at an address, up to 16 bytes.
struct Used {
    address: u64,
    bytes: [u8; 16],
    length: usize,
}

impl<'a, M: ReadMemory> Overlay<'a, M> {
    /// Copies up to `length` bytes at `start`, fewer where the memory ends.
    pub fn new(memory: &'a M, start: u64, length: usize) -> Self {
        Self { memory, start, copy: read_some(memory, start, length), used: None }
    }

    /// Like [`Self::new`], and also notes what is read.
    pub fn noting(memory: &'a M, start: u64, length: usize) -> Self {
        Self { used: Some(RefCell::default()), ..Self::new(memory, start, length) }
    }

    /// The live memory.
    pub fn memory(&self) -> &'a M {
        self.memory
    }

    /// Forgets what was noted so far.
    pub fn forget_uses(&self) {
        if let Some(used) = &self.used {
            used.borrow_mut().clear();
        }
    }

    /// Whether memory still holds everything that was noted.
    pub fn is_as_used(&self) -> bool {
        let Some(used) = &self.used else { return true };
        let now = read_some(self.memory, self.start, self.copy.len());
        used.borrow().iter().all(|Used { address, bytes, length }| {
            let bytes = &bytes[..*length];
            let offset = address.checked_sub(self.start).and_then(|offset| usize::try_from(offset).ok());
            match offset.and_then(|offset| now.get(offset..offset.checked_add(bytes.len())?)) {
                Some(now) => now == bytes,
                None => read_some(self.memory, *address, bytes.len()) == *bytes,
            }
        })
    }
}

impl<M: ReadMemory> ReadMemory for Overlay<'_, M> {
    fn read<T: Pod>(&self, address: u64) -> Result<T, Unreadable> {
        let in_copy = address.checked_sub(self.start).and_then(|offset| plain_at(&self.copy, offset));
        let value = in_copy.map_or_else(|| self.memory.read(address), Ok)?;
        if let Some(used) = &self.used {
            let mut used = used.borrow_mut();
            for (address, bytes) in (address..).step_by(16).zip(bytes_of(&value).chunks(16)) {
                let mut copy = [0; 16];
                copy[..bytes.len()].copy_from_slice(bytes);
                used.push(Used { address, bytes: copy, length: bytes.len() });
            }
        }
        Ok(value)
    }
}

/// The bytes of a value of plain data.
pub(crate) fn bytes_of<T: Pod>(value: &T) -> &[u8] {
    // SAFETY: `Pod` has neither padding nor pointers that own something, so its bytes are initialized; they live as
    // long as the value.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// Takes a value of plain data out of `bytes` at `offset`.
pub fn plain_at<T: Pod>(bytes: &[u8], offset: u64) -> Option<T> {
    let start = usize::try_from(offset).ok()?;
    let bytes = bytes.get(start..start.checked_add(size_of::<T>())?)?;
    // SAFETY: `bytes` has exactly the size of `T`, `Pod` accepts every bit pattern, and the read is unaligned.
    Some(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Saved;

    #[test]
    fn prefers_the_copy() {
        let before = Saved::new(0x1000, vec![1, 2, 3, 4, 5, 6, 7, 8]);
        let memory = Saved::new(0x1000, vec![9; 8]);
        let overlay = Overlay { memory: &memory, ..Overlay::new(&before, 0x1000, 4) };
        assert_eq!(overlay.read::<u32>(0x1000), Ok(0x0403_0201));
        assert_eq!(overlay.read::<u16>(0x1003), Ok(0x0909), "half outside: all of it from the live memory");
        assert_eq!(overlay.read::<u8>(0xfff), Err(Unreadable));
    }

    #[test]
    fn knows_whether_what_it_has_shown_has_changed() {
        /// A byte at 0x1008 that changes with each read, behind bytes that never change.
        struct Moving(Saved, std::cell::Cell<u8>);
        impl ReadMemory for Moving {
            fn read<T: Pod>(&self, address: u64) -> Result<T, Unreadable> {
                if address != 0x1008 {
                    return self.0.read(address);
                }
                self.1.set(self.1.get() + 1);
                plain_at(&[self.1.get()], 0).ok_or(Unreadable)
            }
        }
        let copied = Moving(Saved::new(0x1000, vec![1, 2, 3, 4, 5, 6, 7, 8]), 0.into());
        let memory = Moving(Saved::new(0x1000, vec![1, 2, 9, 4, 5, 6, 7, 8]), 0.into());
        let overlay = Overlay { memory: &memory, ..Overlay::noting(&copied, 0x1000, 8) };
        overlay.read::<u16>(0x1000).unwrap();
        overlay.read::<u32>(0x1004).unwrap();
        assert!(overlay.is_as_used(), "what has changed was not looked at");
        overlay.read::<u16>(0x1002).unwrap();
        assert!(!overlay.is_as_used());
        overlay.forget_uses();
        assert!(overlay.is_as_used());
        overlay.read::<u8>(0x1008).unwrap();
        assert!(!overlay.is_as_used(), "outside of the copy");
    }
}
