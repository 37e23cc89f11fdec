//! A file to be written: it is checked to be writable, but not touched before there is something to write. A recording
//! that is refused leaves an earlier one's file as it is.
//!
//! What is written tells much of the process that was looked at, so nobody but the owner may read it; and lj-trace is often
//! root, so no link of another user's is followed, and nobody else's file is written to.

use std::cell::Cell;
use std::fs::{self, File, Metadata};
use std::io::{self, Seek as _, Write};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// A file, from when it is promised to when it is written.
#[derive(Debug)]
pub struct OutputFile {
    file: File,
    path: PathBuf,
    /// Whether there was no such file before, and nothing was written to it.
    is_new: Cell<bool>,
    /// Whether what is in it is somebody else's.
    is_old: bool,
    /// Whether it is a file, rather than a pipe or a device, in which nothing can be overwritten.
    is_regular: bool,
}

/// Whether files that are there may be replaced, as `--force` says.
static MAY_REPLACE: AtomicBool = AtomicBool::new(false);

/// Lets files be replaced from here on, in the whole process: one command writes them all.
pub fn allow_replacing() {
    MAY_REPLACE.store(true, Ordering::Relaxed);
}

impl OutputFile {
    /// Opens the file at `path`, which may be there or not.
    ///
    /// # Errors
    /// It cannot be written, belongs to somebody else, or holds something that is not to be replaced.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::open_with(path, MAY_REPLACE.load(Ordering::Relaxed))
    }

    /// The same for what can be made again: it replaces what is in the file.
    ///
    /// # Errors
    /// It cannot be written, or belongs to somebody else.
    pub fn replace(path: &Path) -> io::Result<Self> {
        Self::open_with(path, true)
    }

    fn open_with(path: &Path, may_replace: bool) -> io::Result<Self> {
        let new = File::options().write(true).create_new(true).mode(0o600).open(path);
        let (file, is_new) = match new {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => (open_existing(path)?, false),
            Err(error) => return Err(with_cause(path, error)),
            Ok(file) => (file, true),
        };
        let metadata = file.metadata()?;
        let is_regular = metadata.is_file();
        if !is_new && is_regular && metadata.len() > 0 && !may_replace {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "it is there already; --force replaces it"));
        }
        // There is nothing to be kept of a pipe or a device, and no beginning to go back to.
        let is_old = !is_new && is_regular;
        Ok(Self { file, path: path.to_owned(), is_new: Cell::new(is_new), is_old, is_regular })
    }

    /// Empties it: it is written anew, from its beginning. It is there from now on, even if nothing is written.
    ///
    /// # Errors
    /// It cannot be emptied.
    pub fn begin_anew(&mut self) -> io::Result<()> {
        self.is_new.set(false);
        self.is_old = false;
        if self.is_regular {
            self.file.set_len(0)?;
            self.file.rewind()?;
        }
        Ok(())
    }
}

/// An error of a file that cannot be made, which tells what is wrong with its folder if that is the cause.
fn with_cause(path: &Path, error: io::Error) -> io::Error {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let cause = match fs::metadata(folder) {
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => {
            format!("there is no folder {}", folder.display())
        }
        Ok(metadata) if !metadata.is_dir() => format!("{} is no folder", folder.display()),
        _ => return error,
    };
    io::Error::new(error.kind(), cause)
}

/// Opens what is there for writing, if it is ours.
///
/// # Errors
/// It belongs to another user, or cannot be opened.
pub fn open_existing(path: &Path) -> io::Result<File> {
    let (mut options, link) = (File::options(), fs::symlink_metadata(path)?);
    options.write(true);
    if link.is_symlink() {
        check_owner(&link, "a link of another user's, which is not followed")?;
        // It may lead to a file that is still to come. Where it leads is our own choice, or root's: /dev/stdout.
        return options.create(true).truncate(false).mode(0o600).open(path);
    }
    let file = options.custom_flags(libc::O_NOFOLLOW).open(path)?;
    let metadata = file.metadata()?;
    // A terminal is its user's, also of one who has become root.
    if !metadata.file_type().is_char_device() {
        check_owner(&metadata, "another user's, who could read what is written")?;
    }
    Ok(file)
}

/// Refuses what belongs to neither this user nor root.
fn check_owner(metadata: &Metadata, whose: &str) -> io::Result<()> {
    // SAFETY: geteuid(2) takes nothing, and always succeeds.
    let own = unsafe { libc::geteuid() };
    if metadata.uid() == own || metadata.uid() == 0 {
        return Ok(());
    }
    let message = format!("it is {whose} (user {}): write to a folder of your own", metadata.uid());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, message))
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.is_new.set(false);
        if self.is_old {
            self.file.set_len(0)?;
            self.file.rewind()?;
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
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn what_is_in_a_file_stays_until_something_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.bin");
        fs::write(&path, b"an earlier recording").unwrap();
        drop(OutputFile::replace(&path).unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"an earlier recording");
        let mut file = OutputFile::replace(&path).unwrap();
        file.write_all(b"new").unwrap();
        file.write_all(b"er").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"newer");
        file.begin_anew().unwrap();
        file.write_all(b"new").unwrap();
        drop(file);
        assert_eq!(fs::read(&path).unwrap(), b"new");
        // A profile without samples is an empty file, not the one before.
        OutputFile::replace(&path).unwrap().begin_anew().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"");
        fs::remove_file(&path).unwrap();
        OutputFile::replace(&path).unwrap().begin_anew().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"");
    }

    #[test]
    fn an_earlier_recording_is_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.bin");
        fs::write(&path, b"an earlier recording").unwrap();
        assert_eq!(OutputFile::open_with(&path, false).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"an earlier recording");
        // As mktemp(1) leaves it.
        fs::write(&path, b"").unwrap();
        OutputFile::open_with(&path, false).unwrap().write_all(b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }

    #[test]
    fn nobody_else_may_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.bin");
        OutputFile::open(&path).unwrap().write_all(b"secret").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_file_that_is_never_written_goes_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.bin");
        drop(OutputFile::open(&path).unwrap());
        assert!(!path.exists());
    }

    #[test]
    fn devices_are_written_as_they_are() {
        let mut null = OutputFile::open(Path::new("/dev/null")).unwrap();
        null.write_all(b"nothing").unwrap();
        null.begin_anew().unwrap();
        null.write_all(b"nothing").unwrap();
        drop(null);
        assert!(OutputFile::open(Path::new("/proc/self/nothing")).is_err());
    }

    #[test]
    fn links_of_our_own_are_followed() {
        let folder = tempfile::tempdir().unwrap();
        let [link, target] = ["link", "target"].map(|name| folder.path().join(name));
        symlink(&target, &link).unwrap();
        OutputFile::open(&link).unwrap().write_all(b"there").unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"there");
        let refused = OutputFile::open_with(&link, false).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
    }
}
