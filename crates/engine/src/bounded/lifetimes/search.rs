//! Searches memory for references to a block: when an old table grows, no window saw the table itself. The search works
//! piece by piece, and takes a tenth of the time.

use std::collections::HashMap;
use std::ops::Range;
use std::time::Instant;

use lj_trace_estimate::observation::Nanos;
use lj_trace_luajit::scan::object_memory;
use lj_trace_luajit::shape::Shape;
use lj_trace_process::{Process, ProcessMemory};

use super::choice::ChosenBlock;
use super::part::{TablePart, may_be_part, owner_with};

/// The number of bytes to read at a time.
const PIECE: usize = 1 << 20;

/// The search waits this many times as long as it has worked.
const WAIT: u32 = 9;

/// The most blocks to look for at a time.
const MOST: usize = 64;

/// The search, which may be idle.
pub struct BlockSearch {
    process: Process,
    memory: ProcessMemory,
    /// The blocks to look for, by address.
    wanted: HashMap<u64, WantedBlock>,
    filter: Filter,
    /// The memory that is left to read, the last range first.
    left: Vec<Range<u64>>,
    next: Instant,
    buffer: Vec<u8>,
}

/// A block whose owner the search looks for.
#[derive(Clone, Copy, Debug)]
pub struct WantedBlock {
    /// The block.
    pub block: ChosenBlock,
    /// A time before the block was allocated.
    pub since: Nanos,
}

impl BlockSearch {
    /// An idle search.
    pub fn new(process: &Process) -> Self {
        Self {
            memory: process.memory(),
            process: process.clone(),
            wanted: HashMap::new(),
            filter: Filter::default(),
            left: Vec::new(),
            next: Instant::now(),
            buffer: Vec::new(),
        }
    }

    /// Begins to look for the owners of some blocks, if the search is idle. Returns the blocks that it does not look for.
    pub fn start(&mut self, blocks: impl IntoIterator<Item = ChosenBlock>, since: Nanos) -> Vec<ChosenBlock> {
        let is_free = self.wanted.is_empty() && Instant::now() >= self.next;
        let mut refused = Vec::new();
        for block in blocks {
            if is_free && self.wanted.len() < MOST && may_be_part(block.size) {
                self.wanted.insert(block.address, WantedBlock { block, since });
            } else {
                refused.push(block);
            }
        }
        if is_free && !self.wanted.is_empty() {
            self.filter = Filter::of(self.wanted.keys());
            self.left = self.process.maps().map(|maps| object_memory(self.process.pid(), &maps)).unwrap_or_default();
        }
        refused
    }

    /// Continues the search. Returns the blocks that are done, each with its owner if one was found. `shapes` are those of
    /// the VMs.
    pub fn go_on(&mut self, shapes: &[Shape]) -> Vec<(WantedBlock, Option<TablePart>)> {
        let began = Instant::now();
        if self.wanted.is_empty() || began < self.next {
            return Vec::new();
        }
        let mut found = Vec::new();
        if let Some(piece) = self.next_piece() {
            self.buffer.resize(PIECE, 0);
            let length = usize::try_from(piece.end - piece.start).unwrap_or(PIECE).min(PIECE);
            let read = self.memory.read_some(piece.start, &mut self.buffer[..length]).unwrap_or(0);
            for (link, address) in references(piece.start, &self.buffer[..read], &self.filter) {
                let part = self.wanted.get(&address).and_then(|wanted| {
                    let shape = shapes.get(wanted.block.vm)?;
                    owner_with(&self.memory, shape, link, wanted.block.size).filter(|part| part.address == address)
                });
                if let Some(part) = part {
                    found.extend(self.wanted.remove(&address).map(|wanted| (wanted, Some(part))));
                }
            }
        }
        if self.left.is_empty() {
            found.extend(self.wanted.drain().map(|(_, wanted)| (wanted, None)));
        }
        self.next = Instant::now() + began.elapsed() * WAIT;
        found
    }

