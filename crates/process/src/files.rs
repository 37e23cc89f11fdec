//! Opens files of a process with that process's own rights: whoever controls the process chooses the names, and
//! lj-trace may show what it reads.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::tree::{Refused, Tree};
use crate::privileges;

/// The longest time to read all files of one process.
const TIME: Duration = Duration::from_secs(2);

/// The most bytes to read from all files of one process.
const BYTES: u64 = 64 << 20;

/// The user and groups that count for a process's rights in file systems.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Identity {
    user: u32,
    group: u32,
    groups: Vec<u32>,
}

/// The files beneath the root folder of a process. A thread opens them that has taken the process's identity and given
/// up every capability, so it can do no more than the process itself could.
#[derive(Clone, Debug)]
pub struct TargetFiles(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    requests: SyncSender<Request>,
    left: Mutex<Budget>,
}

/// The time and bytes that are left.
#[derive(Clone, Copy, Debug)]
struct Budget {
    time: Duration,
    bytes: u64,
}

struct Request {
    path: PathBuf,
    what: What,
}

/// A request for a file.
enum What {
    /// Open the file.
    Open(Sender<Result<File, Refused>>),
    /// Read the whole file, if it is no longer than this many bytes.
    Read(u64, Sender<Result<Vec<u8>, Refused>>),
}

impl TargetFiles {
    /// The files of the process `pid`. Call it while lj-trace has all of its privileges.
    ///
    /// # Errors
    /// If the process is gone, or may not be read.
    pub fn of(pid: u32) -> io::Result<Self> {
        let tree = Tree::open(Path::new(&format!("/proc/{pid}/root")))?;
        let identity = Identity::of(&format!("/proc/{pid}/status"))?;
        let (requests, received) = mpsc::sync_channel::<Request>(1);
        let run = move || {
            let mut tree = tree;
            if !identity.take() {
                // Everybody may read the files with public rights, so this process may read them as well.
                tree.only_public();
            }
            // If an answer came too late, nobody waits for it any more.
            for Request { path, what } in received {
                match what {
                    What::Open(answer) => drop(answer.send(tree.file(&path))),
                    What::Read(limit, answer) => drop(answer.send(tree.read(&path, limit))),
                }
            }
        };
        thread::Builder::new().name("files".to_owned()).spawn(run)?;
        Ok(Self(Arc::new(Shared { requests, left: Mutex::new(Budget { time: TIME, bytes: BYTES }) })))
    }

    /// Opens the file at `path`, as the process would find it.
    ///
    /// # Errors
    /// Why the file may not be read.
    pub fn open(&self, path: &Path) -> Result<File, Refused> {
        self.ask(path, What::Open, |_| 0)
    }

    /// Reads the file at `path`, if it is no longer than `limit`.
    ///
    /// # Errors
    /// Why the file was not read.
    pub fn read(&self, path: &Path, limit: u64) -> Result<Vec<u8>, Refused> {
        self.ask(path, |answer| What::Read(limit, answer), |bytes| bytes.len() as u64)
    }

    /// Sends the thread a request, while the budget lasts.
    fn ask<T>(
        &self,
        path: &Path,
        what: impl FnOnce(Sender<Result<T, Refused>>) -> What,
        size: impl FnOnce(&T) -> u64,
    ) -> Result<T, Refused> {
        let mut left = self.0.left.lock().unwrap_or_else(PoisonError::into_inner);
        if left.time.is_zero() || left.bytes == 0 {
            return Err(Refused::Spent);
        }
        let began = Instant::now();
        let (answer, answered) = mpsc::channel();
        let request = Request { path: path.to_owned(), what: what(answer) };
        self.0.requests.send(request).map_err(|_| Refused::Failed)?;
        let outcome = match answered.recv_timeout(left.time) {
            Ok(outcome) => outcome,
            // The thread hangs: send it no more requests.
            Err(RecvTimeoutError::Timeout) => Err(Refused::Spent),
            Err(RecvTimeoutError::Disconnected) => Err(Refused::Failed),
        };
        left.time = left.time.saturating_sub(began.elapsed());
        left.bytes = left.bytes.saturating_sub(outcome.as_ref().map_or(0, size));
        outcome
    }
}

impl Identity {
    /// Reads the identity from `/proc/PID/status`.
    fn of(status: &str) -> io::Result<Self> {
        let text = std::fs::read(status)?;
        Self::parse(&String::from_utf8_lossy(&text)).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn parse(status: &str) -> Option<Self> {
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        // The columns are the real, effective and saved id, and the id for file systems.
        let of_files = |name| field(name)?.split_whitespace().nth(3)?.parse().ok();
        let groups = field("Groups:")?.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
        Some(Self { user: of_files("Uid:")?, group: of_files("Gid:")?, groups })
    }

    /// Gives this thread the identity for good, and drops all capabilities. Returns whether the thread has the identity now.
    fn take(&self) -> bool {
        // The C library's functions would change all threads of lj-trace.
        // SAFETY: the list has as many elements as is said; the other calls take plain integers.
        unsafe {
            if libc::syscall(libc::SYS_setgroups, self.groups.len(), self.groups.as_ptr()) == 0 {
                libc::syscall(libc::SYS_setfsgid, self.group);
                libc::syscall(libc::SYS_setfsuid, self.user);
            }
        }
        let has_none = privileges::give_up_all().is_ok();
        let own = Self::of("/proc/thread-self/status");
        has_none && own.is_ok_and(|own| own == *self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "Name:\tx\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nFDSize:\t64\nGroups:\t9 10 \n";

    #[test]
    fn whose_rights_count_in_file_systems_is_known() {
        let identity = Identity::parse(STATUS).unwrap();
        assert_eq!(identity, Identity { user: 4, group: 8, groups: vec![9, 10] });
        assert!(Identity::parse("Uid:\t0\n").is_none());
    }

    #[test]
    fn the_thread_has_no_capabilities_and_the_others_keep_theirs() {
        let (before, mine) = (privileges::Capabilities::effective(), Identity::of("/proc/thread-self/status").unwrap());
        let (own, left) = thread::scope(|scope| {
            let run = || (mine.take(), privileges::Capabilities::effective());
            scope.spawn(run).join().unwrap()
        });
        assert!(own);
        assert_eq!(left, privileges::Capabilities::default());
        assert_eq!(privileges::Capabilities::effective(), before);
    }

    #[test]
    fn reads_within_a_budget() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.lua");
        std::fs::write(&path, "return 1").unwrap();
        let files = TargetFiles::of(std::process::id()).unwrap();
        assert_eq!(files.read(&path, 100).as_deref(), Ok(&b"return 1"[..]));
        assert_eq!(files.read(Path::new("/proc/self/environ"), 100), Err(Refused::MadeUp));
        assert!(files.open(&path).is_ok());
        files.0.left.lock().unwrap().bytes = 0;
        assert_eq!(files.read(&path, 100), Err(Refused::Spent));
    }
}
