//! Scans the target's memory for the main threads of LuaJIT VMs.
//!
//! LuaJIT allocates the main thread and its `global_State` as one block, `GG_State`: so the main thread's `glref`
//! points right behind the thread itself. Together with the object's type and its fixed mark, one pass over memory
//! finds hardly any false candidates.
//!
//! LuaJIT's sources: [`stack_init`], [`lua_State.stack`], [`LJ_GC_FIXED`].
//!
//! [`stack_init`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_state.c#L173-L185
//! [`lua_State.stack`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_obj.h#L701
//! [`LJ_GC_FIXED`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_state.c#L279

use std::ops::{Range, RangeInclusive};

use lj_trace_common::frame::GC64_ADDRESS_MASK;
use lj_trace_common::layout::gct;
use lj_trace_common::memory::ReadMemory;
use lj_trace_process::{Mapping, Maps, PageKind, PageMap, ProcessMemory, pieces};

use super::code_pointers::dispatch_table;
use super::object::marked_offset;

/// An object that looks like the main thread of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Address of its `lua_State`.
    pub thread: u64,
    /// Address of its `global_State`.
    pub global: u64,
    /// Whether GC references would be 64 bits wide.
    pub gc64: bool,
}

/// `sizeof(lua_State)` over all builds: upstream, and OpenResty with one or two more words.
const THREAD_SIZES: [RangeInclusive<u64>; 2] = [64..=80, 96..=112];

/// The distance from a word that may be a `glref` to its target, over both widths of references: `glref` is the third
/// word of a thread, or the second.
const NEAR: RangeInclusive<u32> = 64 - 8..=112 - 16;

/// Words that are checked together.
const BLOCK: usize = 64;

/// The result of a search.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScanResult {
    /// The candidates, in the order of their addresses.
    pub candidates: Vec<Candidate>,
    /// Whether some candidates were left out, because there were too many, or because they have no stack of their own
    /// or no dispatch table.
    pub missed: bool,
}

/// The candidates in the target's pages of this kind, in private writable memory: its heap, `.bss` and anonymous
/// memory; at most `limit`.
pub fn candidates(pid: u32, memory: &ProcessMemory, maps: &Maps, kind: PageKind, limit: usize) -> ScanResult {
    let pages = PageMap::open(pid);
    let ranges: Vec<_> = object_mappings(maps).collect();
    in_runs(memory, maps, &pages.runs_in(kind, &ranges), limit)
}

/// The candidates in some runs of memory; at most `limit`.
pub fn in_runs(memory: &ProcessMemory, maps: &Maps, runs: &[Range<u64>], limit: usize) -> ScanResult {
    let mut found = ScanResult::default();
    let mut seen = Vec::new();
    pieces::read(memory, runs, |start, bytes| {
        scan_bytes(start, bytes, &mut seen);
        for candidate in seen.drain(..) {
            if found.candidates.len() < limit && is_plausible(memory, maps, candidate) {
                found.candidates.push(candidate);
            } else {
                found.missed = true;
            }
        }
    });
    found
}

/// Whether a candidate has a stack of its own and a dispatch table.
pub fn is_plausible(memory: &ProcessMemory, maps: &Maps, candidate: Candidate) -> bool {
    let is_code = |address| maps.find(address).is_some_and(|mapping| mapping.exec);
    owns_its_stack(memory, candidate) && dispatch_table(memory, candidate, is_code).is_some()
}

/// The memory that may hold objects: all private writable memory that exists.
pub fn object_memory(pid: u32, maps: &Maps) -> Vec<Range<u64>> {
    let pages = PageMap::open(pid);
    pages.runs_in(PageKind::Any, &object_mappings(maps).collect::<Vec<_>>())
}

fn object_mappings(maps: &Maps) -> impl Iterator<Item = Range<u64>> {
    maps.iter().filter(|mapping| may_hold_objects(mapping)).map(|mapping| mapping.start..mapping.end)
}

