//! Finds the memory of LuaJIT's own allocator: a program may have a thousand times as much other memory.
//!
//! The allocator (`lj_alloc.c`) keeps a list of its segments. Blocks of 128 KB and more have mappings of their own. These
//! are on no list, but each of them begins and ends with words that hardly any other memory has.
//!
//! LuaJIT's sources: [`malloc_segment`], [`DEFAULT_MMAP_THRESHOLD`], [`direct_alloc`], [`LJ_PAGESIZE`],
//! [`mmap_align`].
//!
//! [`malloc_segment`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_alloc.c#L509-L513
//! [`DEFAULT_MMAP_THRESHOLD`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_alloc.c#L43
//! [`direct_alloc`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_alloc.c#L825-L843
//! [`LJ_PAGESIZE`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_arch.h#L683-L685
//! [`mmap_align`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_alloc.c#L551-L564

use std::ops::Range;

use lj_trace_common::memory::ReadMemory;
use lj_trace_luajit::Vm;
use lj_trace_process::{PageKind, PageMap, ProcessMemory};

use super::ranges::{common, union, without};

/// `LJ_PAGESIZE` (`lj_arch.h`): the sizes of the allocator's mappings are multiples of it.
const PAGE: u64 = 4096;

/// The offset in `struct malloc_state` of the first segment: it comes after smallmap, treemap, dvsize, topsize, dv, top,
/// trim_check, release_checks, 66 small bins, and 32 bins of trees.
const SEGMENT: u64 = 8 + 6 * 8 + 66 * 8 + 32 * 8;

/// The words before a block: its own size, and the size of the previous block.
const CHUNK_HEAD: u64 = 16;

/// The most segments to follow: a longer list does not end.
const MAX_SEGMENTS: usize = 1 << 16;

/// The most pages to look at. Memory in further pages is taken for Lua's.
const MAX_PAGES: u64 = 4 << 20;

/// The number of pages to look at in one go.
const AT_ONCE: usize = 1024;

/// The memory of the allocator of `vm`, in `mappings` that may belong to it; [`None`] if the VM has another allocator.
pub fn extents(memory: ProcessMemory, pages: &PageMap, vm: &Vm, mappings: &[Range<u64>]) -> Option<Vec<Range<u64>>> {
    let state: u64 = memory.read(vm.global.wrapping_add(vm.layout.g_allocd.into())).ok()?;
    let segments = segments(memory, state)?;
    let inside = common(&segments, mappings);
    if inside != segments {
        return None;
    }
    let direct = direct(memory, pages, &without(mappings, &segments));
    Some(union(segments.into_iter().chain(direct).collect()))
}

/// The segments of the allocator whose `struct malloc_state` is at `state`.
fn segments(memory: ProcessMemory, state: u64) -> Option<Vec<Range<u64>>> {
    let mut segments = Vec::new();
    let mut at = state.wrapping_add(SEGMENT);
    while at != 0 {
        let [base, size, next]: [u64; 3] = [0, 8, 16].map(|word| memory.read(at.wrapping_add(word)).unwrap_or(1));
        let is_one = base % PAGE == 0 && size % PAGE == 0 && size > 0 && base.checked_add(size).is_some();
        if !is_one || segments.len() >= MAX_SEGMENTS {
            return None;
        }
        segments.push(base..base + size);
        at = next;
    }
    // The state is the first block of the first segment. The segment may have grown downwards since.
    segments.iter().find(|segment| segment.contains(&state) && state % PAGE == CHUNK_HEAD)?;
    Some(union(segments))
}

/// Blocks that have mappings of their own.
fn direct(memory: ProcessMemory, pages: &PageMap, elsewhere: &[Range<u64>]) -> Vec<Range<u64>> {
    let (mut found, mut looked_at) = (Vec::new(), 0);
    for range in elsewhere {
        let mut after = range.start;
        for run in pages.runs(PageKind::Any, range) {
            let mut at = run.start.max(after);
            while at < run.end {
                if looked_at >= MAX_PAGES {
                    found.push(at..run.end);
                    break;
                }
                let count = ((run.end - at) / PAGE).min(AT_ONCE as u64);
                let places: Vec<(u64, usize)> = (0..count).map(|index| (at + index * PAGE, 16)).collect();
                let bytes = memory.read_scattered(&places);
                let mut next = at + count * PAGE;
                for ((page, _), words) in places.iter().zip(bytes.as_chunks::<16>().0) {
                    looked_at += 1;
                    if let Some(end) = block(memory, *page, words).filter(|&end| end <= range.end) {
                        found.push(*page..end);
                        next = end;
                        break;
                    }
                }
                at = next.max(at + PAGE);
            }
            after = at;
        }
    }
    found
}

