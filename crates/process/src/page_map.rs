//! Which pages of a process there are: a mapping may be a thousand times as large as what was ever used of it, and pages
//! that there are not would be brought to life by reading them.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

/// Words of `/proc/PID/pagemap` that are read at once.
const WORDS: u64 = 8192;

/// Where a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageKind {
    /// In memory.
    Present,
    /// Swapped out: reading it brings it back.
    Swapped,
    /// One of both.
    Any,
}

impl PageKind {
    /// The bits of a word of which one is set (`PM_PRESENT`, `PM_SWAP`, `fs/proc/task_mmu.c`).
    const fn bits(self) -> u64 {
        match self {
            Self::Present => 1 << 63,
            Self::Swapped => 1 << 62,
            Self::Any => 3 << 62,
        }
    }
}

/// `/proc/PID/pagemap`.
#[derive(Debug)]
pub struct PageMap {
    file: Option<File>,
    page: u64,
}

impl PageMap {
    /// That of a process. Where it cannot be opened (a kernel without it), every page counts as one that there is.
    pub fn open(pid: u32) -> Self {
        Self { file: File::open(format!("/proc/{pid}/pagemap")).ok(), page: page_size() }
    }

    /// Size of a page, in bytes.
    pub const fn page_size(&self) -> u64 {
        self.page
    }

    /// The runs of pages of a kind in a range of addresses, in their order.
    pub fn runs(&self, kind: PageKind, range: &Range<u64>) -> Vec<Range<u64>> {
        let Some(file) = &self.file else { return vec![range.clone()] };
        let mut runs: Vec<Range<u64>> = Vec::new();
        let mut add = |new: Range<u64>| match runs.last_mut().filter(|run| run.end == new.start) {
            Some(run) => run.end = new.end,
            None => runs.push(new),
        };
        let mut bytes = vec![0; 8 * WORDS as usize];
        let mut at = range.start;
        while at < range.end {
            let count = (range.end - at).div_ceil(self.page).min(WORDS);
            let wanted = &mut bytes[..8 * count as usize];
            if file.read_exact_at(wanted, at / self.page * 8).is_err() {
                // What cannot be known is there: reading it tells.
                add(at..range.end);
                break;
            }
            for word in wanted.as_chunks::<8>().0 {
                if u64::from_le_bytes(*word) & kind.bits() != 0 {
                    add(at..at + self.page);
                }
                at += self.page;
            }
        }
        runs
    }
}

fn page_size() -> u64 {
    // SAFETY: sysconf takes a plain integer.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(size).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn untouched_pages_are_none() {
        let pages = PageMap::open(std::process::id());
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
        let range = start..start + length;
        let places = |kind| {
            let runs = pages.runs(kind, &range).into_iter();
            runs.map(|run| (run.start - start) / page..(run.end - start) / page).collect::<Vec<_>>()
        };
        assert_eq!(places(PageKind::Any), [3..5, 63..64]);
        // Nobody waits here for a page to be swapped out: what is there is either.
        let apart: u64 =
            [PageKind::Present, PageKind::Swapped].map(places).iter().flatten().map(|run| run.end - run.start).sum();
        assert_eq!(apart, 3);
        // SAFETY: nothing else knows of it.
        unsafe { libc::munmap(start as *mut libc::c_void, length as usize) };
    }
}
