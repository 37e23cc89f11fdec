//! CPUs that are switched on, as the kernel reports it to whoever listens (`kobject_uevent` in Linux's `drivers/base/core.c`). A CPU
//! that was off for a moment is on again when somebody looks, but has lost its events.

use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

/// The kernel's reports since the last look.
pub(super) struct CpuSwitches {
    socket: Option<OwnedFd>,
}

/// The CPUs that were switched on.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SwitchedOn {
    /// These.
    These(Vec<u32>),
    /// Reports were lost: it may have been any.
    Any,
}

impl CpuSwitches {
    /// Listens from now on. Where the kernel does not allow that, nothing is reported.
    pub fn listen() -> Self {
        Self { socket: open().ok() }
    }

    /// What was reported since the last call.
    pub fn switched_on(&self) -> SwitchedOn {
        let mut cpus = Vec::new();
        let Some(socket) = &self.socket else { return SwitchedOn::These(cpus) };
        let mut report = [0_u8; 4096];
        loop {
            // SAFETY: the kernel writes no more than the array has.
            let size = unsafe { libc::recv(socket.as_raw_fd(), report.as_mut_ptr().cast(), report.len(), 0) };
            match usize::try_from(size) {
                Ok(size) => cpus.extend(report.get(..size).and_then(cpu_of)),
                Err(_) => match io::Error::last_os_error().raw_os_error() {
                    Some(libc::EINTR) => {}
                    Some(libc::ENOBUFS) => return SwitchedOn::Any,
                    _ => return SwitchedOn::These(cpus),
                },
            }
        }
    }
}

/// A socket that gets the kernel's reports on devices.
fn open() -> io::Result<OwnedFd> {
    /// The group of the kernel's own reports, not of those that udev sends on.
    const KERNEL: u32 = 1;
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: plain integers.
    let socket = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_KOBJECT_UEVENT) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made it, and it is nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // SAFETY: an address of zeros is valid: the kernel chooses the port.
    let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    address.nl_family = libc::sa_family_t::try_from(libc::AF_NETLINK).map_err(io::Error::other)?;
    address.nl_groups = KERNEL;
    let size = libc::socklen_t::try_from(size_of_val(&address)).map_err(io::Error::other)?;
    // SAFETY: the address is as long as is said.
    if unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(socket)
}

/// The CPU that a report says was switched on: `online@/devices/system/cpu/cpu1`, up to a zero.
fn cpu_of(report: &[u8]) -> Option<u32> {
    let first = report.split(|byte| *byte == 0).next()?;
    std::str::from_utf8(first).ok()?.strip_prefix("online@/devices/system/cpu/cpu")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_name_the_cpu() {
        assert_eq!(cpu_of(b"online@/devices/system/cpu/cpu17\0ACTION=online\0"), Some(17));
        assert_eq!(cpu_of(b"offline@/devices/system/cpu/cpu17\0ACTION=offline\0"), None);
        assert_eq!(cpu_of(b"online@/devices/system/memory/memory3\0"), None);
        assert_eq!(cpu_of(b""), None);
    }

    #[test]
    fn nothing_is_switched_on_meanwhile() {
        let switches = CpuSwitches::listen();
        assert!(switches.socket.is_some());
        assert_eq!(switches.switched_on(), SwitchedOn::These(Vec::new()));
    }
}
