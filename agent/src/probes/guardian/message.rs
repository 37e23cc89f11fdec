//! What lj-trace and its guardian tell each other: words, and descriptors with them.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};

use super::Means;
use crate::privileges::Capabilities;
use crate::probes::uprobe_multi::Kind;

/// Probes that one order may be for: an allocator has some ten.
pub const MAX_POINTS: usize = 512;

/// Before the offsets and the cookies.
pub const HEADER: usize = 5;

/// The longest message.
pub const MAX_WORDS: usize = HEADER + 2 * MAX_POINTS;

/// Descriptors that come with an order: the program, the socket for the reply, and the file.
pub const DESCRIPTORS: usize = 3;

/// To put probes in.
#[derive(Clone, Copy, Debug)]
pub struct Order<'a> {
    /// The process.
    pub pid: u32,
    /// How.
    pub means: Means,
    /// Offsets in the file, and cookies.
    pub points: &'a [(u64, u64)],
}

/// A message.
pub struct Words(Vec<u64>);

/// What a message that was received asks for.
pub enum Received<'a> {
    /// To give up all capabilities but these.
    KeepOnly(Capabilities),
    /// To put probes in: the process, how, offsets, cookies.
    Attach(u32, Means, &'a [u64], &'a [u64]),
}

const KEEP_ONLY: u64 = 1;
const ATTACH: u64 = 2;

impl Words {
    /// Which capabilities to keep.
    pub fn capabilities(capabilities: Capabilities) -> Self {
        Self(vec![KEEP_ONLY, capabilities.bits()])
    }

    /// What probes to put in.
    ///
    /// # Errors
    /// They are too many.
    pub fn attach(order: &Order<'_>) -> io::Result<Self> {
        if order.points.len() > MAX_POINTS {
            return Err(io::Error::from_raw_os_error(libc::E2BIG));
        }
        let (means, detail) = match order.means {
            Means::Multi(kind) => (0, kind.number()),
            Means::Classic(kind, on_return) => (1 + u64::from(on_return), kind.into()),
        };
        let mut words = vec![ATTACH, order.pid.into(), means, detail, order.points.len() as u64];
        words.extend(order.points.iter().map(|(offset, _)| offset));
        words.extend(order.points.iter().map(|(_, cookie)| cookie));
        Ok(Self(words))
    }
}

/// Takes a message apart; [`None`] if it is none. It allocates nothing.
pub fn parse(words: &[u64]) -> Option<Received<'_>> {
    match *words {
        [KEEP_ONLY, bits] => Some(Received::KeepOnly(Capabilities::of_bits(bits))),
        [ATTACH, pid, means, detail, count, ref points @ ..] => {
            let count = usize::try_from(count).ok()?;
            let (offsets, cookies) = points.split_at_checked(count).filter(|(_, cookies)| cookies.len() == count)?;
            let means = match means {
                0 => Means::Multi(Kind::of_number(detail)?),
                on_return => Means::Classic(u32::try_from(detail).ok()?, on_return == 2),
            };
            Some(Received::Attach(u32::try_from(pid).ok()?, means, offsets, cookies))
        }
        _ => None,
    }
}

/// Room for what the kernel says of the descriptors that come with a message.
#[repr(C, align(8))]
struct Control([u8; 64]);

/// Sends a message.
///
/// # Errors
/// What sendmsg(2) says.
pub fn send(socket: BorrowedFd<'_>, words: &Words, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut descriptors_sent = [-1; DESCRIPTORS];
    descriptors_sent.iter_mut().zip(descriptors).for_each(|(to, from)| *to = from.as_raw_fd());
    send_raw(socket.as_raw_fd(), &words.0, &descriptors_sent[..descriptors.len()])
}

/// The same, without allocating anything.
pub fn send_raw(socket: RawFd, words: &[u64], descriptors: &[RawFd]) -> io::Result<()> {
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

/// Receives a message into `words`; how many there are, and the descriptors that came along. None is the end. It
/// allocates nothing.
///
/// # Errors
/// What recvmsg(2) says.
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

/// What a holder answers: an error number, or 0 and its process.
///
/// # Errors
/// It has died instead.
pub fn receive_reply(socket: BorrowedFd<'_>) -> io::Result<(i32, Option<OwnedFd>)> {
    let mut words = [0];
    let (count, [process, ..]) = receive(socket.as_raw_fd(), &mut words)?;
    // SAFETY: the kernel has just given us this descriptor, and nobody else knows it.
    let process = (process >= 0).then(|| unsafe { OwnedFd::from_raw_fd(process) });
    let error = i32::try_from(words[0]).ok().filter(|_| count == 1);
    Ok((error.unwrap_or(0), process.filter(|_| count == 1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_arrive_as_they_were_given() {
        for means in [Means::Multi(Kind::Call), Means::Multi(Kind::Session), Means::Classic(9, true)] {
            let words = Words::attach(&Order { pid: 7, means, points: &[(1, 2), (3, 4)] }).unwrap();
            let Some(Received::Attach(pid, found, offsets, cookies)) = parse(&words.0) else { panic!("no order") };
            assert_eq!((pid, found, offsets, cookies), (7, means, &[1, 3][..], &[2, 4][..]));
        }
        let many = vec![(0, 0); MAX_POINTS + 1];
        assert!(Words::attach(&Order { pid: 7, means: Means::Classic(1, false), points: &many }).is_err());
    }

    #[test]
    fn what_is_no_order_is_none() {
        for words in [&[][..], &[9], &[ATTACH, 1, 0, 48, 2, 1, 2, 3], &[ATTACH, 1, 0, 99, 0], &[KEEP_ONLY]] {
            assert!(parse(words).is_none(), "{words:?}");
        }
    }
}
