//! Decides whether a file is trusted. lj-trace itself reads only files that nobody but root, or its own user, can have written.

use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path};

/// Permission bits: write permission for others than the owner, and the sticky bit, which keeps users from replacing files
/// that are not theirs.
const WRITE_OF_OTHERS: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// Whether nobody but root and the user who runs lj-trace can have written `file`. It must be the file at `path` of
/// this system (not of the target's root, which may be a container's). The file and each folder on the way must belong
/// to nobody else, and must not be writable for others. A folder like `/tmp`, where all users may add only their own
/// files, counts as one of root's.
pub fn is_trusted(file: &File, path: &Path) -> bool {
    // SAFETY: it takes nothing and cannot fail.
    let own = unsafe { libc::geteuid() };
    let plain = path.is_absolute() && path.components().all(|part| part != Component::ParentDir);
    let is_it = || {
        let (opened, named) = (file.metadata().ok()?, path.symlink_metadata().ok()?);
        let is_same = opened.dev() == named.dev() && opened.ino() == named.ino();
        Some(is_same && opened.is_file() && is_of(&opened, own) && opened.mode() & WRITE_OF_OTHERS == 0)
    };
    let is_kept = |folder: &Path| {
        folder.symlink_metadata().is_ok_and(|found| {
            let closed = found.mode() & WRITE_OF_OTHERS == 0 || found.mode() & STICKY != 0;
            found.is_dir() && is_of(&found, own) && closed
        })
    };
    plain && is_it() == Some(true) && path.ancestors().skip(1).all(is_kept)
}

fn is_of(found: &Metadata, own: u32) -> bool {
    found.uid() == 0 || found.uid() == own
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn trusted(path: &Path) -> bool {
        is_trusted(&File::open(path).unwrap(), path)
    }

    #[test]
    fn what_others_can_write_is_distrusted() {
        assert!(trusted(Path::new("/etc/passwd")));
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("inner");
        let path = inner.join("file");
        fs::create_dir(&inner).unwrap();
        fs::write(&path, "").unwrap();
        assert!(trusted(&path), "a file of our own in our own folder in /tmp");
        for (changed, mode, back) in [(&path, 0o664, 0o644), (&path, 0o646, 0o644), (&inner, 0o775, 0o755)] {
            fs::set_permissions(changed, Permissions::from_mode(mode)).unwrap();
            assert!(!trusted(&path), "{mode:o}");
            fs::set_permissions(changed, Permissions::from_mode(back)).unwrap();
            assert!(trusted(&path));
        }
        let (other, link) = (folder.path().join("other"), folder.path().join("link"));
        fs::write(&other, "").unwrap();
        symlink(&path, &link).unwrap();
        assert!(!is_trusted(&File::open(&path).unwrap(), &other), "another file has the name");
        assert!(!trusted(&link), "a link, which may lead elsewhere later");
        assert!(!is_trusted(&File::open(&path).unwrap(), Path::new("gone")));
        // SAFETY: it takes nothing and cannot fail.
        if unsafe { libc::geteuid() } == 0 {
            for changed in [&path, &inner] {
                std::os::unix::fs::chown(changed, Some(65534), None).unwrap();
                assert!(!trusted(&path), "{} is somebody else's", changed.display());
                std::os::unix::fs::chown(changed, Some(0), None).unwrap();
            }
        }
    }
}
