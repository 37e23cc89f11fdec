//! Caches memory in large blocks. The number of cached blocks is bounded.
//!
//! A heap has millions of small objects. A system call for each would take longer than to copy the whole heap, and a copy
//! in memory would take as much memory as the target has. LuaJIT's allocator keeps together what the program allocates
//! together, so a few blocks at a time serve most reads.

use std::cell::RefCell;

use lj_trace_common::memory::{Pod, ReadMemory, Unreadable};

use lj_trace_luajit::overlay::plain_at;
use lj_trace_process::ProcessMemory;
use lj_trace_streams::hash::AddrMap;

/// The size of a block in bytes.
pub const BLOCK: u64 = 256 << 10;

/// The most blocks to keep: 32 MB.
const MAX_BLOCKS: usize = 128;

/// The number of reads in a block after which the whole block is read. Most references from elsewhere hit many blocks once.
const WORTH_IT: u8 = 8;

const PAGE: u64 = 4096;

/// The source of blocks.
pub trait ReadSome {
    /// Reads as much as possible at `address` into `buffer`; returns the number of bytes.
    fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize;

    /// Reads a part of a block that no caller has asked for in particular, if that costs little.
    fn read_block(&self, address: u64, buffer: &mut [u8]) -> usize {
        self.read_some(address, buffer)
    }
}

impl ReadSome for ProcessMemory {
    fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
        Self::read_some(self, address, buffer).unwrap_or(0)
    }
}

/// A cache of blocks of a memory. It does not see changes that come after a block was read.
#[derive(Debug)]
pub struct Blocks<M> {
    memory: M,
    state: RefCell<KeptBlocks>,
}

#[derive(Debug, Default)]
struct KeptBlocks {
    kept: Vec<KeptBlock>,
    /// The index in `kept` of each block, by the block's number.
    places: AddrMap<u64, usize>,
    /// The number of reads in each block that is not kept, by the block's number.
    missed: AddrMap<u64, u8>,
    /// The index of the next candidate for eviction.
    hand: usize,
}

#[derive(Debug)]
struct KeptBlock {
    number: u64,
    used: bool,
    /// A bit for each page that could be read.
    pages: u64,
    bytes: Box<[u8]>,
}

const _: () = assert!(BLOCK / PAGE == u64::BITS as u64);

impl<M: ReadSome> Blocks<M> {
    /// An empty cache of `memory`.
    pub fn new(memory: M) -> Self {
        Self { memory, state: RefCell::default() }
    }

    /// Copies what is readable at `address` into `buffer`; returns the number of bytes.
    pub fn copy(&self, address: u64, buffer: &mut [u8]) -> usize {
        let mut state = self.state.borrow_mut();
        let mut done = 0;
        while done < buffer.len() {
            let Some(at) = address.checked_add(done as u64) else { break };
            let offset = (at % BLOCK) as usize;
            let count = (buffer.len() - done).min(BLOCK as usize - offset);
            let Some(place) = state.place(&self.memory, at / BLOCK) else {
                return done + self.memory.read_some(at, &mut buffer[done..]);
            };
            let copied = state.kept[place].copy(offset, &mut buffer[done..done + count]);
            done += copied;
            if copied < count {
                // The block may leave out memory that can be read but costs more.
                return done + self.memory.read_some(at + copied as u64, &mut buffer[done..]);
            }
        }
        done
    }

    /// Keeps the block of `address`, since the caller expects many reads in it.
    pub fn expect_many(&self, address: u64) {
        let mut state = self.state.borrow_mut();
        let number = address / BLOCK;
        if !state.places.contains_key(&number) {
            state.load(&self.memory, number);
        }
    }
}

impl KeptBlocks {
    /// The index of the block in `kept`, if it is kept or worth keeping.
    fn place<M: ReadSome>(&mut self, memory: &M, number: u64) -> Option<usize> {
        if let Some(&place) = self.places.get(&number) {
            self.kept[place].used = true;
            return Some(place);
        }
        let missed = self.missed.entry(number).or_insert(0);
        *missed += 1;
        (*missed >= WORTH_IT).then(|| self.load(memory, number))
    }

    /// Reads a block, in the place of one that was not used lately.
    fn load<M: ReadSome>(&mut self, memory: &M, number: u64) -> usize {
        self.missed.remove(&number);
        let place = if self.kept.len() < MAX_BLOCKS {
            let bytes = vec![0; BLOCK as usize].into_boxed_slice();
            self.kept.push(KeptBlock { number, used: true, pages: 0, bytes });
            self.kept.len() - 1
        } else {
            // The clock algorithm's second chance. The loop ends after one turn at the latest.
            while std::mem::take(&mut self.kept[self.hand].used) {
                self.hand = (self.hand + 1) % MAX_BLOCKS;
            }
            let place = self.hand;
            self.hand = (self.hand + 1) % MAX_BLOCKS;
            self.places.remove(&self.kept[place].number);
            place
        };
        let block = &mut self.kept[place];
        (block.number, block.used) = (number, true);
        block.fill(memory);
        self.places.insert(number, place);
        place
    }
}

