//! Caches memory pages for walks over many small objects.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use foldhash::fast::RandomState;
use lj_trace_common::memory::{Pod, ReadMemory, Unreadable};

use super::overlay::plain_at;

const PAGE: usize = 4096;

/// The most pages that are read at once, when neighbouring pages are read one after the other.
const MOST_AHEAD: u64 = 16;

/// The most pages that are kept when pages are read ahead.
const MOST_KEPT: usize = 8192;

/// Pages by their number; `None` for those that cannot be read as a whole.
type Pages = HashMap<u64, Option<Box<[u8; PAGE]>>, RandomState>;

/// Reads each page of a memory at most once. Only for short walks: the cache does not see later changes.
pub struct PageCache<'a, M> {
    memory: &'a M,
    pages: RefCell<Pages>,
    reads: Cell<usize>,
    /// The last run of pages, if pages are read ahead.
    run: Option<Cell<Run>>,
}

/// Neighbouring pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Run {
    first: u64,
    count: u64,
}

impl Run {
    /// What to read for a page: twice as many pages as last time if it continues the last run, else only this page.
    fn next(self, page: u64) -> Self {
        let count = (2 * self.count).min(MOST_AHEAD);
        if self.count != 0 && page == self.first.wrapping_add(self.count) {
            Self { first: page, count }
        } else if self.count != 0 && page.wrapping_add(1) == self.first {
            Self { first: page.saturating_sub(count - 1), count: count.min(page + 1) }
        } else {
            Self { first: page, count: 1 }
        }
    }
}

impl<'a, M: ReadMemory> PageCache<'a, M> {
    /// An empty cache of `memory`.
    pub fn new(memory: &'a M) -> Self {
        Self { memory, pages: RefCell::default(), reads: Cell::default(), run: None }
    }

    /// Like [`Self::new`], for a walk over much of a heap: if it reads pages one after the other, some pages are read
    /// ahead. It keeps no more than 32 MiB.
    pub fn reading_ahead(memory: &'a M) -> Self {
        Self { run: Some(Cell::default()), ..Self::new(memory) }
    }

    /// How often the memory was read. This is the cost of a walk, independent of the machine's load.
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

    /// Reads a page, and the pages that are likely to be next.
    #[cold]
    fn read_page(&self, page: u64, pages: &mut Pages) {
        if let Some(run) = &self.run {
            if pages.len() >= MOST_KEPT {
                pages.clear();
            }
            let next = run.get().next(page);
            run.set(next);
            if next.count > 1 && self.read_run(next, pages) {
                return;
            }
            run.set(Run { first: page, count: 1 });
        }
        self.count_read();
        pages.insert(page, self.memory.read(page * PAGE as u64).map(Box::new).ok());
    }

    /// Reads neighbouring pages at once; returns false if one of them cannot be read.
    fn read_run(&self, run: Run, pages: &mut Pages) -> bool {
        let mut words = vec![0; run.count as usize * PAGE / 8];
        self.count_read();
        if self.memory.read_words(run.first * PAGE as u64, &mut words).is_err() {
            return false;
        }
        for (page, words) in (run.first..).zip(words.as_chunks::<{ PAGE / 8 }>().0) {
            pages.entry(page).or_insert_with(|| {
                let mut bytes = Box::new([0; PAGE]);
                for (bytes, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
                    *bytes = word.to_ne_bytes();
                }
                Some(bytes)
            });
        }
        true
    }
}

impl<M: ReadMemory> ReadMemory for PageCache<'_, M> {
    fn read<T: Pod>(&self, address: u64) -> Result<T, Unreadable> {
        let (page, offset) = (address / PAGE as u64, address % PAGE as u64);
        if offset as usize + size_of::<T>() > PAGE {
            // Values across two pages are rare.
            self.count_read();
            return self.memory.read(address);
        }
        let mut pages = self.pages.borrow_mut();
        if !pages.contains_key(&page) {
            self.read_page(page, &mut pages);
        }
        match pages.get(&page) {
            Some(Some(page)) => plain_at(&page[..], offset).ok_or(Unreadable),
            // Saved memory may have only a part of the page.
            Some(None) | None => {
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

    #[test]
    fn pages_are_read_ahead_where_neighbours_follow_each_other() {
        const PAGES: u64 = 64;
        let bytes: Vec<u8> = (0..PAGES as usize * PAGE).map(|at| (at / PAGE) as u8).collect();
        let start = 16 * PAGE as u64;
        let memory = Saved::new(start, bytes);
        let up: Vec<u64> = (0..PAGES).collect();
        let down: Vec<u64> = (0..PAGES).rev().collect();
        // No page is next to the one before.
        let apart: Vec<u64> = (0..PAGES).map(|page| page * 27 % PAGES).collect();
        for (order, most) in [(up, 12), (down, 12), (apart, PAGES as usize)] {
            let cache = PageCache::reading_ahead(&memory);
            for page in &order {
                assert_eq!(cache.read::<u8>(start + page * PAGE as u64 + 77), Ok(*page as u8));
            }
            assert!(cache.reads() <= most, "{} reads", cache.reads());
            // If a run reaches beyond the memory, the page itself is still read.
            assert_eq!(cache.read::<u8>(start - 1), Err(Unreadable));
        }
    }
}
