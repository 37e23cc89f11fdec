//! Caches memory pages for walks over many small objects.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use lj_trace_common::memory::{Pod, ReadMemory, Unreadable};

use super::overlay::plain_at;

const PAGE: usize = 4096;

/// Reads each page of a memory at most once. Only for short walks: what changes meanwhile is not seen.
pub struct PageCache<'a, M> {
    memory: &'a M,
    /// Pages by their number; `None` for those that cannot be read as a whole.
    pages: RefCell<HashMap<u64, Option<Box<[u8; PAGE]>>>>,
    reads: Cell<usize>,
}

impl<'a, M: ReadMemory> PageCache<'a, M> {
    /// An empty cache of `memory`.
    pub fn new(memory: &'a M) -> Self {
        Self { memory, pages: RefCell::default(), reads: Cell::default() }
    }

    /// How often the memory was read: what a walk costs, however busy the machine is.
    pub fn reads(&self) -> usize {
        self.reads.get()
    }

    fn count_read(&self) {
        self.reads.set(self.reads.get() + 1);
    }

    /// Forgets all pages, so that they are read anew.
    pub fn clear(&self) {
        self.pages.borrow_mut().clear();
    }
}

impl<M: ReadMemory> ReadMemory for PageCache<'_, M> {
    fn read<T: Pod>(&self, address: u64) -> Result<T, Unreadable> {
        let (page, offset) = (address / PAGE as u64, address % PAGE as u64);
        if offset as usize + size_of::<T>() > PAGE {
            // What lies in two pages is rare.
            self.count_read();
            return self.memory.read(address);
        }
        let mut pages = self.pages.borrow_mut();
        let page = pages.entry(page).or_insert_with(|| {
            self.count_read();
            self.memory.read(page * PAGE as u64).map(Box::new).ok()
        });
        match page {
            Some(page) => plain_at(&page[..], offset).ok_or(Unreadable),
            // Saved memory may have a part of it.
            None => {
                self.count_read();
                self.memory.read(address)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Saved;

    #[test]
    fn reads_a_page_once_and_across_pages() {
        let bytes: Vec<u8> = (0..=255).cycle().take(2 * PAGE).collect();
        let memory = Saved::new(0x1000, bytes);
        let cache = PageCache::new(&memory);
        assert_eq!(cache.read::<u32>(0x1101), Ok(0x0403_0201));
        assert_eq!(cache.read::<u32>(0x1fff), Ok(0x0201_00ff));
        assert_eq!(cache.read::<u8>(0x3000), Err(Unreadable));
        assert_eq!((cache.pages.borrow().len(), cache.reads()), (2, 4));
        assert_eq!((cache.read::<u32>(0x1101), cache.reads()), (Ok(0x0403_0201), 4));
        let part = Saved::new(0x1008, vec![1; 8]);
        assert_eq!(PageCache::new(&part).read::<u16>(0x100e), Ok(0x0101), "a page of which only a part was saved");
        cache.clear();
        assert_eq!(cache.pages.borrow().len(), 0);
    }
}
