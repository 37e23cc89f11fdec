//! Which pages of a process there are: a mapping may be a thousand times as large as what was ever used of it.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

use super::ranges::union;
use crate::target::{Mapping, Maps, Process};

/// Longer mappings are no Lua heap, but addresses that somebody has reserved (AddressSanitizer's shadow has terabytes):
/// to ask for their pages would take longer than to read a heap.
const MAX_MAPPING: u64 = 256 << 30;

/// Words of `/proc/PID/pagemap` that are read at once.
const WORDS: u64 = 8192;

/// Bits 62 and 63 (`PM_SWAP`, `PM_PRESENT`, `fs/proc/task_mmu.c`): swapped out, present.
const THERE: u32 = 62;

/// `/proc/PID/pagemap`.
#[derive(Debug)]
pub struct PageMap {
    file: Option<File>,
    page: u64,
}

impl PageMap {
    /// That of a process. Where it cannot be opened (a kernel without it), every page counts as one that there is.
    pub fn open(process: &Process) -> Self {
        Self { file: File::open(format!("/proc/{}/pagemap", process.pid())).ok(), page: page_size() }
    }

    /// Size of a page, in bytes.
    pub const fn page_size(&self) -> u64 {
        self.page
    }

    /// Shows the runs of pages that there are in a range of addresses to `found`, in their order.
    pub fn runs(&self, range: &Range<u64>, found: &mut dyn FnMut(Range<u64>)) {
        let Some(file) = &self.file else { return found(range.clone()) };
        let mut run: Option<Range<u64>> = None;
        let mut bytes = vec![0; 8 * WORDS as usize];
        let mut at = range.start;
        while at < range.end {
            let count = ((range.end - at).div_ceil(self.page)).min(WORDS);
            let wanted = &mut bytes[..8 * count as usize];
            if read_full(file, wanted, at / self.page * 8).is_err() {
                // What cannot be known is there: reading it tells.
                let start = run.map_or(at, |run| run.start);
                return found(start..range.end);
            }
            for word in wanted.as_chunks::<8>().0 {
                let is_there = u64::from_le_bytes(*word) >> THERE != 0;
                let end = at + self.page;
                match &mut run {
                    Some(run) if is_there => run.end = end,
                    None if is_there => run = Some(at..end),
                    Some(_) => run.take().into_iter().for_each(&mut *found),
                    None => {}
                }
                at = end;
            }
        }
        run.into_iter().for_each(found);
    }
}

fn read_full(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    file.read_exact_at(buffer, offset)
}

fn page_size() -> u64 {
    // SAFETY: sysconf takes a plain integer.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(size).unwrap_or(4096)
}

/// The mappings that a Lua heap may be in: what is private to the process and writable. Without GC64 references have 32
/// bits (`GCRef`, `lj_obj.h`), so that all of it is below 4 GB; of what is above, small mappings are taken all the same:
/// they hold the C stacks, which tell where in their code coroutines are.
pub fn mappings(maps: &Maps, gc64: bool) -> Vec<Range<u64>> {
    const LOW: u64 = 1 << 32;
    let is_wanted = |mapping: &&Mapping| is_memory(mapping) && (gc64 || mapping.start < LOW || is_small(mapping));
    union(maps.iter().filter(is_wanted).map(|mapping| mapping.start..mapping.end).collect())
}

/// Those of them that are small.
pub fn small(maps: &Maps) -> impl Iterator<Item = Range<u64>> {
    let is_wanted = |mapping: &&Mapping| is_memory(mapping) && is_small(mapping);
    maps.iter().filter(is_wanted).map(|mapping| mapping.start..mapping.end)
}

fn is_memory(mapping: &Mapping) -> bool {
    mapping.read && mapping.write && !mapping.shared && mapping.len() <= MAX_MAPPING
}

fn is_small(mapping: &Mapping) -> bool {
    const SMALL: u64 = 16 << 20;
    mapping.len() <= SMALL || mapping.path == "[stack]"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn untouched_pages_are_none() {
        let process = Process::open(std::process::id()).unwrap();
        let pages = PageMap::open(&process);
        let (page, length) = (pages.page_size(), 64 * pages.page_size());
        // SAFETY: a new mapping, wherever the kernel puts it.
        let start = unsafe {
            let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let start = libc::mmap(std::ptr::null_mut(), length as usize, access, kind, -1, 0);
            assert_ne!(start, libc::MAP_FAILED);
            // Huge pages would be there as a whole.
            libc::madvise(start, length as usize, libc::MADV_NOHUGEPAGE);
            for index in [3, 4, 63] {
                start.cast::<u8>().add((index * page) as usize).write(1);
            }
            start as u64
        };
        let mut runs = Vec::new();
        pages
            .runs(&(start..start + length), &mut |run| runs.push((run.start - start) / page..(run.end - start) / page));
        assert_eq!(runs, [3..5, 63..64]);
        // SAFETY: nothing else knows of it.
        unsafe { libc::munmap(start as *mut libc::c_void, length as usize) };
    }

    #[test]
    fn heaps_without_gc64_are_low() {
        let maps = Maps::parse(
            "40000000-50000000 rw-p 00000000 00:00 0 \n\
             50000000-50001000 r--p 00000000 00:00 0 \n\
             7f0000000000-7f4000000000 rw-p 00000000 00:00 0 \n\
             7f5000000000-7f5000001000 rw-p 00000000 00:00 0 \n\
             7f6000000000-7f6000001000 rw-s 00000000 00:01 7 /dev/zero (deleted)\n\
             7ffd00000000-7fff00000000 rw-p 00000000 00:00 0 [stack]\n",
        );
        let starts = |gc64| mappings(&maps, gc64).into_iter().map(|range| range.start).collect::<Vec<_>>();
        assert_eq!(starts(false), [0x4000_0000, 0x7f50_0000_0000, 0x7ffd_0000_0000]);
        assert_eq!(starts(true), [0x4000_0000, 0x7f00_0000_0000, 0x7f50_0000_0000, 0x7ffd_0000_0000]);
    }
}
