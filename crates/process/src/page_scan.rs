//! Reads pages in runs, as the kernel reports them. The kernel skips absent pages without a look at each, so a
//! reservation of terabytes takes no time (`PAGEMAP_SCAN`, Linux 6.7).

use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd as _;

use super::page_map::PageKind;

/// `struct pm_scan_arg` (`linux/fs.h`).
#[repr(C)]
#[derive(Default)]
struct Arguments {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    regions: u64,
    region_count: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_any_of: u64,
    return_mask: u64,
}

/// `struct page_region`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: libc::c_ulong = 3 << 30 | (size_of::<Arguments>() as libc::c_ulong) << 16 | 0x66 << 8 | 16;

/// The most runs that one call returns.
const REGIONS: usize = 512;

impl PageKind {
    /// `PAGE_IS_PRESENT` and `PAGE_IS_SWAPPED`.
    const fn categories(self) -> u64 {
        match self {
            Self::Present => 1 << 3,
            Self::Swapped => 1 << 4,
            Self::Any => 3 << 3,
        }
    }
}

/// Passes each run of pages of this kind to `add`, as far as the kernel reports them. Returns the address where the
/// reports end; that is the start of `range` if the kernel does not know the call.
pub fn runs(file: &File, kind: PageKind, range: &Range<u64>, add: &mut impl FnMut(Range<u64>)) -> u64 {
    let mut regions = [Region::default(); REGIONS];
    let mut at = range.start;
    while at < range.end {
        let mut arguments = Arguments {
            size: size_of::<Arguments>() as u64,
            start: at,
            end: range.end,
            regions: regions.as_mut_ptr() as u64,
            region_count: REGIONS as u64,
            category_any_of: kind.categories(),
            return_mask: kind.categories(),
            ..Arguments::default()
        };
        // SAFETY: the kernel writes no more than `region_count` regions, which `regions` has room for, and into
        // `arguments`. Both outlive the call.
        let count = unsafe { libc::ioctl(file.as_raw_fd(), PAGEMAP_SCAN, &raw mut arguments) };
        let Ok(count) = usize::try_from(count) else { return at };
        for region in regions.iter().take(count) {
            add(region.start..region.end);
        }
        // Without progress, the loop would never end.
        if arguments.walk_end <= at {
            return at;
        }
        at = arguments.walk_end;
    }
    at.min(range.end)
}