impl KeptBlock {
    /// Reads all pages that can be read.
    fn fill<M: ReadSome>(&mut self, memory: &M) {
        let start = self.number * BLOCK;
        let count = memory.read_block(start, &mut self.bytes) as u64;
        let first = count / PAGE;
        self.pages = if first >= 64 { u64::MAX } else { (1 << first) - 1 };
        // Another mapping may begin where one ends.
        for page in first + 1..BLOCK / PAGE {
            let range = (page * PAGE) as usize..((page + 1) * PAGE) as usize;
            if memory.read_block(start + page * PAGE, &mut self.bytes[range]) == PAGE as usize {
                self.pages |= 1 << page;
            }
        }
    }

    /// Copies from `offset` on, up to the first page that could not be read.
    fn copy(&self, offset: usize, buffer: &mut [u8]) -> usize {
        let mut end = offset;
        while end < offset + buffer.len() {
            let page = end / PAGE as usize;
            if self.pages >> page & 1 == 0 {
                break;
            }
            end = ((page + 1) * PAGE as usize).min(offset + buffer.len());
        }
        let count = end - offset;
        buffer[..count].copy_from_slice(&self.bytes[offset..end]);
        count
    }
}

impl<M: ReadSome> ReadMemory for Blocks<M> {
    fn read<T: Pod>(&self, address: u64) -> Result<T, Unreadable> {
        let mut short = [0; 64];
        let mut long = Vec::new();
        let bytes = match short.get_mut(..size_of::<T>()) {
            Some(bytes) => bytes,
            None => {
                long.resize(size_of::<T>(), 0);
                &mut long[..]
            }
        };
        let count = self.copy(address, bytes);
        plain_at(&bytes[..count], 0).ok_or(Unreadable)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Memory in several ranges. It counts the reads.
    #[derive(Debug, Default)]
    pub(crate) struct Ranges {
        pub ranges: Vec<(u64, Vec<u8>)>,
        pub reads: std::cell::Cell<usize>,
    }

    impl ReadSome for &Ranges {
        fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
            self.reads.set(self.reads.get() + 1);
            let inside = |(start, bytes): &&(u64, Vec<u8>)| (*start..*start + bytes.len() as u64).contains(&address);
            let Some((start, bytes)) = self.ranges.iter().find(inside) else { return 0 };
            let bytes = &bytes[(address - start) as usize..];
            let count = bytes.len().min(buffer.len());
            buffer[..count].copy_from_slice(&bytes[..count]);
            count
        }
    }

    fn pattern(length: usize) -> Vec<u8> {
        (0..length).map(|index| (index / 7) as u8).collect()
    }

    #[test]
    fn reads_across_blocks_and_up_to_holes() {
        let start = BLOCK - 3 * PAGE;
        let memory = Ranges { ranges: vec![(start, pattern(5 * PAGE as usize))], ..Ranges::default() };
        let blocks = Blocks::new(&memory);
        for _ in 0..2 * WORTH_IT {
            let mut buffer = vec![0; 6 * PAGE as usize];
            assert_eq!(blocks.copy(start + 8, &mut buffer), 5 * PAGE as usize - 8);
            assert_eq!(buffer[..100], pattern(108)[8..]);
            assert_eq!(blocks.copy(start - 8, &mut buffer), 0);
        }
        assert_eq!(blocks.read::<u64>(start + 5 * PAGE - 4), Err(Unreadable));
        assert_eq!(blocks.read::<[u8; 80]>(u64::MAX - 4), Err(Unreadable));
    }

    #[test]
    fn what_is_read_often_is_kept() {
        let memory = Ranges { ranges: vec![(BLOCK, pattern(BLOCK as usize))], ..Ranges::default() };
        let blocks = Blocks::new(&memory);
        for index in 0..1000 {
            assert_eq!(blocks.read::<u8>(BLOCK + 7 * index), Ok(index as u8));
        }
        assert_eq!(memory.reads.get(), usize::from(WORTH_IT));
    }

    #[test]
    fn the_number_of_blocks_is_bounded() {
        let memory = Ranges { ranges: vec![(0, pattern(PAGE as usize))], ..Ranges::default() };
        let blocks = Blocks::new(&memory);
        for number in 0..3 * MAX_BLOCKS as u64 {
            blocks.expect_many(number * BLOCK);
        }
        let state = blocks.state.borrow();
        assert_eq!((state.kept.len(), state.places.len()), (MAX_BLOCKS, MAX_BLOCKS));
    }
}
