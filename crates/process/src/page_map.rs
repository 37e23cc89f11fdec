//! Finds the pages of a process that exist. A mapping may be a thousand times as large as its used part, and reading a
//! page that does not exist would create it.

use std::fs::File;
use std::ops::Range;

use crate::page_scan;
use crate::page_words;

/// Where the contents of a page are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageKind {
    /// In memory.
    Present,
    /// Swapped out: reading it brings it back.
    Swapped,
    /// Present or swapped out.
    Any,
}

impl PageKind {
    /// The bits of a pagemap word, one of which must be set (`PM_PRESENT`, `PM_SWAP`, `fs/proc/task_mmu.c`).
    pub(crate) const fn bits(self) -> u64 {
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
    /// Opens the page map of a process. If it cannot be opened (a kernel without it), every page counts as existing.
    pub fn open(pid: u32) -> Self {
        Self { file: File::open(format!("/proc/{pid}/pagemap")).ok(), page: page_size() }
    }

    /// Size of a page, in bytes.
    pub const fn page_size(&self) -> u64 {
        self.page
    }

    /// The runs of pages of this kind in a range of addresses, in ascending order.
    pub fn runs(&self, kind: PageKind, range: &Range<u64>) -> Vec<Range<u64>> {
        let Some(file) = &self.file else { return vec![range.clone()] };
        let mut runs: Vec<Range<u64>> = Vec::new();
        let mut add = |new: Range<u64>| match runs.last_mut().filter(|run| run.end == new.start) {
            Some(run) => run.end = new.end,
            None => runs.push(new),
        };
        // Kernels before 6.7 have only words. Pages after the last one that the scan reported are read as words, too.
        let told = page_scan::runs(file, kind, range, &mut add);
        page_words::runs(file, self.page, kind, &(told..range.end), &mut add);
        runs
    }

    /// The same for many ranges, which are in ascending order and do not overlap. Each run lies within one of them.
    pub fn runs_in(&self, kind: PageKind, ranges: &[Range<u64>]) -> Vec<Range<u64>> {
        let mut found = Vec::new();
        for group in ranges.chunk_by(|one, next| next.start.saturating_sub(one.end) < NEAR) {
            let (Some(first), Some(last)) = (group.first(), group.last()) else { continue };
            // One request covers all ranges of a group, and the gaps between them.
            let mut runs = self.runs(kind, &(first.start..last.end)).into_iter().peekable();
            for range in group {
                while let Some(run) = runs.peek_mut() {
                    let part = run.start.max(range.start)..run.end.min(range.end);
                    if !part.is_empty() {
                        found.push(part);
                    }
                    if run.end > range.end {
                        break;
                    }
                    runs.next();
                }
            }
        }
        found
    }
}

/// The largest gap in bytes between ranges of one request: the kernel skips a gap of this size no slower than it
/// handles another call.
const NEAR: u64 = 1 << 20;

/// The size of a page of memory in bytes: 4 KiB on x86-64, and up to 64 KiB on arm64.
pub fn page_size() -> u64 {
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
            // A huge page would exist as a whole.
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
        // This test does not wait until a page is swapped out: an existing page is of either kind.
        let apart: u64 =
            [PageKind::Present, PageKind::Swapped].map(places).iter().flatten().map(|run| run.end - run.start).sum();
        assert_eq!(apart, 3);
        // All ways to ask give the same result, in one range or in many.
        let file = File::open("/proc/self/pagemap").unwrap();
        let mut words = Vec::new();
        page_words::runs(&file, page, PageKind::Any, &range, |run| words.push(run));
        assert_eq!(words.iter().map(|run| (run.start - start) / page).collect::<Vec<_>>(), [3, 4, 63]);
        let many: Vec<_> = (0..64).step_by(4).map(|index| start + index * page..start + (index + 2) * page).collect();
        let found = pages.runs_in(PageKind::Any, &many);
        assert_eq!((found.len(), &found[0]), (1, &(start + 4 * page..start + 5 * page)));
        let touching: Vec<_> = (0..64).map(|index| start + index * page..start + (index + 1) * page).collect();
        let expected = [3, 4, 63].map(|index| start + index * page..start + (index + 1) * page);
        assert_eq!(pages.runs_in(PageKind::Any, &touching), expected);
        // SAFETY: nothing else knows of it.
        unsafe { libc::munmap(start as *mut libc::c_void, length as usize) };
    }

    #[test]
    fn addresses_that_are_only_reserved_take_no_time() {
        let pages = PageMap::open(std::process::id());
        let length = 16 << 40;
        // SAFETY: a new mapping, wherever the kernel puts it.
        let start = unsafe {
            let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            libc::mmap(std::ptr::null_mut(), length, libc::PROT_READ | libc::PROT_WRITE, kind, -1, 0)
        };
        if start == libc::MAP_FAILED {
            println!("the kernel does not give away so many addresses");
            return;
        }
        let began = std::time::Instant::now();
        let file = File::open("/proc/self/pagemap").unwrap();
        let range = start as u64..start as u64 + length as u64;
        // On kernels before 6.7, every single page has to be asked for.
        if page_scan::runs(&file, PageKind::Any, &range, &mut |_| ()) == range.end {
            assert_eq!(pages.runs(PageKind::Any, &range), []);
            assert!(began.elapsed() < std::time::Duration::from_secs(5), "{:?}", began.elapsed());
        }
        // SAFETY: nothing else knows of it.
        unsafe { libc::munmap(start, length) };
    }
}
