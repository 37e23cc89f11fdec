//! Sockets between processes of lj-trace: they carry words, and descriptors along with them.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd as _, OwnedFd, RawFd};

/// The most descriptors in a message.
pub const DESCRIPTORS: usize = 3;

/// Two connected sockets of this kind (`SOCK_SEQPACKET`, which keeps messages apart, or `SOCK_STREAM`).
///
/// # Errors
/// If there are too many descriptors.
pub fn pair(kind: libc::c_int) -> io::Result<(OwnedFd, OwnedFd)> {
    let mut pair: [RawFd; 2] = [-1; 2];
    // SAFETY: the call writes two descriptors.
    if unsafe { libc::socketpair(libc::AF_UNIX, kind | libc::SOCK_CLOEXEC, 0, pair.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given us these descriptors, and nobody else knows them.
    Ok(pair.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }).into())
}

/// Room for the kernel's description of the descriptors in a message.
#[repr(C, align(8))]
struct Control([u8; 64]);

/// Sends words together with descriptors. It allocates nothing.
///
/// # Errors
/// The errors of sendmsg(2).
pub fn send(socket: RawFd, words: &[u64], descriptors: &[RawFd]) -> io::Result<()> {
    let mut control = Control([0; 64]);
    let mut part = libc::iovec { iov_base: words.as_ptr().cast_mut().cast(), iov_len: size_of_val(words) };
    // SAFETY: all zeros are a valid value of this plain structure.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
    if !descriptors.is_empty() {
        let length = size_of_val(descriptors) as u32;
        message.msg_control = control.0.as_mut_ptr().cast();
        // SAFETY: it only computes.
        message.msg_controllen = unsafe { libc::CMSG_SPACE(length) } as _;
        // SAFETY: the message has room for one header and all descriptors (three need 32 of its 64 bytes).
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(length) as _;
            std::ptr::copy_nonoverlapping(descriptors.as_ptr(), libc::CMSG_DATA(header).cast(), descriptors.len());
        }
    }
    // SAFETY: the message describes buffers that outlive the call.
    let sent = unsafe { libc::sendmsg(socket, &raw const message, libc::MSG_NOSIGNAL) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Receives a message into `words`. Returns the number of words, and the descriptors that came along. Zero words mean
/// that the other end was closed. It allocates nothing.
///
/// # Errors
/// The errors of recvmsg(2).
pub fn receive(socket: RawFd, words: &mut [u64]) -> io::Result<(usize, [RawFd; DESCRIPTORS])> {
    let mut control = Control([0; 64]);
    let mut part = libc::iovec { iov_base: words.as_mut_ptr().cast(), iov_len: size_of_val(words) };
    // SAFETY: all zeros are a valid value of this plain structure.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
    (message.msg_control, message.msg_controllen) = (control.0.as_mut_ptr().cast(), control.0.len() as _);
    let received = loop {
        // SAFETY: the message describes buffers that outlive the call.
        let received = unsafe { libc::recvmsg(socket, &raw mut message, libc::MSG_CMSG_CLOEXEC) };
        if received >= 0 {
            break received as usize;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    };
    let mut descriptors = [-1; DESCRIPTORS];
    // SAFETY: the kernel has written the headers, and says how long they are.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        if !header.is_null() && (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
            let length = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
            let count = (length / size_of::<RawFd>()).min(DESCRIPTORS);
            std::ptr::copy_nonoverlapping(libc::CMSG_DATA(header).cast(), descriptors.as_mut_ptr(), count);
        }
    }
    Ok((received / size_of::<u64>(), descriptors))
}
