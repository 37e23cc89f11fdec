//! Stores bytes until they are needed: the first of them in memory, the rest in an unnamed file.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// The number of bytes to keep in memory.
const IN_MEMORY: usize = 32 << 20;

/// The bytes cannot be stored.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot keep a copy of the heap in {}: {source} (it takes as much room as the heap; TMPDIR names another folder)",
    folder.display()
)]
pub struct CopyStoreError {
    /// The folder of the file.
    pub folder: PathBuf,
    /// The cause.
    pub source: io::Error,
}

/// A store of bytes, which grows at its end.
#[derive(Debug)]
pub struct CopyStore {
    memory: Vec<u8>,
    limit: usize,
    file: Option<(File, PathBuf)>,
    length: u64,
    folders: Vec<PathBuf>,
}

impl CopyStore {
    /// An empty store. Its file will be in the first of these folders that takes it.
    pub fn new(folders: Vec<PathBuf>) -> Self {
        Self::with_limit(folders, IN_MEMORY)
    }

    fn with_limit(folders: Vec<PathBuf>, limit: usize) -> Self {
        Self { memory: Vec::new(), limit, file: None, length: 0, folders }
    }

    /// The number of bytes.
    pub const fn len(&self) -> u64 {
        self.length
    }

    /// Adds bytes at the end.
    ///
    /// # Errors
    /// [`CopyStoreError`] if no file can be created, or its file system is full.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), CopyStoreError> {
        if self.file.is_none() && self.memory.len() + bytes.len() <= self.limit {
            self.memory.extend_from_slice(bytes);
        } else {
            if self.file.is_none() {
                self.file = Some(self.unnamed()?);
            }
            if let Some((file, folder)) = &mut self.file {
                file.write_all(bytes).map_err(|source| CopyStoreError { folder: folder.clone(), source })?;
            }
        }
        self.length += bytes.len() as u64;
        Ok(())
    }

    fn unnamed(&self) -> Result<(File, PathBuf), CopyStoreError> {
        let mut refused = None;
        for folder in &self.folders {
            match unnamed(folder) {
                Ok(file) => return Ok((file, folder.clone())),
                Err(source) => refused = refused.or(Some(CopyStoreError { folder: folder.clone(), source })),
            }
        }
        let nowhere = || CopyStoreError { folder: PathBuf::new(), source: io::ErrorKind::NotFound.into() };
        Err(refused.unwrap_or_else(nowhere))
    }

    /// Reads bytes from `offset` on; returns the number of bytes.
    pub fn read(&self, offset: u64, buffer: &mut [u8]) -> usize {
        let in_memory = self.memory.len() as u64;
        if offset < in_memory {
            let bytes = &self.memory[offset as usize..];
            let count = bytes.len().min(buffer.len());
            buffer[..count].copy_from_slice(&bytes[..count]);
            return if count < buffer.len() { count + self.read(in_memory, &mut buffer[count..]) } else { count };
        }
        let Some((file, _)) = &self.file else { return 0 };
        let mut done = 0;
        while done < buffer.len() {
            match file.read_at(&mut buffer[done..], offset - in_memory + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        done
    }
}

/// Creates a file that no other process can open. It disappears when it is closed, even if lj-trace is killed.
fn unnamed(folder: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    match options.clone().custom_flags(libc::O_TMPFILE).open(folder) {
        // Not every file system supports this: NFS and older overlays do not.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL)) => {}
        outcome => return outcome,
    }
    let path = folder.join(format!(".lj-trace-{}.heap", std::process::id()));
    let file = options.create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

/// The folders for the file: that of the first output, `$TMPDIR`, and the folder of temporary files.
pub fn folders(output: Option<&Path>) -> Vec<PathBuf> {
    let beside = output.map(|output| match output.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    });
    let named = std::env::var_os("TMPDIR").filter(|folder| !folder.is_empty()).map(PathBuf::from);
    named.into_iter().chain(beside).chain(["/var/tmp", "/tmp"].map(PathBuf::from)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_much_goes_to_a_file_without_a_name() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = CopyStore::with_limit(vec!["/nowhere".into(), folder.path().to_owned()], 1000);
        let bytes: Vec<u8> = (0..5000_u32).map(|index| (index / 3) as u8).collect();
        bytes.chunks(300).for_each(|chunk| store.append(chunk).unwrap());
        assert_eq!((store.memory.len(), store.len()), (900, 5000));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        for (offset, length) in [(0, 100), (850, 100), (899, 1), (900, 4000), (4990, 100), (6000, 1)] {
            let mut buffer = vec![0; length];
            let count = store.read(offset as u64, &mut buffer);
            assert_eq!(count, length.min(5000_usize.saturating_sub(offset)));
            assert_eq!(buffer[..count], bytes[offset.min(5000)..offset.min(5000) + count]);
        }
    }

    #[test]
    fn a_full_disk_is_said() {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut store = CopyStore { file: Some((full, "/dev".into())), ..CopyStore::with_limit(Vec::new(), 0) };
        let error = store.append(&[1]).unwrap_err().to_string();
        assert!(error.contains("/dev: No space left") && error.contains("TMPDIR"), "{error}");
        let error = CopyStore::with_limit(vec!["/nowhere".into()], 0).append(&[1]).unwrap_err().to_string();
        assert!(error.contains("/nowhere"), "{error}");
    }
}
