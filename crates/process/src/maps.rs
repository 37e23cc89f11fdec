//! The target's memory mappings (`/proc/PID/maps`).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::process::TargetError;

/// One mapping of the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// May be read.
    pub read: bool,
    /// May be written.
    pub write: bool,
    /// May be executed.
    pub exec: bool,
    /// Shared, rather than private.
    pub shared: bool,
    /// Offset of `start` in the file, in bytes.
    pub offset: u64,
    /// Device of the file, `(major, minor)`.
    pub device: (u32, u32),
    /// Inode of the file; 0 for anonymous memory.
    pub inode: u64,
    /// Path as the kernel shows it: a file (perhaps with ` (deleted)`), `[heap]`, `[vdso]`, or empty.
    pub path: String,
}

impl Mapping {
    /// Whether `address` lies in the mapping.
    pub fn contains(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.end - self.start
    }

    /// Whether the mapping is empty (never in a real process).
    pub fn is_empty(&self) -> bool {
        self.end == self.start
    }

    /// Whether a file backs it.
    pub fn is_file(&self) -> bool {
        self.inode != 0
    }

    /// The file's path without the kernel's ` (deleted)` mark.
    pub fn file_path(&self) -> Option<&Path> {
        self.is_file().then(|| Path::new(self.path.strip_suffix(" (deleted)").unwrap_or(&self.path)))
    }

    /// The link in `/proc/PID/map_files` that opens the mapped file itself, deleted or not.
    pub fn map_files_link(&self, pid: u32) -> PathBuf {
        format!("/proc/{pid}/map_files/{:x}-{:x}", self.start, self.end).into()
    }
}

/// All mappings of the target at one moment, sorted by address. There may be tens of thousands: clones share them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Maps(Arc<[Mapping]>);

impl Maps {
    /// Reads `/proc/PID/maps`.
    ///
    /// # Errors
    /// [`TargetError::NoSuchProcess`] if the process is gone, [`TargetError::NotPermitted`] if the file may not be read.
    pub fn read(pid: u32) -> Result<Self, TargetError> {
        let path = format!("/proc/{pid}/maps");
        let text = std::fs::read(&path).map_err(|error| TargetError::from_io(pid, &path, error))?;
        Ok(Self::parse_bytes(&text))
    }

    /// Parses the text of a `maps` file; it skips lines of another form.
    pub fn parse(text: &str) -> Self {
        Self::parse_bytes(text.as_bytes())
    }

    /// Like [`Self::parse`], for a text in which paths may have any bytes.
    pub(crate) fn parse_bytes(text: &[u8]) -> Self {
        let lines = text.split(|byte| *byte == b'\n').filter_map(parse_line);
        Self(lines.collect::<Vec<_>>().into())
    }

    /// The mapping that holds `address`.
    pub fn find(&self, address: u64) -> Option<&Mapping> {
        let index = self.0.partition_point(|mapping| mapping.end <= address);
        self.0.get(index).filter(|mapping| mapping.contains(address))
    }

    /// All mappings, sorted by address.
    pub fn iter(&self) -> std::slice::Iter<'_, Mapping> {
        self.0.iter()
    }

    /// Whether there are no mappings (a kernel thread, or a process that has exited).
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The rest of a line that is not parsed yet.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    /// The next word.
    fn word(&mut self) -> Option<&'a [u8]> {
        let line = self.0.trim_ascii_start();
        let end = line.iter().position(|byte| *byte == b' ').unwrap_or(line.len());
        let (word, rest) = line.split_at(end);
        self.0 = rest;
        (!word.is_empty()).then_some(word)
    }

    /// Two hexadecimal numbers with the character `between` between them, as in `fe:01`.
    fn pair(&mut self, between: u8) -> Option<(u64, u64)> {
        let word = self.word()?;
        let (first, second) = word.split_at_checked(word.iter().position(|byte| *byte == between)?)?;
        Some((number(first, 16)?, number(&second[1..], 16)?))
    }
}

/// Parses digits. Each line has five numbers and the text may have megabytes, so library functions would take too long.
fn number(digits: &[u8], radix: u32) -> Option<u64> {
    let add = |sum: u64, digit: &u8| {
        let digit = char::from(*digit).to_digit(radix)?;
        sum.checked_mul(radix.into())?.checked_add(digit.into())
    };
    (!digits.is_empty()).then(|| digits.iter().try_fold(0, add)).flatten()
}

fn parse_line(line: &[u8]) -> Option<Mapping> {
    let mut rest = Rest(line);
    let (start, end) = rest.pair(b'-')?;
    let permissions = rest.word()?;
    let offset = number(rest.word()?, 16)?;
    let (major, minor) = rest.pair(b':')?;
    let inode = number(rest.word()?, 10)?;
    Some(Mapping {
        start,
        end,
        read: permissions.first() == Some(&b'r'),
        write: permissions.get(1) == Some(&b'w'),
        exec: permissions.get(2) == Some(&b'x'),
        shared: permissions.get(3) == Some(&b's'),
        offset,
        device: (u32::try_from(major).ok()?, u32::try_from(minor).ok()?),
        inode,
        path: String::from_utf8_lossy(rest.0.trim_ascii_start()).into_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
00400000-00452000 r-xp 00001000 08:02 173521      /usr/bin/dbus daemon (deleted)
7f0000000000-7f0000021000 rw-p 00000000 00:00 0
7ffd1000-7ffd3000 r-xp 00000000 00:00 0          [vdso]
";

    #[test]
    fn parses_paths_with_spaces_and_anonymous_memory() {
        let maps = Maps::parse(TEXT);
        let all: Vec<_> = maps.iter().collect();
        assert_eq!(all.len(), 3);
        assert_eq!(all[0].file_path(), Some(Path::new("/usr/bin/dbus daemon")));
        assert_eq!((all[0].offset, all[0].device, all[0].inode), (0x1000, (8, 2), 173_521));
        assert!(all[0].exec && !all[0].write && !all[0].shared);
        assert_eq!((all[1].path.as_str(), all[1].is_file()), ("", false));
        assert_eq!(all[2].path, "[vdso]");
    }

    #[test]
    fn finds_by_address() {
        let maps = Maps::parse("1000-2000 r--p 0 00:00 0\n3000-4000 r--p 0 00:00 0\n");
        assert_eq!(maps.find(0x1fff).map(|m| m.start), Some(0x1000));
        assert_eq!(maps.find(0x2000), None);
        assert_eq!(maps.find(0x3000).map(|m| m.start), Some(0x3000));
        assert_eq!(maps.find(0x4000), None);
    }
}
