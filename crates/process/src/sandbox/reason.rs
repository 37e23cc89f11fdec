//! Why a file was not read: its reader has ended, and the recording continues without it.

use std::collections::BTreeMap;
use std::fmt;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::sync::{Mutex, PoisonError};

/// A file's identity: its device and its inode number.
pub type FileId = (u64, u64);

/// Why a reader ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EndReason {
    /// It wanted more memory than the limit allows.
    Memory,
    /// It took longer than the limit allows.
    Time,
    /// It made a system call that reading does not need.
    SystemCall,
    /// It was killed: by somebody, or by the kernel because the machine had no memory left.
    Killed,
    /// It crashed with this signal.
    Crashed(i32),
    /// It hit a bug in lj-trace.
    Panicked,
    /// Its answer made no sense.
    Nonsense,
    /// It could not be started.
    NotStarted,
    /// It could not give up its privileges.
    NotConfined,
    /// Readers that ended before have used up the time for all of them.
    Spent,
}

/// Exit code of a reader that cannot give up its privileges.
pub const NOT_CONFINED: u8 = 71;

impl EndReason {
    /// The reason, from the exit status of the reader.
    pub fn of(status: ExitStatus) -> Self {
        match (status.signal(), status.code()) {
            // Only the program's allocator aborts.
            (Some(libc::SIGABRT), _) => Self::Memory,
            (Some(libc::SIGXCPU), _) => Self::Time,
            (Some(libc::SIGSYS), _) => Self::SystemCall,
            (Some(libc::SIGKILL | libc::SIGTERM | libc::SIGINT | libc::SIGHUP | libc::SIGQUIT), _) => Self::Killed,
            (Some(signal), _) => Self::Crashed(signal),
            (None, Some(101)) => Self::Panicked,
            (None, Some(code)) if code == i32::from(NOT_CONFINED) => Self::NotConfined,
            (None, _) => Self::Nonsense,
        }
    }
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("its reader was ended (memory limit)"),
            Self::Time => f.write_str("its reader was ended (time limit)"),
            Self::SystemCall => f.write_str("its reader was ended (forbidden system call)"),
            Self::Killed => f.write_str("its reader was killed"),
            Self::Crashed(signal) => write!(f, "its reader crashed (signal {signal})"),
            Self::Panicked => f.write_str("its reader met a bug of lj-trace: please report it with that file"),
            Self::Nonsense => f.write_str("its reader answered nonsense"),
            Self::NotStarted => f.write_str(
                "no reader could be started: the limit of processes (`ulimit -u`, `TasksMax`) may be too low",
            ),
            Self::NotConfined => {
                f.write_str("its reader could not be confined: this kernel or its container refuses seccomp filters")
            }
            Self::Spent => f.write_str("readers of other files were ended, and have used up the time for all"),
        }
    }
}

/// A file that was not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unread {
    /// Its path, as the target sees it.
    pub path: String,
    /// Why it was not read.
    pub reason: EndReason,
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the symbols and unwind tables of {} could not be read: {}", self.path, self.reason)
    }
}

/// The most files that are remembered: a target can have any number of them.
const MOST_UNREAD: usize = 1024;

static UNREAD: Mutex<BTreeMap<FileId, Unread>> = Mutex::new(BTreeMap::new());

/// The files that were not read, or not in full.
pub fn unread() -> Vec<Unread> {
    UNREAD.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
}

/// Whether a reader of this file has ended before.
pub(super) fn is_unread(file: FileId) -> bool {
    UNREAD.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&file)
}

/// Notes that a file is not to be read any more. The first reason stays.
pub(super) fn note(file: FileId, path: &str, reason: EndReason) {
    let mut unread = UNREAD.lock().unwrap_or_else(PoisonError::into_inner);
    if unread.len() >= MOST_UNREAD && !unread.contains_key(&file) {
        // A reader of this one may end again, and is noted again then.
        unread.pop_first();
    }
    unread.entry(file).or_insert_with(|| Unread { path: path.to_owned(), reason });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_have_names() {
        let by_signal = |signal| EndReason::of(ExitStatus::from_raw(signal));
        assert_eq!(by_signal(libc::SIGABRT), EndReason::Memory);
        assert_eq!(by_signal(libc::SIGSYS), EndReason::SystemCall);
        assert_eq!(by_signal(libc::SIGKILL), EndReason::Killed);
        assert_eq!(by_signal(libc::SIGSEGV), EndReason::Crashed(libc::SIGSEGV));
        assert_eq!(EndReason::of(ExitStatus::from_raw(101 << 8)), EndReason::Panicked);
        assert_eq!(EndReason::of(ExitStatus::from_raw(71 << 8)), EndReason::NotConfined);
    }
}
