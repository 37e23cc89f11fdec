//! Reads pages as `/proc/PID/pagemap` reports them, one word each.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

use super::page_map::PageKind;

/// The most words that are read at once.
const WORDS: u64 = 8192;

/// Passes each page of this kind to `add`. If the words end early, it also passes the rest of `range`. `page` is the page size.
pub fn runs(file: &File, page: u64, kind: PageKind, range: &Range<u64>, mut add: impl FnMut(Range<u64>)) {
    let most = range.end.saturating_sub(range.start).div_ceil(page).min(WORDS);
    let mut bytes = vec![0; 8 * most as usize];
    let mut at = range.start;
    while at < range.end {
        let count = (range.end - at).div_ceil(page).min(WORDS);
        let wanted = &mut bytes[..8 * count as usize];
        if file.read_exact_at(wanted, at / page * 8).is_err() {
            // Pages without a word may exist: reading them will tell.
            add(at..range.end);
            break;
        }
        for word in wanted.as_chunks::<8>().0 {
            if u64::from_le_bytes(*word) & kind.bits() != 0 {
                add(at..at + page);
            }
            at += page;
        }
    }
}
