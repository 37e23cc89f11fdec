//! The numbers of the kernel's tracepoints, by which a perf event is opened on one. Only tracefs has them.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd as _, OwnedFd};

use super::perf_event::owned;

/// Where systems mount it.
const PLACES: [&CStr; 2] = [c"/sys/kernel/tracing", c"/sys/kernel/debug/tracing"];

/// An open tracefs.
pub(super) struct Tracefs(OwnedFd);

impl Tracefs {
    /// Opens tracefs. If the system has not mounted it, lj-trace mounts it for itself: nobody else sees that, and it is
    /// gone when this is dropped.
    ///
    /// # Errors
    /// It is not mounted, and lj-trace may not do so (that takes `CAP_SYS_ADMIN`).
    pub fn open() -> io::Result<Self> {
        for place in PLACES {
            if let Ok(folder) = open_at(libc::AT_FDCWD, place, libc::O_DIRECTORY) {
                let tracefs = Self(folder);
                // Where nothing is mounted, there is an empty folder.
                if open_at(tracefs.0.as_raw_fd(), c"events/syscalls", libc::O_DIRECTORY).is_ok() {
                    return Ok(tracefs);
                }
            }
        }
        mount().map(Self)
    }

    /// The number of a tracepoint of system calls.
    ///
    /// # Errors
    /// There is none of this name, or it may not be read.
    pub fn number(&self, name: &str) -> io::Result<u64> {
        let path = std::ffi::CString::new(format!("events/syscalls/{name}/id"))?;
        let mut text = String::new();
        File::from(open_at(self.0.as_raw_fd(), &path, 0)?).read_to_string(&mut text)?;
        text.trim().parse().map_err(io::Error::other)
    }
}

fn open_at(folder: libc::c_int, path: &CStr, flags: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: the path is a C string.
    let fd = unsafe { libc::openat(folder, path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC | flags) };
    owned(fd.into())
}

/// Mounts tracefs at no path (since Linux 5.2).
fn mount() -> io::Result<OwnedFd> {
    /// linux/mount.h.
    const FSOPEN_CLOEXEC: libc::c_long = 1;
    const FSCONFIG_CMD_CREATE: libc::c_long = 6;
    const FSMOUNT_CLOEXEC: libc::c_long = 1;
    const READ_ONLY: libc::c_long = 1;
    // SAFETY: the name is a C string.
    let context = owned(unsafe { libc::syscall(libc::SYS_fsopen, c"tracefs".as_ptr(), FSOPEN_CLOEXEC) })?;
    let (fd, null) = (libc::c_long::from(context.as_raw_fd()), 0_usize);
    // SAFETY: the command takes neither a key nor a value, and the descriptor is open.
    if unsafe { libc::syscall(libc::SYS_fsconfig, fd, FSCONFIG_CMD_CREATE, null, null, 0_usize) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the arguments are plain integers, and the descriptor is open.
    owned(unsafe { libc::syscall(libc::SYS_fsmount, fd, FSMOUNT_CLOEXEC, READ_ONLY) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tracepoints_have_numbers() {
        let tracefs = Tracefs::open().unwrap();
        let [enter, exit] = ["sys_enter_poll", "sys_exit_poll"].map(|name| tracefs.number(name).unwrap());
        assert!(enter > 0 && enter != exit);
        assert_eq!(tracefs.number("sys_enter_nothing").unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