    fn next_piece(&mut self) -> Option<Range<u64>> {
        let last = self.left.last_mut()?;
        let piece = last.start..last.end.min(last.start + PIECE as u64);
        last.start = piece.end;
        if last.is_empty() {
            self.left.pop();
        }
        Some(piece)
    }
}

/// The low bits of the wanted addresses, as a set: most words of memory match none.
struct Filter([u64; 64]);

impl Default for Filter {
    fn default() -> Self {
        Self([0; 64])
    }
}

impl Filter {
    fn of<'a>(addresses: impl IntoIterator<Item = &'a u64>) -> Self {
        let mut filter = Self::default();
        for address in addresses {
            filter.0[(address >> 10 & 63) as usize] |= 1 << (address >> 4 & 63);
        }
        filter
    }

    #[inline]
    const fn may_have(&self, address: u64) -> bool {
        address & 7 == 0 && self.0[(address >> 10 & 63) as usize] >> (address >> 4 & 63) & 1 != 0
    }
}

/// The words in `bytes` that may be an address in the filter, as pairs of their place and that address, for words of 64
/// bits and of 32.
fn references(start: u64, bytes: &[u8], filter: &Filter) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    let (words, _) = bytes.as_chunks::<8>();
    for (place, word) in (start..).step_by(8).zip(words) {
        let word = u64::from_le_bytes(*word);
        let (low, high) = (word & 0xffff_ffff, word >> 32);
        if low != 0 && filter.may_have(low) {
            found.push((place, low));
            if high != 0 {
                found.push((place, word));
            }
        }
        if high != 0 && filter.may_have(high) {
            found.push((place + 4, high));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use lj_trace_common::layout::gct;
    use lj_trace_luajit::testing::x64_layout;

    use super::*;

    #[test]
    fn references_of_both_widths_are_seen() {
        let (wide, narrow) = (0x7f12_3456_7890_u64, 0x4000_1230_u32);
        let mut bytes = vec![0; 64];
        bytes[8..16].copy_from_slice(&wide.to_le_bytes());
        bytes[20..24].copy_from_slice(&narrow.to_le_bytes());
        let seen = |addresses: &[u64]| references(0x1000, &bytes, &Filter::of(addresses));
        assert!(seen(&[wide]).contains(&(0x1008, wide)));
        assert!(seen(&[0x3000, narrow.into()]).contains(&(0x1014, narrow.into())));
        assert_eq!(seen(&[0x3010]), []);
    }

    #[test]
    fn a_table_is_found_wherever_it_is() {
        let shapes = [Shape::new(x64_layout("2022-03(Debian)", "x64gc64"))];
        let slots = vec![0_u64; 100];
        let mut table = Box::new([0_u64; 8]);
        table[1] = u64::from(gct::TAB) << 8;
        table[usize::from(shapes[0].layout.tab_array) / 8] = slots.as_ptr() as u64;
        table[6] = 100;
        let of_table = ChosenBlock::at(slots.as_ptr() as u64, 800);
        // Nothing refers to the first block; the second has no size of a table part.
        let strange = [ChosenBlock::at(table.as_ptr() as u64 + 8, 64), ChosenBlock::at(0x1000, 33)];
        let mut search = BlockSearch::new(&Process::open(std::process::id()).unwrap());
        assert_eq!(search.start([of_table].into_iter().chain(strange), 1), strange[1..]);
        assert_eq!(search.start([of_table], 1), [of_table], "one is under way");
        let mut found = Vec::new();
        while found.len() < 2 {
            found.extend(search.go_on(&shapes));
        }
        let part = |wanted: ChosenBlock| found.iter().find(|(found, _)| found.block == wanted).unwrap().1;
        assert_eq!(part(of_table).map(|part| part.owner.place), Some(table.as_ptr() as u64 + 8));
        assert_eq!(part(strange[0]), None);
    }
}
