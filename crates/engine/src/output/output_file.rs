//! A file to write. Opening it checks that it is writable, but does not change it before there is something to write: if a
//! recording is refused, the file of an earlier recording stays as it is.
//!
//! Outputs say much about the observed process, so only the owner may read them. And lj-trace often runs as root, so it
//! follows no link of another user, and writes to no file of another user.

use std::cell::Cell;
use std::fs::{self, File, Metadata};
use std::io::{self, Seek as _, Write};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// A file, from the time it is opened until it is written.
#[derive(Debug)]
pub struct OutputFile {
    file: File,
    path: PathBuf,
    /// Whether the file did not exist before, and nothing has been written to it.
    is_new: Cell<bool>,
    /// Whether the file has contents from before.
    is_old: bool,
    /// Whether it is a regular file. Pipes and devices have nothing to overwrite.
    is_regular: bool,
}

/// Whether existing files may be replaced, as with `--force`.
static MAY_REPLACE: AtomicBool = AtomicBool::new(false);

/// From here on, allows the whole process to replace files: one command writes them all.
pub fn allow_replacing() {
    MAY_REPLACE.store(true, Ordering::Relaxed);
}

impl OutputFile {
    /// Opens the file at `path`, which may exist or not.
    ///
    /// # Errors
    /// The file cannot be written, belongs to another user, or has contents that must not be replaced.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::open_with(path, MAY_REPLACE.load(Ordering::Relaxed))
    }

    /// Opens a file whose contents can be made again, so that they may be replaced.
    ///
    /// # Errors
    /// The file cannot be written, or belongs to another user.
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
        // A pipe or a device has no contents to keep, and no beginning to go back to.
        let is_old = !is_new && is_regular;
        Ok(Self { file, path: path.to_owned(), is_new: Cell::new(is_new), is_old, is_regular })
    }

    /// Empties the file, to write it again from its beginning. From now on the file exists, even if nothing is written.
    ///
    /// # Errors
    /// The file cannot be emptied.
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

/// The error of a file that cannot be created. It says what is wrong with the folder if that is the cause.
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

/// Opens an existing file for writing, if it is ours.
///
/// # Errors
/// The file belongs to another user, or cannot be opened.
pub fn open_existing(path: &Path) -> io::Result<File> {
    let (mut options, link) = (File::options(), fs::symlink_metadata(path)?);
    options.write(true);
    if link.is_symlink() {
        check_owner(&link, "a link of another user's, which is not followed")?;
        // The link may point to a file that does not exist yet. Its target is our own choice, or root's: /dev/stdout.
        return options.create(true).truncate(false).mode(0o600).open(path);
    }
    let file = options.custom_flags(libc::O_NOFOLLOW).open(path)?;
    let metadata = file.metadata()?;
    // A terminal belongs to its user, even if that user has become root.
    if !metadata.file_type().is_char_device() {
        check_owner(&metadata, "another user's, who could read what is written")?;
    }
    Ok(file)
}

/// Refuses a file that belongs to neither this user nor root.
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
            // If the file cannot be removed, an empty one stays: nothing better can be done.
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
        // A profile without samples is an empty file, not the previous contents.
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
        // An empty file, as mktemp(1) leaves it.
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
