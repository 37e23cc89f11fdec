//! The reader's loop: it answers questions about the files that arrive over its socket, until the socket is closed.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsRawFd as _, FromRawFd as _, RawFd};
use std::process::ExitCode;
use std::sync::atomic::Ordering;

use super::reason::NOT_CONFINED;
use super::{IS_READER, bounded, confine, own_socket};
use crate::sockets;

/// A question to a reader.
#[derive(Debug)]
pub struct Asked {
    /// A [`Question`](super::Question) as a number.
    pub question: u64,
    /// The file's number: a file that is opened again gets another number.
    pub number: u64,
    /// The address in question, for questions about an address.
    pub address: u64,
    /// The file.
    pub first: File,
    /// Another file that belongs to it.
    pub second: Option<File>,
}

/// Serves as a reader. Call it before the process has threads. `answer` appends its result in the form of
/// [`Wire`](super::wire::Wire). Returns when the socket on standard input is closed; [`None`] if there is no socket,
/// because lj-trace has not started this process.
pub fn serve(mut answer: impl FnMut(Asked, &mut Vec<u8>)) -> Option<ExitCode> {
    let socket = own_socket()?;
    // The panic message would go nowhere; the exit code shows that there was a panic.
    std::panic::set_hook(Box::new(|_| {}));
    IS_READER.store(true, Ordering::Relaxed);
    if confine::confine().is_err() {
        return Some(NOT_CONFINED.into());
    }
    let mut words = [0; 3];
    let mut out = File::from(socket);
    while let Ok((3, descriptors)) = sockets::receive(out.as_raw_fd(), &mut words) {
        // SAFETY: the kernel has just given us these descriptors, and nobody else knows them.
        let open = |fd: RawFd| (fd >= 0).then(|| unsafe { File::from_raw_fd(fd) });
        let [first, second, _third] = descriptors.map(open);
        let Some(first) = first else { break };
        let [question, number, address] = words;
        let before = bounded::refusals();
        let mut said = vec![0; HEAD];
        answer(Asked { question, number, address, first, second }, &mut said);
        let length = (said.len() - HEAD) as u64;
        said[..HEAD - 1].copy_from_slice(&length.to_le_bytes());
        said[HEAD - 1] = u8::from(bounded::refusals() != before);
        if out.write_all(&said).is_err() {
            break;
        }
    }
    Some(ExitCode::SUCCESS)
}

/// Size of the head of an answer in bytes: the answer's length, and whether the file is too large.
const HEAD: usize = 9;
