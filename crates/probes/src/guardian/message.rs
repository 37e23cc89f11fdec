//! Messages between lj-trace and its guardian: words, with descriptors.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use lj_trace_process::privileges::Capabilities;
use lj_trace_process::sockets::{self, DESCRIPTORS, receive};

use super::Means;
use crate::uprobe_multi::UprobeKind;

/// How many probes one order may have: an allocator needs some ten.
pub const MAX_POINTS: usize = 512;

/// How many words precede the offsets and the cookies.
pub const HEADER: usize = 5;

/// The longest message, in words.
pub const MAX_WORDS: usize = HEADER + 2 * MAX_POINTS;

/// An order to insert probes.
#[derive(Clone, Copy, Debug)]
pub struct Order<'a> {
    /// The process.
    pub pid: u32,
    /// How.
    pub means: Means,
    /// The offsets in the file, with their cookies.
    pub points: &'a [(u64, u64)],
}

/// A message, as words.
pub struct Words(Vec<u64>);

/// What a received message asks for.
pub enum Received<'a> {
    /// To give up all capabilities but these.
    KeepOnly(Capabilities),
    /// To insert probes: the process, the means, the offsets, the cookies.
    Attach(u32, Means, &'a [u64], &'a [u64]),
}

const KEEP_ONLY: u64 = 1;
const ATTACH: u64 = 2;

impl Words {
    /// A message that says which capabilities to keep.
    pub fn capabilities(capabilities: Capabilities) -> Self {
        Self(vec![KEEP_ONLY, capabilities.bits()])
    }

    /// A message with an order to insert probes.
    ///
    /// # Errors
    /// There are too many probes.
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

/// Parses a message; [`None`] if it is invalid. This allocates nothing.
pub fn parse(words: &[u64]) -> Option<Received<'_>> {
    match *words {
        [KEEP_ONLY, bits] => Some(Received::KeepOnly(Capabilities::of_bits(bits))),
        [ATTACH, pid, means, detail, count, ref points @ ..] => {
            let count = usize::try_from(count).ok()?;
            let (offsets, cookies) = points.split_at_checked(count).filter(|(_, cookies)| cookies.len() == count)?;
            let means = match means {
                0 => Means::Multi(UprobeKind::of_number(detail)?),
                on_return => Means::Classic(u32::try_from(detail).ok()?, on_return == 2),
            };
            Some(Received::Attach(u32::try_from(pid).ok()?, means, offsets, cookies))
        }
        _ => None,
    }
}

/// Sends a message.
///
/// # Errors
/// What sendmsg(2) says.
pub fn send(socket: BorrowedFd<'_>, words: &Words, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut descriptors_sent = [-1; DESCRIPTORS];
    descriptors_sent.iter_mut().zip(descriptors).for_each(|(to, from)| *to = from.as_raw_fd());
    sockets::send(socket.as_raw_fd(), &words.0, &descriptors_sent[..descriptors.len()])
}

/// Receives a holder's answer: an error number, or 0 and the holder's pidfd.
///
/// # Errors
/// The holder has died instead of answering.
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
        for means in [Means::Multi(UprobeKind::Call), Means::Multi(UprobeKind::Session), Means::Classic(9, true)] {
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
