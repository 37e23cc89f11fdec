//! Reads large parts of the target's memory piece by piece, with as few system calls as possible.

use std::ops::Range;

use super::memory::ProcessMemory;

/// Size of the pieces in bytes: a piece stays in the processor's cache while it is searched.
const PIECE: usize = 1 << 20;

/// The most pieces that one system call reads (`IOV_MAX`).
const AT_ONCE: usize = 1024;

/// After an unreadable page, reading continues with the next page.
const PAGE: usize = 4096;

/// Reads runs of memory, and passes each piece to `piece` with its address. Pieces of a run overlap by one word, so
/// that a word across two pieces is whole in one of them.
pub fn read(memory: &ProcessMemory, runs: &[Range<u64>], mut piece: impl FnMut(u64, &[u8])) {
    let mut buffer = vec![0; PIECE];
    let (mut places, mut size): (Vec<(u64, usize)>, usize) = (Vec::new(), 0);
    for run in runs {
        let mut at = run.start;
        while at < run.end {
            let length = usize::try_from(run.end - at).map_or(PIECE, |rest| rest.min(PIECE));
            if size + length > PIECE || places.len() == AT_ONCE {
                if !read_places(memory, &mut places, &mut buffer, &mut piece) {
                    return;
                }
                size = 0;
            }
            places.push((at, length));
            size += length;
            let end = at + length as u64;
            at = if end < run.end { end - 8 } else { end };
        }
    }
    read_places(memory, &mut places, &mut buffer, &mut piece);
}

/// Reads these places. Returns whether the process still exists.
fn read_places(
    memory: &ProcessMemory,
    places: &mut Vec<(u64, usize)>,
    buffer: &mut [u8],
    piece: &mut impl FnMut(u64, &[u8]),
) -> bool {
    let mut left = &mut places[..];
    while !left.is_empty() {
        // Page by page, a large process would take seconds that does not exist any more.
        let Some(count) = memory.read_places_of_living(left, buffer) else { return false };
        let mut bytes = &buffer[..count];
        let mut done = 0;
        for (start, length) in left.iter_mut() {
            let (own, others) = bytes.split_at((*length).min(bytes.len()));
            if !own.is_empty() {
                piece(*start, own);
            }
            bytes = others;
            if own.len() < *length {
                // The memory was unmapped meanwhile, or is not readable at all.
                let gap = (own.len() + PAGE - (*start as usize + own.len()) % PAGE).min(*length);
                (*start, *length) = (*start + gap as u64, *length - gap);
                done += usize::from(*length == 0);
                break;
            }
            done += 1;
        }
        left = &mut left[done..];
    }
    places.clear();
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mapping with `count` pages, each filled with its number; the pages in `holes` cannot be read.
    fn pages(count: usize, holes: &[usize]) -> u64 {
        // SAFETY: a new mapping, wherever the kernel puts it; what is written is within it.
        unsafe {
            let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let start = libc::mmap(std::ptr::null_mut(), count * PAGE, access, kind, -1, 0).cast::<u8>();
            assert_ne!(start.cast(), libc::MAP_FAILED);
            for page in 0..count {
                start.add(page * PAGE).write_bytes(page as u8, PAGE);
            }
            for page in holes {
                libc::munmap(start.add(page * PAGE).cast(), PAGE);
            }
            start as u64
        }
    }

    #[test]
    fn all_that_can_be_read_is_read_once_but_for_the_overlap() {
        let holes = [3, 4, 300, 700];
        let start = pages(701, &holes);
        let at = |page: usize| start + (page * PAGE) as u64;
        // One run longer than a piece, and many small ones, with holes at their beginning, in the middle and at their end.
        let mut runs: Vec<Range<u64>> = (600..701).map(|page| at(page)..at(page + 1)).collect();
        runs.insert(0, at(0)..at(600));
        let mut seen = vec![0; 701];
        let memory = ProcessMemory::new(std::process::id());
        read(&memory, &runs, |address, bytes| {
            for (offset, byte) in bytes.iter().enumerate() {
                let page = (address - start) as usize / PAGE + ((address - start) as usize % PAGE + offset) / PAGE;
                assert_eq!(usize::from(*byte), page % 256);
                seen[page] += 1;
            }
        });
        for (page, count) in seen.iter().enumerate() {
            let expected = if holes.contains(&page) { 0..=0 } else { PAGE..=PAGE + 8 };
            assert!(expected.contains(count), "page {page}: {count}");
        }
        // Twice, two pieces of the long run meet and share a word.
        assert_eq!(seen.iter().sum::<usize>(), (701 - holes.len()) * PAGE + 2 * 8);
        let mut nothing = true;
        read(&memory, std::slice::from_ref(&(0..PAGE as u64 * 4)), |_, _| nothing = false);
        assert!(nothing);
    }

    #[test]
    fn a_process_that_has_exited_is_left() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let began = std::time::Instant::now();
        // Page by page, this would take minutes.
        read(&ProcessMemory::new(child.id()), std::slice::from_ref(&(0x1000..1 << 41)), |_, _| panic!("it has memory"));
        assert!(began.elapsed() < std::time::Duration::from_secs(10), "{:?}", began.elapsed());
    }
}