/// The end of the mapping of the block that begins at `page` with these words (`direct_alloc`): `prev_foot` is
/// `IS_DIRECT_BIT`, `head` the size without `DIRECT_FOOT_PAD` and with `CINUSE_BIT`, and behind it is `FENCEPOST_HEAD`.
fn block(memory: ProcessMemory, page: u64, words: &[u8; 16]) -> Option<u64> {
    const PAD: u64 = 32;
    let (previous, head) = words.split_at(8);
    let (previous, head) = (word(previous), word(head));
    let size = head.wrapping_sub(2);
    let is_block = previous == 1 && size.wrapping_add(PAD) % PAGE == 0 && size < 1 << 47;
    let behind = page.wrapping_add(size).wrapping_add(8);
    (is_block && memory.read::<u64>(behind) == Ok(11)).then(|| page + size + PAD)
}

fn word(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
}

#[cfg(test)]
mod tests {
    use lj_trace_luajit::InterpreterText;
    use lj_trace_luajit::testing::x64_layout;
    use lj_trace_process::Process;

    use super::*;

    #[test]
    fn segments_and_large_blocks_are_found() {
        let pages = 64_usize;
        // SAFETY: a new mapping, wherever the kernel puts it.
        let start = unsafe {
            let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            libc::mmap(std::ptr::null_mut(), pages * PAGE as usize, access, kind, -1, 0)
        } as u64;
        let write = |at: u64, word: u64| {
            // SAFETY: it lies in the new mapping.
            unsafe { ((start + at) as *mut u64).write_volatile(word) }
        };
        let at = |page: u64| start + page * PAGE;
        // A segment of four pages and one of two. The state lies in the first segment, which the list has last.
        write(16 + SEGMENT, at(8));
        write(16 + SEGMENT + 8, 2 * PAGE);
        write(16 + SEGMENT + 16, start + 0x2000);
        write(0x2000, start);
        write(0x2008, 4 * PAGE);
        // Two blocks with five and three pages, and memory that only looks like a block.
        for (page, count) in [(20, 5), (25, 3)] {
            write(page * PAGE, 1);
            write(page * PAGE + 8, count * PAGE - 32 + 2);
            write((page + count) * PAGE - 32 + 8, 11);
        }
        write(40 * PAGE, 1);
        write(40 * PAGE + 8, 2 * PAGE - 32 + 2);
        let mut layout = x64_layout("Debian", "x64gc64");
        layout.g_allocd = 0;
        write(10 * PAGE, start + 16);
        let text = InterpreterText { range: 0..0, exact: true, edges: lj_trace_unwind::vm_edges::Edges::default() };
        let vm = Vm { global: at(10), main_thread: 0, layout, builds: Vec::new(), undecided: Vec::new(), text };
        let process = Process::open(std::process::id()).unwrap();
        let (memory, map) = (process.memory(), PageMap::open(process.pid()));
        let one = |range: Range<u64>| std::iter::once(range).collect::<Vec<_>>();
        let whole = one(start..at(64));
        let found = extents(memory, &map, &vm, &whole).unwrap();
        assert_eq!(found, [start..at(4), at(8)..at(10), at(20)..at(28)]);
        assert_eq!(extents(memory, &map, &vm, &one(start..at(9))), None, "a segment that is not mapped");
        write(10 * PAGE, at(30));
        assert_eq!(extents(memory, &map, &vm, &whole), None, "another allocator");
        // SAFETY: nothing else knows of it.
        unsafe { libc::munmap(start as *mut libc::c_void, pages * PAGE as usize) };
    }
}
