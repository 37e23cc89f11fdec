//! The target's memory mappings (`/proc/PID/maps`).

use std::path::{Path, PathBuf};

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

    /// Whether the mapping is empty (never so in a real process).
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

    /// The link in `/proc/PID/map_files` that opens the very file that is mapped, deleted or not.
    pub fn map_files_link(&self, pid: u32) -> PathBuf {
        format!("/proc/{pid}/map_files/{:x}-{:x}", self.start, self.end).into()
    }
}

/// All mappings of the target at one moment, sorted by address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Maps(Vec<Mapping>);

impl Maps {
    /// Reads `/proc/PID/maps`.
    ///
    /// # Errors
    /// [`TargetError::NoSuchProcess`] if it is gone, [`TargetError::NotPermitted`] if it may not be read.
    pub fn read(pid: u32) -> Result<Self, TargetError> {
        let path = format!("/proc/{pid}/maps");
        let text = std::fs::read(&path).map_err(|error| TargetError::from_io(pid, &path, error))?;
        Ok(Self::parse(&String::from_utf8_lossy(&text)))
    }

    /// Parses the text of a `maps` file; lines of another shape are passed over.
    pub fn parse(text: &str) -> Self {
        Self(text.lines().filter_map(parse_line).collect())
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

    /// Whether there is none (a kernel thread, or a process that has exited).
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn parse_line(line: &str) -> Option<Mapping> {
    let mut rest = line;
    let mut field = || {
        let trimmed = rest.trim_start();
        let end = trimmed.find(' ').unwrap_or(trimmed.len());
        let (word, tail) = trimmed.split_at(end);
        rest = tail;
        (!word.is_empty()).then_some(word)
    };
    let (start, end) = field()?.split_once('-')?;
    let permissions = field()?.as_bytes();
    let offset = field()?;
    let (major, minor) = field()?.split_once(':')?;
    let inode = field()?;
    let hex = |digits| u64::from_str_radix(digits, 16).ok();
    let device = |digits| u32::from_str_radix(digits, 16).ok();
    Some(Mapping {
        start: hex(start)?,
        end: hex(end)?,
        read: permissions.first() == Some(&b'r'),
        write: permissions.get(1) == Some(&b'w'),
        exec: permissions.get(2) == Some(&b'x'),
        shared: permissions.get(3) == Some(&b's'),
        offset: hex(offset)?,
        device: (device(major)?, device(minor)?),
        inode: inode.parse().ok()?,
        path: rest.trim_start().to_owned(),
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