/// Whether a candidate's stack begins with the candidate itself: `stack_init` (`lj_state.c`) writes that, and nothing
/// ever changes it. In the remains of closed VMs and in copies of a VM's memory it is different.
pub fn owns_its_stack(memory: &impl ReadMemory, candidate: Candidate) -> bool {
    // `lua_State.stack` (`lj_obj.h`), the same in every build.
    let stack = candidate.thread.wrapping_add(if candidate.gc64 { 56 } else { 36 });
    let Ok(stack) = memory.read_ref(candidate.gc64, stack) else { return false };
    let Ok(slot) = memory.read_ref(candidate.gc64, stack) else { return false };
    (if candidate.gc64 { slot & GC64_ADDRESS_MASK } else { slot }) == candidate.thread
}

/// Whether objects of a VM may lie in a mapping.
pub fn may_hold_objects(mapping: &Mapping) -> bool {
    // Reading a device's memory may have effects.
    mapping.read && mapping.write && !mapping.shared && !mapping.path.starts_with("/dev/")
}

/// Searches for candidates in `bytes`, which begin at the 8-aligned `start`.
pub fn scan_bytes(start: u64, bytes: &[u8], found: &mut Vec<Candidate>) {
    /// `LJ_GC_FIXED | LJ_GC_SFIXED`: among threads, only the main thread is marked so (`lj_state.c`).
    const MARKS: u64 = 0x60;
    /// `dummy_ffid`, which is always `FF_C`.
    const FFID: u64 = 1;
    // The bytes from `marked` on: marks, type, `dummy_ffid`, and `status`, which is below 8.
    const EXPECTED: u64 = FFID << 16 | (gct::THREAD as u64) << 8 | MARKS;
    const MASK: u64 = 0xf8ff_ff00 | MARKS;
    let mut check = |address: u64, previous: u64, word: u64| {
        // 64 bits: `marked` and `gct` begin the word before `glref`, which is the third word.
        let distance = word.wrapping_sub(address.wrapping_sub(16));
        if THREAD_SIZES[1].contains(&distance) && previous & MASK == EXPECTED {
            found.push(Candidate { thread: address.wrapping_sub(16), global: word, gc64: true });
        }
        // 32 bits: `marked` and `gct` are in the upper half of the first word, `glref` in the lower of the second.
        let global = word & 0xffff_ffff;
        let distance = global.wrapping_sub(address.wrapping_sub(8));
        if THREAD_SIZES[0].contains(&distance) && previous >> (8 * marked_offset(false)) & MASK == EXPECTED {
            found.push(Candidate { thread: address.wrapping_sub(8), global, gc64: false });
        }
    };
    let (words, _) = bytes.as_chunks::<8>();
    for (block, first) in words.chunks(BLOCK).zip((0_usize..).step_by(BLOCK)) {
        if !points_ahead(start + 8 * first as u64, block) {
            continue;
        }
        for (word, index) in block.iter().zip(first..) {
            let previous = index.checked_sub(1).map_or(0, |before| u64::from_le_bytes(words[before]));
            check(start + 8 * index as u64, previous, u64::from_le_bytes(*word));
        }
    }
}

