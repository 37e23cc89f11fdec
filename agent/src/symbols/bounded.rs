//! Reading of files that whoever runs the target may have made: no file makes us hold more of it than a real one has.

use std::collections::BTreeSet;
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use object::read::{ReadCache, ReadRef};

/// The most that is read of a file at a time: the symbols, notes and strings of the largest programs are smaller, and so
/// are the debug files of any LuaJIT.
const MOST: u64 = 128 << 20;

/// Files of which more than that would have had to be read.
static REFUSED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
static REFUSALS: AtomicU64 = AtomicU64::new(0);

/// The names of the files that were not read in full since they were too large: their symbols or unwind tables are missing.
pub fn refused() -> Vec<String> {
    REFUSED.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
}

/// Notes a file that was not read in full.
pub fn refuse(name: &str) {
    REFUSALS.fetch_add(1, Ordering::Relaxed);
    REFUSED.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned());
}

/// How often that happened.
pub fn refusals() -> u64 {
    REFUSALS.load(Ordering::Relaxed)
}

/// A file, and what may still be read of it.
pub struct BoundedFile<'a> {
    file: &'a File,
    cache: ReadCache<&'a File>,
    left: AtomicU64,
}

/// What readers of ELF files take.
#[derive(Clone, Copy)]
pub struct Bounded<'a>(&'a BoundedFile<'a>);

impl<'a> BoundedFile<'a> {
    /// All of a file, up to the limit.
    pub fn new(file: &'a File) -> Self {
        Self { file, cache: ReadCache::new(file), left: AtomicU64::new(MOST) }
    }

    /// To read from.
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
    // A reader may not look, and whoever has asked it knows the name.
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
        // What goes beyond the end is no excess, but nothing at all.
        if offset.checked_add(size).is_none_or(|end| self.0.cache.len().is_ok_and(|length| end > length)) {
            return Err(());
        }
        self.0.take(size)?;
        self.0.cache.read_bytes_at(offset, size)
    }

    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'a [u8], ()> {
        /// No name is longer.
        const LONGEST: u64 = 1 << 16;
        let range = range.start..range.end.min(range.start.saturating_add(LONGEST));
        let text = self.0.cache.read_bytes_at_until(range, delimiter)?;
        self.0.take(text.len() as u64)?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::symbols::elf::{SymbolTable, debug_links};
    use crate::unwind::module::{Image, Module};

    /// The program that runs this test, with a section that says it is as large as this.
    fn crafted(sections: &[&str], size: u64) -> File {
        let bytes = std::fs::read("/proc/self/exe").unwrap();
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&bytes, 0).unwrap();
        file.set_len(16 << 30).unwrap();
        let word = |at: usize| u64::from_le_bytes(*bytes[at..].first_chunk().unwrap());
        let half = |at: usize| usize::from(u16::from_le_bytes(*bytes[at..].first_chunk().unwrap()));
        // Fields of `Elf64_Ehdr` and `Elf64_Shdr`.
        let (table, count, names) = (word(40) as usize, half(60), half(62));
        let header = |index: usize| table + index * 64;
        let strings = word(header(names) + 24) as usize;
        let mut crafted = 0;
        for index in 0..count {
            let name = u32::from_le_bytes(*bytes[header(index)..].first_chunk().unwrap()) as usize;
            let name = bytes[strings + name..].split(|&byte| byte == 0).next().unwrap();
            if sections.iter().any(|section| section.as_bytes() == name) {
                file.write_all_at(&size.to_le_bytes(), header(index) as u64 + 32).unwrap();
                crafted += 1;
            }
        }
        assert_eq!(crafted, sections.len(), "no such section");
        file
    }

    #[test]
    fn gigantic_sections_are_refused_at_once() {
        let began = Instant::now();
        for section in [".dynstr", ".note.gnu.build-id", ".strtab"] {
            let image = Image::File(crafted(&[section], 12 << 30));
            let _ = debug_links(&image);
            let table = SymbolTable::read(&image, None);
            // What is in the others is there.
            let _ = table.iter().count();
        }
        assert!(!refused().is_empty());
        let image = Image::File(crafted(&[".eh_frame"], 8 << 30));
        let module = Module::new("crafted", std::path::Path::new("/crafted"), image).unwrap();
        let _ = module.table();
        assert!(began.elapsed() < Duration::from_secs(30), "it took {:?}", began.elapsed());
    }
}
