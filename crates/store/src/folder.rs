//! The folder of a store. The store opens, creates and removes nothing outside of it: it opens folders relative to their
//! parents, and does not follow links.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, FlockOperation, Mode, OFlags};

/// The permissions: root and its group may read profiles, since these contain names of functions and files.
const FOLDER_MODE: Mode = Mode::RWXU.union(Mode::RGRP).union(Mode::XGRP);
const FILE_MODE: Mode = Mode::RUSR.union(Mode::WUSR).union(Mode::RGRP);

const AS_FOLDER: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// An open folder.
#[derive(Debug)]
pub struct Folder(OwnedFd);

/// An entry of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FolderEntry {
    /// The name. Entries whose names are not valid text are left out, since the store writes none.
    pub name: String,
    /// Whether the entry is a folder.
    pub is_folder: bool,
}

fn c_name(name: &str) -> io::Result<CString> {
    if name.is_empty() || name.contains('/') || name == "." || name == ".." {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    CString::new(name).map_err(|_| io::ErrorKind::InvalidInput.into())
}

impl Folder {
    /// Opens a folder, and creates it if only its last component is missing. The path is the user's, so links in it are
    /// followed.
    pub fn open_or_make(path: &Path) -> io::Result<Self> {
        match rustix::fs::mkdir(path, FOLDER_MODE) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        Self::open(path)
    }

    /// Opens a folder.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::openat(CWD, path, flags, Mode::empty())?))
    }

    /// Opens a folder inside this one.
    pub fn inside(&self, name: &str) -> io::Result<Self> {
        Ok(Self(rustix::fs::openat(&self.0, c_name(name)?, AS_FOLDER, Mode::empty())?))
    }

    /// Opens a folder inside this one, and creates it if it is missing.
    pub fn inside_or_made(&self, name: &str) -> io::Result<Self> {
        match rustix::fs::mkdirat(&self.0, c_name(name)?, FOLDER_MODE) {
            Ok(()) => rustix::fs::fsync(&self.0)?,
            Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        self.inside(name)
    }

    /// Creates a file.
    pub fn create(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.0, c_name(name)?, flags, FILE_MODE)?.into())
    }

    /// Opens a file for reading. A pipe or a device is refused, without waiting for it.
    pub fn file(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NOCTTY;
        let file = File::from(rustix::fs::openat(&self.0, c_name(name)?, flags, Mode::empty())?);
        if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("no regular file")) }
    }

    /// The size of a regular file in bytes.
    pub fn size(&self, name: &str) -> io::Result<u64> {
        let stat = rustix::fs::statat(&self.0, c_name(name)?, AtFlags::SYMLINK_NOFOLLOW)?;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if is_file { Ok(stat.st_size.unsigned_abs()) } else { Err(io::Error::other("no regular file")) }
    }

    /// Renames a file. A file with the new name is replaced.
    pub fn rename(&self, old: &str, new: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.0, c_name(old)?, &self.0, c_name(new)?)?)
    }

    /// Writes renames to the disk.
    pub fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(&self.0)?)
    }

    /// Removes a file.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.0, c_name(name)?, AtFlags::empty())?)
    }

    /// Removes an empty folder.
    pub fn remove_folder(&self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.0, c_name(name)?, AtFlags::REMOVEDIR)?)
    }

    /// Locks the file of this name for as long as the result lives; [`None`] if another process has locked it.
    pub fn lock(&self, name: &str) -> io::Result<Option<File>> {
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = rustix::fs::openat(&self.0, c_name(name)?, flags, FILE_MODE)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(file.into())),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The entries of the folder, sorted by name.
    pub fn entries(&self) -> io::Result<Vec<FolderEntry>> {
        let mut entries = Vec::new();
        for entry in Dir::read_from(&self.0)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            if matches!(name, "." | "..") {
                continue;
            }
            let mut kind = entry.file_type();
            if kind == FileType::Unknown {
                let stat = rustix::fs::statat(&self.0, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)?;
                kind = FileType::from_raw_mode(stat.st_mode);
            }
            entries.push(FolderEntry { name: name.to_owned(), is_folder: kind == FileType::Directory });
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }
}
