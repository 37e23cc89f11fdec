//! Reads files that the target's user may have made, with limits: no file makes lj-trace hold more memory than a real
//! one would.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::ops::Range;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use object::read::{ReadCache, ReadCacheOps, ReadRef};

/// The most bytes of a file that are read at a time: the symbols, notes and strings of the largest programs are
/// smaller, and so are the debug files of any LuaJIT.
const MOST: u64 = 128 << 20;

/// Files that would have needed more than that: the first ones, because a target can have any number of them.
static REFUSED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
const MOST_NAMED: usize = 256;
static REFUSALS: AtomicU64 = AtomicU64::new(0);

/// The names of the files that were not read in full because they were too large: their symbols or unwind tables are missing.
pub fn refused() -> Vec<String> {
    REFUSED.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
}

/// Notes a file that was not read in full.
pub fn refuse(name: &str) {
    REFUSALS.fetch_add(1, Ordering::Relaxed);
    let mut refused = REFUSED.lock().unwrap_or_else(PoisonError::into_inner);
    if refused.len() < MOST_NAMED {
        refused.insert(name.to_owned());
    }
}

/// How often a file was not read in full.
pub fn refusals() -> u64 {
    REFUSALS.load(Ordering::Relaxed)
}

/// A file, and how many bytes of it may still be read.
pub struct BoundedFile<'a> {
    file: &'a File,
    cache: ReadCache<Positioned<'a>>,
    left: AtomicU64,
}

/// A reader for the ELF parser.
#[derive(Clone, Copy)]
pub struct Bounded<'a>(&'a BoundedFile<'a>);

/// A file, and the position of the next read. The descriptor has a position too, but all readers of the file share it,
/// and several threads read at once.
struct Positioned<'a> {
    file: &'a File,
    at: u64,
}

impl ReadCacheOps for Positioned<'_> {
    fn len(&mut self) -> Result<u64, ()> {
        // The sandbox allows no other way to find the length. Nothing else uses the position that this moves.
        Seek::seek(&mut self.file, SeekFrom::End(0)).map_err(drop)
    }

    fn seek(&mut self, at: u64) -> Result<u64, ()> {
        self.at = at;
        Ok(at)
    }

    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, ()> {
        let count = self.file.read_at(buffer, self.at).map_err(drop)?;
        self.at = self.at.saturating_add(count as u64);
        Ok(count)
    }

    fn read_exact(&mut self, buffer: &mut [u8]) -> Result<(), ()> {
        self.file.read_exact_at(buffer, self.at).map_err(drop)?;
        self.at = self.at.saturating_add(buffer.len() as u64);
        Ok(())
    }
}

impl<'a> BoundedFile<'a> {
    /// A whole file, up to the limit.
    pub fn new(file: &'a File) -> Self {
        Self { file, cache: ReadCache::new(Positioned { file, at: 0 }), left: AtomicU64::new(MOST) }
    }

    /// A reader for this file.
    pub fn reader(&'a self) -> Bounded<'a> {
        Bounded(self)
    }

    fn take(&self, size: u64) -> Result<(), ()> {
        let enough = |left: u64| left.checked_sub(size);
        if self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, enough).is_ok() {
            return Ok(());
        }
        refuse(&name(self.file));
        Err(())
    }
}

/// The name of an open file.
fn name(file: &File) -> String {
    // A reader process may not look the name up, and lj-trace, which asked it, knows the name.
    if crate::sandbox::is_reader() {
        return String::new();
    }
    let link = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    std::fs::read_link(link).unwrap_or_default().display().to_string()
}

impl<'a> ReadRef<'a> for Bounded<'a> {
    fn len(self) -> Result<u64, ()> {
        self.0.cache.len()
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'a [u8], ()> {
        // A read beyond the end is no excess, but an error in the file.
        if offset.checked_add(size).is_none_or(|end| self.0.cache.len().is_ok_and(|length| end > length)) {
            return Err(());
        }
        self.0.take(size)?;
        self.0.cache.read_bytes_at(offset, size)
    }

    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'a [u8], ()> {
        /// The most bytes of a name.
        const LONGEST: u64 = 1 << 16;
        let range = range.start..range.end.min(range.start.saturating_add(LONGEST));
        let text = self.0.cache.read_bytes_at_until(range, delimiter)?;
        self.0.take(text.len() as u64)?;
        Ok(text)
    }
}
