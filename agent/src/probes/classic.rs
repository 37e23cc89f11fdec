//! Uprobes as perf events, one for each instruction: what kernels without `uprobe_multi` links have.

use std::ffi::CString;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::perf_event::{Attr, link, open};
use super::uprobe_multi::Kind;

/// Attaches a program to an instruction of a file, given by its offset there, in the process `pid`. Closing what is
/// returned detaches it.
///
/// # Errors
/// Whatever `perf_event_open(2)` and bpf(2) give: `EACCES` without `CAP_SYS_ADMIN`.
pub fn attach(
    program: BorrowedFd<'_>,
    path: &Path,
    (offset, cookie): (u64, u64),
    pid: u32,
    kind: Kind,
) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // The link holds the event.
    let event = open(&Attr::probe(perf_type()?, &path, offset, kind == Kind::Return), pid as libc::pid_t)?;
    link(program, &event, cookie)
}

/// The number of this kind of perf events.
fn perf_type() -> io::Result<u32> {
    const PATH: &str = "/sys/bus/event_source/devices/uprobe/type";
    let invalid = || io::Error::new(io::ErrorKind::InvalidData, format!("{PATH} holds no number"));
    std::fs::read_to_string(PATH)?.trim().parse().map_err(|_| invalid())
}
