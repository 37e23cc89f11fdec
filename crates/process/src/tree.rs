//! Opens files beneath a folder whose contents somebody else may control: only regular files, and none outside of the folder.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

/// Why a file was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Refused {
    /// There is no such file.
    #[error("not there")]
    Missing,
    /// The process that the file is read for may not read it.
    #[error("the process itself may not read it")]
    NotPermitted,
    /// It is a folder, a device or a pipe.
    #[error("no regular file")]
    NotAFile,
    /// It is in a file system that generates its files when they are read: proc, sysfs, FUSE.
    #[error("not in a file system that stores files")]
    MadeUp,
    /// It is longer than any useful file.
    #[error("too large")]
    TooLarge,
    /// Reading took too long, or the byte limit is used up.
    #[error("the time or the bytes that reading may take are used up")]
    Spent,
    /// Anything else.
    #[error("it cannot be read")]
    Failed,
}

impl Refused {
    fn of(error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR) => Self::Missing,
            Some(libc::EACCES | libc::EPERM) => Self::NotPermitted,
            _ => Self::Failed,
        }
    }
}

/// A folder, and everything beneath it.
#[derive(Debug)]
pub struct Tree {
    root: OwnedFd,
    /// Whether only files that everybody may read are opened.
    public_only: bool,
}

/// `struct open_how` of linux/openat2.h.
#[repr(C)]
struct OpenHow {
    flags: u64,
    mode: u64,
    resolve: u64,
}

/// The file systems that store files, by their magic numbers for statfs(2) (linux/magic.h). All others are refused: the
/// owner of a FUSE mount can delay each answer at will.
const STORES_FILES: [u32; 19] = [
    0x0000_ef53, // ext2, ext3, ext4
    0x5846_5342, // XFS
    0x9123_683e, // Btrfs
    0xca45_1a4e, // bcachefs
    0x2fc1_2fc1, // ZFS
    0xf2f5_2010, // F2FS
    0x5265_4973, // ReiserFS
    0x3153_464a, // JFS
    0x0102_1994, // tmpfs
    0x8584_58f6, // ramfs
    0x794c_7630, // overlayfs
    0x7371_7368, // SquashFS
    0xe0f5_e1e2, // EROFS
    0x0000_9660, // ISO 9660
    0x1501_3346, // UDF
    0x0000_4d44, // FAT
    0x2011_bab0, // exFAT
    0x0000_6969, // NFS
    0x0102_1997, // 9P: what virtual machines share with their host
];

impl Tree {
    /// The files beneath the folder at `path`.
    ///
    /// # Errors
    /// If it does not exist, or is no folder.
    pub fn open(path: &Path) -> io::Result<Self> {
        let folder = File::options().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(path)?;
        Ok(Self { root: folder.into(), public_only: false })
    }

    /// From now on, only files that everybody may read are opened.
    pub(super) fn only_public(&mut self) {
        self.public_only = true;
    }

    /// Opens the file at `path`. Links lead to places beneath the folder, absolute links too, but the magic links of
    /// /proc are not followed.
    ///
    /// # Errors
    /// If it does not exist, may not be read, or is no regular file.
    pub fn file(&self, path: &Path) -> Result<File, Refused> {
        // Opening a device or a pipe may have effects, so the type of the file must be known first.
        let place = self.resolve(path).map_err(|error| Refused::of(&error))?;
        let metadata = place.metadata().map_err(|error| Refused::of(&error))?;
        if !metadata.is_file() {
            return Err(Refused::NotAFile);
        }
        if !stores_files(&place).map_err(|error| Refused::of(&error))? {
            return Err(Refused::MadeUp);
        }
        if self.public_only && metadata.mode() & 0o004 == 0 {
            return Err(Refused::NotPermitted);
        }
        // Opens the same file again, by the link to the open descriptor.
        let again = format!("/proc/self/fd/{}", place.as_raw_fd());
        let opened = File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(again);
        opened.map_err(|error| Refused::of(&error))
    }

