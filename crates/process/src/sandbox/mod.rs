//! Reads files that other users may have written: a separate process, the reader, parses ELF and DWARF and can do nothing else.
//!
//! If only root or the user of lj-trace can have written a file (`trust.rs`), lj-trace reads it itself, at no extra
//! cost. Any other file goes to the reader, as an open descriptor. The reader is lj-trace's own program, started for
//! the first such file. It has little memory and time, runs as nobody, without capabilities, and a filter ends it at
//! any system call that reading does not need (`confine.rs`). It answers with plain tables ([`wire`]); lj-trace checks
//! their lengths and order. If the reader ends, because of a limit or otherwise, lj-trace notes the file with the
//! [`reason`](reason::EndReason), another reader serves the other files, and the recording goes on. Unwind tables stay
//! with the reader: lj-trace asks it for a row when it needs one, which takes some 20 µs, once for each address.

pub mod bounded;
mod confine;
pub mod reason;
mod serve;
mod trust;
pub mod wire;

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use reason::{EndReason, FileId};
pub use reason::{Unread, unread};
pub use serve::{Asked, serve};
use wire::Wire;

use crate::sockets;

/// First argument of the program when it is started as a reader.
pub const ARGUMENT: &str = "read-distrusted";

/// The longest time that one answer may take.
const LONGEST: Duration = Duration::from_secs(2);

/// The total time that may be lost to readers that ended without an answer. After that, no reader is started.
const LOST: Duration = Duration::from_secs(4);

/// After so much work a reader is replaced by another one, whose limit of CPU time (`confine::CPU`) begins anew.
const SHIFT: Duration = Duration::from_secs(5);

/// The longest answer in bytes: the symbols of the largest programs take less.
const MAX_ANSWER: u64 = 48 << 20;

/// What lj-trace asks about a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Question {
    /// Its segments and its entry point.
    Shape = 1,
    /// The links to its debug symbols.
    Links = 2,
    /// Its symbols, and those of a debug file if that is sent along.
    Symbols = 3,
    /// Whether it has an unwind table.
    HasTable = 4,
    /// The function around an address, and how to unwind from there.
    Row = 5,
    /// The VM layouts in its debug information.
    Layouts = 6,
    /// The function around an address, and the addresses that its code refers to.
    Code = 7,
}

/// A file that other users may have written.
#[derive(Debug)]
pub struct Distrusted {
    file: File,
    /// Its number in questions to the reader. A file that is opened again gets another number.
    number: u64,
    id: FileId,
    path: String,
}

/// Whether this program can start itself as a reader.
static ENABLED: AtomicBool = AtomicBool::new(false);

static NUMBERS: AtomicU64 = AtomicU64::new(1);

static READER: Mutex<ReaderState> = Mutex::new(ReaderState { reader: None, lost: Duration::ZERO });

struct ReaderState {
    reader: Option<Reader>,
    /// Total time spent waiting for readers that ended without an answer.
    lost: Duration,
}

struct Reader {
    process: Child,
    socket: UnixStream,
    /// How long this reader has worked.
    worked: Duration,
}

/// Whether this process is a reader.
static IS_READER: AtomicBool = AtomicBool::new(false);

/// Whether this process is a reader: a reader can open no files, and look nothing up.
pub fn is_reader() -> bool {
    IS_READER.load(Ordering::Relaxed)
}

/// Declares that this program becomes a reader when it is started with [`ARGUMENT`]. Without this call, the process
/// itself reads all files: programs that use this library, such as its tests, have no reader.
pub fn enable() {
    ENABLED.store(true, Ordering::Relaxed);
}

impl Distrusted {
    /// A file at `path`, as the target sees it, if other users may have written it.
    ///
    /// # Errors
    /// The file itself, if this process may read it.
    pub fn new(file: File, path: &Path) -> Result<Self, File> {
        if trust::is_trusted(&file, path) { Err(file) } else { Self::always(file, path) }
    }

    /// A file that is never trusted, whoever has written it: it was fetched from elsewhere.
    ///
    /// # Errors
    /// The file, if this program has no reader.
    pub fn always(file: File, path: &Path) -> Result<Self, File> {
        if !ENABLED.load(Ordering::Relaxed) {
            return Err(file);
        }
        let id = file.metadata().map_or((0, 0), |found| (found.dev(), found.ino()));
        let path = lj_trace_text::untrusted::bytes(path.as_os_str().as_encoded_bytes());
        Ok(Self { file, number: NUMBERS.fetch_add(1, Ordering::Relaxed), id, path })
    }

    /// The file; its contents are not checked.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Asks the reader a question about this file. [`None`] if the reader cannot answer, which is noted ([`unread`]).
    pub fn ask<T: Wire>(&self, question: Question, address: u64) -> Option<T> {
        self.ask_of(&self.file, None, question, address)
    }

