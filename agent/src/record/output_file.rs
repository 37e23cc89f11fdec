//! A file that is to be written: known to be writable, but not touched before there is something to write. A recording that
//! is refused leaves what an earlier one has written.

use std::cell::Cell;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A file, from when it is promised to when it is written.
pub(super) struct OutputFile {
    file: File,
    path: PathBuf,
    /// Whether there was no such file before, and nothing was written to it.
    is_new: Cell<bool>,
    /// Whether what is in it is somebody else's.
    is_old: bool,
}

impl OutputFile {
    /// Opens the file at `path`, which may be there or not.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let new = File::options().write(true).create_new(true).open(path);
        let (file, is_new) = match new {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                // It may have gone meanwhile, or be a link to a file that is still to come.
                (File::options().write(true).create(true).truncate(false).open(path)?, false)
            }
            new => (new?, true),
        };
        // There is nothing to be kept of a pipe or a device, and no beginning to go back to.
        let is_old = !is_new && file.metadata()?.is_file();
        Ok(Self { file, path: path.to_owned(), is_new: Cell::new(is_new), is_old })
    }

    /// It is written in another way now, and stays.
    pub(super) fn keep(&self) {
        self.is_new.set(false);
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.is_new.set(false);
        if self.is_old {
            self.file.set_len(0)?;
            self.is_old = false;
        }
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if self.is_new.get() {
            // If it cannot be removed an empty file is left: there is nothing better to do.
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_a_file_stays_until_something_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.bin");
        fs::write(&path, b"an earlier recording").unwrap();
        drop(OutputFile::open(&path).unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"an earlier recording");
        let mut file = OutputFile::open(&path).unwrap();
        file.write_all(b"new").unwrap();
        file.write_all(b"er").unwrap();
        drop(file);
        assert_eq!(fs::read(&path).unwrap(), b"newer");
    }

    #[test]
    fn a_file_that_is_never_written_goes_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.bin");
        drop(OutputFile::open(&path).unwrap());
        assert!(!path.exists());
        let file = OutputFile::open(&path).unwrap();
        file.keep();
        drop(file);
        assert!(path.exists());
    }

    #[test]
    fn devices_are_written_as_they_are() {
        let mut null = OutputFile::open(Path::new("/dev/null")).unwrap();
        null.write_all(b"nothing").unwrap();
        drop(null);
        assert!(OutputFile::open(Path::new("/proc/self/nothing")).is_err());
    }

    #[test]
    fn links_are_followed() {
        let folder = tempfile::tempdir().unwrap();
        let [link, target] = ["link", "target"].map(|name| folder.path().join(name));
        std::os::unix::fs::symlink(&target, &link).unwrap();
        OutputFile::open(&link).unwrap().write_all(b"there").unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"there");
    }
}