    /// Reads the file at `path`, if it is no longer than `limit`.
    ///
    /// # Errors
    /// As [`Self::file`], and if the file is longer.
    pub fn read(&self, path: &Path, limit: u64) -> Result<Vec<u8>, Refused> {
        let file = self.file(path)?;
        let failed = |error: io::Error| Refused::of(&error);
        if file.metadata().map_err(failed)?.len() > limit {
            return Err(Refused::TooLarge);
        }
        let mut bytes = Vec::new();
        // The file may grow meanwhile.
        file.take(limit + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > limit { Err(Refused::TooLarge) } else { Ok(bytes) }
    }

    /// Finds the file, without opening it for reading.
    fn resolve(&self, path: &Path) -> io::Result<File> {
        const RESOLVE_NO_MAGICLINKS: u64 = 0x02;
        const RESOLVE_IN_ROOT: u64 = 0x10;
        /// How often to try: the kernel gives up if names change during its lookup.
        const TRIES: usize = 8;
        let path = CString::new(path.as_os_str().as_bytes())?;
        let how = OpenHow {
            flags: (libc::O_PATH | libc::O_CLOEXEC) as u64,
            mode: 0,
            resolve: RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS,
        };
        let mut error = io::Error::from_raw_os_error(libc::EAGAIN);
        for _ in 0..TRIES {
            // SAFETY: the path ends with a NUL, `how` has the size that is passed, and both outlive the call.
            let fd = unsafe {
                libc::syscall(
                    libc::SYS_openat2,
                    self.root.as_raw_fd(),
                    path.as_ptr(),
                    &raw const how,
                    size_of::<OpenHow>(),
                )
            };
            if let Some(fd) = i32::try_from(fd).ok().filter(|&fd| fd >= 0) {
                // SAFETY: the kernel has just given us this descriptor, and nobody else knows it.
                return Ok(unsafe { File::from_raw_fd(fd) });
            }
            error = io::Error::last_os_error();
            if error.raw_os_error() != Some(libc::EAGAIN) {
                break;
            }
        }
        Err(error)
    }
}

/// Whether a file is in one of the file systems that store files.
fn stores_files(file: &File) -> io::Result<bool> {
    let mut system = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the descriptor is open, and the call fills in the structure.
    if unsafe { libc::fstatfs(file.as_raw_fd(), system.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has succeeded.
    let kind = unsafe { system.assume_init() }.f_type;
    Ok(STORES_FILES.contains(&(kind as u32)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn nothing_outside_of_the_folder_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let tree = path("tree");
        std::fs::create_dir(&tree).unwrap();
        std::fs::write(path("outside"), "secret").unwrap();
        std::fs::write(tree.join("inside"), "code").unwrap();
        symlink(path("outside"), tree.join("absolute")).unwrap();
        symlink("../outside", tree.join("relative")).unwrap();
        symlink("/inside", tree.join("within")).unwrap();
        symlink("/proc/self/root/etc/passwd", tree.join("magic")).unwrap();
        let tree = Tree::open(&tree).unwrap();
        let read = |name: &str| tree.read(Path::new(name), 100);
        assert_eq!(read("inside").as_deref(), Ok(&b"code"[..]));
        assert_eq!(read("/inside").as_deref(), Ok(&b"code"[..]));
        assert_eq!(read("within").as_deref(), Ok(&b"code"[..]));
        for name in ["absolute", "relative", "magic", "../outside", "/../outside", "none"] {
            assert_eq!(read(name), Err(Refused::Missing), "{name}");
        }
        assert_eq!(tree.read(Path::new("inside"), 3), Err(Refused::TooLarge));
    }

    #[test]
    fn only_files_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = CString::new(folder.path().join("fifo").as_os_str().as_bytes()).unwrap();
        // SAFETY: the path ends with a NUL.
        assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
        let root = Tree::open(Path::new("/")).unwrap();
        let read = |path: PathBuf| root.read(&path, 1 << 20);
        assert_eq!(read(folder.path().join("fifo")), Err(Refused::NotAFile));
        assert_eq!(read("/dev/zero".into()), Err(Refused::NotAFile));
        assert_eq!(read("/".into()), Err(Refused::NotAFile));
        assert_eq!(read("/proc/version".into()), Err(Refused::MadeUp));
        assert_eq!(read("/sys/kernel/notes".into()), Err(Refused::MadeUp));
        // A link that the kernel resolves by itself.
        assert_eq!(read("/proc/self/environ".into()), Err(Refused::MadeUp));
        assert_eq!(read("/proc/self/exe".into()), Err(Refused::Failed));
    }

    #[test]
    fn what_is_not_public_can_be_left_out() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a"), "code").unwrap();
        let mut tree = Tree::open(folder.path()).unwrap();
        tree.only_public();
        let mode = |mode| std::fs::set_permissions(folder.path().join("a"), PermissionsExt::from_mode(mode)).unwrap();
        mode(0o600);
        assert_eq!(tree.read(Path::new("a"), 9), Err(Refused::NotPermitted));
        mode(0o644);
        assert!(tree.read(Path::new("a"), 9).is_ok());
    }
}
