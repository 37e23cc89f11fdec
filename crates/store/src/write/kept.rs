//! The existing files of this host, and how many of them to keep.

use std::collections::BTreeMap;
use std::io;
use std::time::SystemTime;

use crate::StoreConfig;
use crate::folder::Folder;
use crate::names::{FileName, Partition, stamp};

/// The files that stores of this host have written, oldest first. The store never removes other files.
#[derive(Debug, Default)]
pub struct KeptFiles {
    /// The bytes of each file.
    files: BTreeMap<KeptFile, u64>,
    bytes: u64,
}

/// A file. Files are ordered by time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeptFile {
    /// The time at which the file's first interval began.
    pub began: String,
    /// The folder of the file.
    pub partition: Partition,
    /// The name of the file.
    pub name: String,
}

/// The folders inside a folder whose names begin with `prefix`.
pub fn folders(folder: &Folder, prefix: &str) -> io::Result<Vec<String>> {
    let is_one = |entry: &crate::folder::FolderEntry| entry.is_folder && entry.name.starts_with(prefix);
    Ok(folder.entries()?.into_iter().filter(is_one).map(|entry| entry.name).collect())
}

impl KeptFiles {
    /// Finds the files of this host. Removes unfinished files of earlier stores of this host: they have no data that could
    /// be read.
    pub fn find(root: &Folder, host: &str) -> io::Result<Self> {
        let mut kept = Self::default();
        for date in folders(root, "date=")? {
            let Ok(of_date) = root.inside(&date) else { continue };
            for service in folders(&of_date, "service=")? {
                let Ok(folder) = of_date.inside(&service) else { continue };
                for entry in folder.entries()? {
                    if FileName::parse_partial(&entry.name).is_some_and(|name| name.host == host) {
                        folder.remove(&entry.name)?;
                    }
                    let Some(name) = FileName::parse(&entry.name).filter(|name| name.host == host) else { continue };
                    let Ok(bytes) = folder.size(&entry.name) else { continue };
                    let partition = Partition { date: date.clone(), service: service.clone() };
                    kept.set(KeptFile { began: name.began, partition, name: entry.name }, bytes);
                }
            }
        }
        Ok(kept)
    }

    /// Notes that a file exists, with its size in bytes.
    pub fn set(&mut self, file: KeptFile, bytes: u64) {
        let old = self.files.insert(file, bytes).unwrap_or(0);
        self.bytes = self.bytes + bytes - old;
    }

    /// All files, oldest first.
    pub fn files(&self) -> impl Iterator<Item = &KeptFile> {
        self.files.keys()
    }

    /// The bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The oldest file, if it is too old, or if all files together are too large.
    pub fn excess(&self, config: &StoreConfig, now: SystemTime) -> Option<KeptFile> {
        let oldest = self.files.keys().next()?;
        let limit = now.checked_sub(config.keep_age).map(stamp).unwrap_or_default();
        (self.bytes > config.keep || oldest.began < limit).then(|| oldest.clone())
    }

    /// Removes a file, and its folders if they are then empty. Returns its size in bytes.
    pub fn remove(&mut self, root: &Folder, file: &KeptFile) -> io::Result<u64> {
        let bytes = self.files.remove(file).unwrap_or(0);
        self.bytes -= bytes;
        let date = match root.inside(&file.partition.date) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(bytes),
            date => date?,
        };
        match date.inside(&file.partition.service).and_then(|service| service.remove(&file.name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // This fails as long as the folders have other files.
        let _ = date.remove_folder(&file.partition.service);
        let _ = root.remove_folder(&file.partition.date);
        Ok(bytes)
    }
}