/// Whether any word of a block at `address` may point to just behind itself, judged by its lower half. Nearly none
/// does. This runs over all memory of a process, so it does not branch for each word.
fn points_ahead(address: u64, block: &[[u8; 8]]) -> bool {
    let low = address as u32;
    let is_near = |index: usize, word: &[u8; 8]| {
        let ahead = (u64::from_le_bytes(*word) as u32).wrapping_sub(low.wrapping_add(8 * index as u32));
        ahead.wrapping_sub(*NEAR.start()) <= NEAR.end() - NEAR.start()
    };
    block.iter().enumerate().fold(false, |any, (index, word)| any | is_near(index, word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn finds_both_widths_of_references() {
        let mut found = Vec::new();
        scan_bytes(0x7f00_0000_0378, &words(&[0, 0x1_0663, 0x7f00_0000_0378 + 96, 0]), &mut found);
        let wide = Candidate { thread: 0x7f00_0000_0378, global: 0x7f00_0000_03d8, gc64: true };
        scan_bytes(0x4000_0378, &words(&[0, 0x1_0663_0000_0000, 0x1234_5678_4000_0380 + 72, 0]), &mut found);
        let narrow = Candidate { thread: 0x4000_0380, global: 0x4000_03c8, gc64: false };
        assert_eq!(found, [wide, narrow]);
    }

    #[test]
    fn memory_may_begin_at_address_zero() {
        for index in 0..3 {
            for global in 0..200 {
                let mut memory = vec![0x0001_0663_0001_0663; 4];
                memory[index] = global;
                let mut found = Vec::new();
                scan_bytes(0, &words(&memory), &mut found);
                let none = ProcessMemory::new(std::process::id());
                assert!(found.iter().all(|candidate| !owns_its_stack(&none, *candidate)), "{found:x?}");
            }
        }
    }

    #[test]
    fn passes_over_coroutines_and_other_memory() {
        let mut found = Vec::new();
        // A coroutine is not fixed; a pointer to just behind itself is not enough for a thread.
        scan_bytes(0x7f00_0000_0378, &words(&[0, 0x1_0601, 0x7f00_0000_0378 + 96, 0]), &mut found);
        scan_bytes(0x7f00_0000_0378, &words(&[0, 0x0000, 0x7f00_0000_0378 + 96, 0]), &mut found);
        scan_bytes(0x7f00_0000_0378, &words(&[0, 0x1_0663, 0x7f00_0000_0378 + 200, 0]), &mut found);
        assert_eq!(found, []);
    }

    #[test]
    fn finds_them_wherever_they_lie() {
        // Across the ends of blocks, and where the lower half of the address overflows.
        for start in [0x7f00_0000_0000, 0x7f00_ffff_ff00] {
            for index in 2..3 * BLOCK as u64 {
                let thread = start + 8 * (index - 2);
                for size in THREAD_SIZES[1].clone().step_by(8) {
                    let mut memory = vec![0; 4 * BLOCK];
                    memory[index as usize - 1] = 0x1_0663;
                    memory[index as usize] = thread + size;
                    let mut found = Vec::new();
                    scan_bytes(start, &words(&memory), &mut found);
                    assert_eq!(found, [Candidate { thread, global: thread + size, gc64: true }]);
                }
            }
        }
        for index in 1..3 * BLOCK as u64 {
            let thread = 0xffff_0000 + 8 * (index - 1);
            for size in THREAD_SIZES[0].clone().step_by(8) {
                let mut memory = vec![0; 4 * BLOCK];
                memory[index as usize - 1] = 0x1_0663_0000_0000;
                memory[index as usize] = 0x1234_5678_0000_0000 | (thread + size);
                let mut found = Vec::new();
                scan_bytes(0xffff_0000, &words(&memory), &mut found);
                assert_eq!(found, [Candidate { thread, global: thread + size, gc64: false }]);
            }
        }
    }

    /// Words of memory from an address on.
    struct Words(u64, Vec<u64>);

    impl ReadMemory for Words {
        fn read<T: lj_trace_common::memory::Pod>(
            &self,
            address: u64,
        ) -> Result<T, lj_trace_common::memory::Unreadable> {
            let offset = address.checked_sub(self.0).ok_or(lj_trace_common::memory::Unreadable)?;
            super::super::overlay::plain_at(&words(&self.1), offset).ok_or(lj_trace_common::memory::Unreadable)
        }
    }

    #[test]
    fn only_a_main_thread_has_itself_at_the_bottom_of_its_stack() {
        const AT: u64 = 0x7f00_0000_0000;
        // GC64: the stack pointer is the eighth word, and here the stack begins right behind; the slot has the tag of a thread.
        let memory = |stack, slot| Words(AT, vec![0, 0, 0, 0, 0, 0, 0, stack, slot]);
        let candidate = Candidate { thread: AT, global: AT + 96, gc64: true };
        assert!(owns_its_stack(&memory(AT + 64, !6 << 47 | AT), candidate));
        assert!(!owns_its_stack(&memory(AT + 64, !6 << 47 | (AT + 8)), candidate), "a copy of a VM's memory");
        assert!(!owns_its_stack(&memory(8, 0), candidate), "the remains of a closed VM");
        let narrow = Words(0x1000, vec![0, 0, 0, 0, 0x1028 << 32, 0xffff_fff9_0000_1000]);
        assert!(owns_its_stack(&narrow, Candidate { thread: 0x1000, global: 0x1040, gc64: false }));
    }
}