    /// Asks a question about this file together with another one, in their order. A failure of the reader is noted for
    /// this file.
    pub fn ask_of<T: Wire>(&self, first: &File, second: Option<&File>, question: Question, address: u64) -> Option<T> {
        if reason::is_unread(self.id) {
            return None;
        }
        let mut state = READER.lock().unwrap_or_else(PoisonError::into_inner);
        let words = [question as u64, self.number, address];
        let answer = state.answer(words, first, second).and_then(|(bytes, too_large)| {
            if too_large {
                bounded::refuse(&self.path);
            }
            wire::parse(&bytes).ok_or_else(|| {
                state.reader = None;
                EndReason::Nonsense
            })
        });
        answer.map_err(|reason| reason::note(self.id, &self.path, reason)).ok()
    }
}

impl ReaderState {
    /// The answer, and whether the answer would have needed more of the file than may be read.
    fn answer(&mut self, words: [u64; 3], file: &File, second: Option<&File>) -> Result<(Vec<u8>, bool), EndReason> {
        if self.lost >= LOST {
            return Err(EndReason::Spent);
        }
        // It is not this file's fault if the reader was killed while it was idle, or has worked for too long.
        let is_usable = |reader: &mut Reader| reader.worked < SHIFT && matches!(reader.process.try_wait(), Ok(None));
        if !self.reader.as_mut().is_some_and(is_usable) {
            self.reader = Some(Reader::start().map_err(|_| EndReason::NotStarted)?);
        }
        let Some(reader) = &mut self.reader else { return Err(EndReason::NotStarted) };
        let began = Instant::now();
        let answer = reader.exchange(words, file, second, began + LONGEST);
        reader.worked += began.elapsed();
        answer.map_err(|error| {
            let reason = self.reader.take().map_or(EndReason::NotStarted, |reader| reader.end(&error));
            self.lost += began.elapsed();
            reason
        })
    }
}

impl Reader {
    fn start() -> io::Result<Self> {
        let (own, others) = sockets::pair(libc::SOCK_STREAM)?;
        let process = Command::new("/proc/self/exe")
            .arg0("lj-trace-reader")
            .arg(ARGUMENT)
            .env_clear()
            // A Ctrl-C in the terminal is meant for lj-trace, which ends the reader when it no longer needs it.
            .process_group(0)
            .stdin(Stdio::from(others))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self { process, socket: UnixStream::from(own), worked: Duration::ZERO })
    }

    /// Sends a question and waits for the answer.
    fn exchange(
        &mut self,
        words: [u64; 3],
        file: &File,
        second: Option<&File>,
        deadline: Instant,
    ) -> io::Result<(Vec<u8>, bool)> {
        let files = [file.as_raw_fd(), second.map_or(-1, File::as_raw_fd)];
        sockets::send(self.socket.as_raw_fd(), &words, &files[..1 + usize::from(second.is_some())])?;
        // The length of the answer, and whether the file is too large.
        let mut head = [0; 9];
        self.read(&mut head, deadline)?;
        let length = head.first_chunk().map_or(0, |length| u64::from_le_bytes(*length));
        if length > MAX_ANSWER {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut bytes = Vec::new();
        // Memory is allocated as the bytes arrive, not by the announced length.
        while (bytes.len() as u64) < length {
            let filled = bytes.len();
            let part = (length - filled as u64).min(1 << 20) as usize;
            bytes.resize(filled + part, 0);
            self.read(&mut bytes[filled..], deadline)?;
        }
        Ok((bytes, head[8] != 0))
    }

    fn read(&mut self, mut into: &mut [u8], deadline: Instant) -> io::Result<()> {
        while !into.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.socket.set_read_timeout(Some(left))?;
            match self.socket.read(into) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(length) => into = &mut into[length..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(io::ErrorKind::TimedOut.into()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Finds out why there was no answer. It ends the reader if that has not ended by itself.
    fn end(mut self, error: &io::Error) -> EndReason {
        /// A process that has closed its socket is about to end.
        const GRACE: Duration = Duration::from_millis(200);
        match error.kind() {
            io::ErrorKind::TimedOut => return EndReason::Time,
            io::ErrorKind::InvalidData => return EndReason::Nonsense,
            _ => {}
        }
        let began = Instant::now();
        while began.elapsed() < GRACE {
            match self.process.try_wait() {
                Ok(Some(status)) => return EndReason::of(status),
                Ok(None) => std::thread::sleep(Duration::from_millis(1)),
                Err(_) => break,
            }
        }
        EndReason::Nonsense
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        /// A killed process ends at once, unless the kernel is reading for it from a disk that does not answer.
        const PATIENCE: Duration = Duration::from_millis(200);
        let _ = self.process.kill();
        let began = Instant::now();
        while matches!(self.process.try_wait(), Ok(None)) && began.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// The descriptor of the socket that a reader is started with, if this process has one.
fn own_socket() -> Option<OwnedFd> {
    use std::os::fd::FromRawFd as _;
    let mut kind: libc::c_int = 0;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: it writes the number that the pointer is to.
    let result =
        unsafe { libc::getsockopt(0, libc::SOL_SOCKET, libc::SO_TYPE, (&raw mut kind).cast(), &raw mut length) };
    // SAFETY: it is open, as was just seen, and nothing else of this process uses it.
    (result == 0 && kind == libc::SOCK_STREAM).then(|| unsafe { OwnedFd::from_raw_fd(0) })
}
