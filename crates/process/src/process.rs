//! The target process: whether it exists and may be inspected, its threads, its files.

use std::fs::File;
use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use lj_trace_text::untrusted;

use super::files::TargetFiles;
use super::freezer;
use super::kept_maps::KeptMaps;
use super::maps::{Mapping, Maps};
use super::memory::ProcessMemory;
use super::namespace;
use super::page_map::page_size;
use super::proc_file;
use crate::privileges::{Operation, Refusal};

/// Why a target cannot be profiled. Each message names the cause and the fix.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// There is no such process, or it has exited.
    #[error("no process {0}: it does not exist or has exited (`lj-trace list` shows the processes with LuaJIT){hint}", hint = namespace::hint(*.0))]
    NoSuchProcess(u32),
    /// Process ids in `/proc` are not the ones that system calls take.
    #[error(
        "/proc shows the processes of another PID namespace than the one that lj-trace runs in, so it cannot tell \
         which process {0} is: mount its own (`unshare --mount-proc`, or `mount -t proc proc /proc`), or run it in the \
         host's (`docker run --pid=host`, `hostPID: true`)"
    )]
    OtherProc(u32),
    /// The kernel refuses to show the process.
    #[error("not permitted to look at process {pid} ({path}): {why}")]
    NotPermitted {
        /// Process id.
        pid: u32,
        /// The file that could not be opened.
        path: String,
        /// What is missing, and how to get it.
        why: String,
    },
    /// A kernel thread: it has no user memory at all.
    #[error("process {0} is a kernel thread, which runs no user code: `lj-trace list` shows the processes with LuaJIT")]
    KernelThread(u32),
    /// The process has exited, but its parent has not waited for it yet.
    #[error(
        "process {0} is a zombie: it has exited, and its parent has not waited for it yet; `lj-trace list` shows the processes with LuaJIT"
    )]
    Zombie(u32),
    /// Any other failure to read the process.
    #[error("cannot read {path}: {source}")]
    Io {
        /// The file that could not be read.
        path: String,
        /// Why it failed.
        source: io::Error,
    },
}

impl TargetError {
    /// Turns an error from a file under `/proc/PID` into a [`TargetError`].
    pub fn from_io(pid: u32, path: impl Into<String>, error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::ENOENT | libc::ESRCH) => Self::NoSuchProcess(pid),
            Some(libc::EACCES | libc::EPERM) => {
                Self::NotPermitted { pid, path: path.into(), why: Refusal::now().explain(Operation::ReadProcess) }
            }
            _ => Self::Io { path: path.into(), source: error },
        }
    }
}

/// A process to be profiled.
#[derive(Clone, Debug)]
pub struct Process {
    pid: u32,
    start_time: u64,
    stack_start: u64,
    /// `/proc/PID/maps` of the program that the process runs now. The kernel binds an open file to that program's
    /// memory (`proc_maps_open` in Linux's `fs/proc/task_mmu.c`), and it reads as empty once that memory is gone.
    program: Arc<File>,
    files: Arc<OnceLock<Option<TargetFiles>>>,
    maps: Arc<KeptMaps>,
}

/// How to learn that a process exits.
#[derive(Debug)]
pub enum Exit {
    /// The descriptor becomes readable when the process exits.
    Event(OwnedFd),
    /// It has exited already.
    Gone,
    /// The kernel has no such descriptor, or refuses it: poll [`Process::is_alive`] instead.
    Untold,
}

/// What keeps a live process from running.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Halt {
    /// A signal has stopped it, until it gets `SIGCONT`.
    Signal,
    /// The process that traces it, a debugger, has stopped it.
    Tracer(u32),
    /// It is in a frozen cgroup, until this text is written to this file.
    Freezer(PathBuf, &'static str),
}

impl Process {
    /// Opens process `pid` and makes sure that its memory may be read.
    ///
    /// # Errors
    /// Any [`TargetError`]: no such process, a kernel thread, a zombie, not permitted.
    pub fn open(pid: u32) -> Result<Self, TargetError> {
        if !namespace::is_of_proc() {
            return Err(TargetError::OtherProc(pid));
        }
        let stat = Stat::read(pid)?;
        const PF_KTHREAD: u64 = 0x0020_0000;
        if stat.flags & PF_KTHREAD != 0 {
            return Err(TargetError::KernelThread(pid));
        }
        if stat.state == 'Z' || stat.state == 'X' {
            return Err(TargetError::Zombie(pid));
        }
        let path = format!("/proc/{pid}/maps");
        let program = File::open(&path).map_err(|error| TargetError::from_io(pid, path, error))?;
        let program = Arc::new(program);
        let process = Self {
            pid,
            start_time: stat.start_time,
            stack_start: stat.stack_start,
            program,
            files: Arc::default(),
            maps: Arc::default(),
        };
        // Readable maps do not yet mean readable memory (CAP_PERFMON is enough for the maps alone), so try one byte.
        let first = process.first_file()?;
        let probe = first.iter().find(|mapping| is_readable_file(mapping));
        if let Some(mapping) = probe
            && process.memory().read_some(mapping.start, &mut [0]).is_err()
        {
            let error = io::Error::last_os_error();
            return Err(TargetError::from_io(pid, "its memory", error));
        }
        Ok(process)
    }

    /// The process id, in the pid namespace of lj-trace.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The address at which the main thread's stack began when the program was started; 0 if hidden.
    pub fn stack_start(&self) -> u64 {
        self.stack_start
    }

    /// Whether this process still runs: it has not exited, and no other process has taken its id.
    pub fn is_alive(&self) -> bool {
        self.runs_same_program() || Stat::read(self.pid).is_ok_and(|stat| self.is(&stat))
    }

    /// Whether the state of the process with this id is that of this process, and it has not exited.
    fn is(&self, stat: &Stat) -> bool {
        stat.start_time == self.start_time && stat.state != 'Z' && stat.state != 'X'
    }

    /// Whether the process still runs the program that it ran when it was opened: it has neither exited nor executed
    /// another program (execve(2)), not even the same file again.
    pub fn runs_same_program(&self) -> bool {
        self.program.read_at(&mut [0], 0).is_ok_and(|read| read == 1)
    }

    /// Whether the process has executed another program since it was opened, and still runs.
    pub fn has_become_another_program(&self) -> bool {
        // A process that is exiting has lost its memory, too.
        const PF_EXITING: u64 = 4;
        let is_there = |now: Stat| self.is(&now) && now.flags & PF_EXITING == 0;
        !self.runs_same_program() && Stat::read(self.pid).is_ok_and(is_there)
    }

    /// Whether the process has lost its memory because it is exiting.
    pub fn is_exiting(&self) -> bool {
        !self.runs_same_program() && !self.has_become_another_program()
    }

    /// What keeps the process from running, if anything does.
    pub fn halt(&self) -> Option<Halt> {
        match Stat::read(self.pid).ok()?.state {
            'T' => Some(Halt::Signal),
            't' => self.tracer().map(Halt::Tracer),
            'R' => None,
            _ => freezer::thawed_by(self.pid).map(|(file, text)| Halt::Freezer(file, text)),
        }
    }

    /// The process that traces this one, if there is one: a debugger, strace.
    pub fn tracer(&self) -> Option<u32> {
        // The tracer is named by thread id.
        let thread = status(self.pid, "TracerPid:").filter(|thread| *thread != 0)?;
        Some(status(thread, "Tgid:").unwrap_or(thread))
    }

    /// How to learn that the process exits.
    pub fn exit(&self) -> Exit {
        // SAFETY: pidfd_open(2) takes two plain integers.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, self.pid, 0) };
        // By now, the id may belong to another process or to none. It is checked only after the descriptor exists,
        // because an open descriptor keeps the id from being reused.
        if !self.is_alive() {
            return Exit::Gone;
        }
        match i32::try_from(fd) {
            // SAFETY: the kernel has just given us this descriptor, and nobody else knows it.
            Ok(fd) if fd >= 0 => Exit::Event(unsafe { OwnedFd::from_raw_fd(fd) }),
            _ => Exit::Untold,
        }
    }

    /// Its command name (`/proc/PID/comm`) as it is shown, or an empty string if the process is gone.
    pub fn command(&self) -> String {
        let bytes = std::fs::read(format!("/proc/{}/comm", self.pid)).unwrap_or_default();
        untrusted::bytes(bytes.strip_suffix(b"\n").unwrap_or(&bytes))
    }

    /// Its resident memory in bytes (`/proc/PID/statm`), or 0 if the process is gone.
    pub fn rss(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/statm", self.pid)).unwrap_or_default();
        let pages = text.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0);
        pages.saturating_mul(page_size())
    }

    /// Its current mappings. If there are so many that reading them takes long, they may be a moment old (`KeptMaps`).
    ///
    /// # Errors
    /// As [`Maps::read`].
    pub fn maps(&self) -> Result<Maps, TargetError> {
        self.maps.get(|| Maps::read(self.pid))
    }

    /// The first mappings, with a readable file among them if there is one: nearly always that is the program itself.
    fn first_file(&self) -> Result<Maps, TargetError> {
        /// The most bytes that the kernel returns at once, in whole lines (`seq_read_iter`, `fs/seq_file.c`).
        const PAGE: usize = 4096;
        let mut text = vec![0; PAGE];
        let length = self.program.read_at(&mut text, 0).unwrap_or(0);
        let first = Maps::parse_bytes(text.get(..length).unwrap_or_default());
        if first.iter().any(is_readable_file) { Ok(first) } else { self.maps() }
    }

    /// Its memory.
    pub fn memory(&self) -> ProcessMemory {
        ProcessMemory::new(self.pid)
    }

    /// Ids of its current threads.
    ///
    /// # Errors
    /// [`TargetError::NoSuchProcess`] if the process is gone.
    pub fn threads(&self) -> Result<Vec<u32>, TargetError> {
        let path = format!("/proc/{}/task", self.pid);
        let entries = std::fs::read_dir(&path).map_err(|error| TargetError::from_io(self.pid, &path, error))?;
        Ok(entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
    }

    /// Its files, read with its own rights; [`None`] if the process is gone. The first call must come while lj-trace
    /// has all of its privileges.
    pub fn files(&self) -> Option<&TargetFiles> {
        self.files.get_or_init(|| TargetFiles::of(self.pid).ok()).as_ref()
    }

    /// The path from here to `path`, as the target sees it.
    pub fn rooted(&self, path: &Path) -> PathBuf {
        let mut rooted = PathBuf::from(format!("/proc/{}/root", self.pid));
        rooted.push(path.strip_prefix("/").unwrap_or(path));
        rooted
    }

    /// Opens the file behind a mapping: the inode that is mapped, even if it is deleted, replaced, or in another mount
    /// namespace. If the kernel refuses `map_files`, it opens the file by its path under the target's root.
    ///
    /// # Errors
    /// The errors of opening the file.
    pub fn open_mapped_file(&self, mapping: &Mapping) -> io::Result<File> {
        use std::os::unix::fs::MetadataExt as _;
        let by_link = File::open(mapping.map_files_link(self.pid));
        let error = match by_link {
            Ok(file) => return Ok(file),
            Err(error) => error,
        };
        let mut files = self.paths_of_mapped(mapping).filter_map(|path| File::open(path).ok());
        let is_mapped = |file: &File| file.metadata().is_ok_and(|metadata| metadata.ino() == mapping.inode);
        files.find(is_mapped).ok_or(error)
    }

    /// The metadata of the file of a mapping, without opening the file.
    ///
    /// # Errors
    /// As for [`Self::open_mapped_file`].
    pub fn mapped_file_metadata(&self, mapping: &Mapping) -> io::Result<std::fs::Metadata> {
        use std::os::unix::fs::MetadataExt as _;
        std::fs::metadata(mapping.map_files_link(self.pid)).or_else(|error| {
            let mut files = self.paths_of_mapped(mapping).filter_map(|path| std::fs::metadata(path).ok());
            files.find(|metadata| metadata.ino() == mapping.inode).ok_or(error)
        })
    }

    /// Paths that may lead to the file of a mapping. Another file may have taken the path of the mapping since (an upgrade): its
    /// inode must be compared. The link to the program itself leads to the old file even then.
    fn paths_of_mapped(&self, mapping: &Mapping) -> impl Iterator<Item = PathBuf> {
        let program = PathBuf::from(format!("/proc/{}/exe", self.pid));
        mapping.file_path().map(|path| self.rooted(path)).into_iter().chain([program])
    }
}

fn is_readable_file(mapping: &Mapping) -> bool {
    mapping.read && mapping.is_file()
}

/// The number in a line of `/proc/PID/status`.
fn status(pid: u32, key: &str) -> Option<u32> {
    let status = proc_file::read_text(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok())
}

/// The state of a thread as a letter (proc(5)): `R` is running or runnable, `S` and `D` wait. [`None`] if the thread is
/// gone or cannot be read.
pub fn thread_state(pid: u32, tid: u32) -> Option<char> {
    let stat = proc_file::read(format!("/proc/{pid}/task/{tid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    stat.get(stat.rfind(')')? + 1..)?.trim_start().chars().next()
}

/// The fields of `/proc/PID/stat` that are used (proc(5)).
struct Stat {
    state: char,
    flags: u64,
    start_time: u64,
    stack_start: u64,
}

impl Stat {
    fn read(pid: u32) -> Result<Self, TargetError> {
        let path = format!("/proc/{pid}/stat");
        let text = proc_file::read(&path).map_err(|error| TargetError::from_io(pid, &path, error))?;
        let invalid = || TargetError::Io { path: path.clone(), source: io::ErrorKind::InvalidData.into() };
        Self::parse(&String::from_utf8_lossy(&text)).ok_or_else(invalid)
    }

    fn parse(text: &str) -> Option<Self> {
        // The command name may hold spaces and parentheses: the fields begin after the last one.
        let fields: Vec<_> = text.get(text.rfind(')')? + 1..)?.split_ascii_whitespace().collect();
        // Field numbers of proc(5) start at 1 with the pid; `fields[0]` is number 3, the state.
        let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
        Some(Self {
            state: fields.first()?.chars().next()?,
            flags: number(9)?,
            start_time: number(22)?,
            stack_start: number(28)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opens_itself_with_its_threads() {
        let process = Process::open(std::process::id()).unwrap();
        assert!(process.is_alive());
        assert!(process.threads().unwrap().contains(&process.pid()));
        assert_ne!(process.stack_start(), 0);
        assert!(process.runs_same_program());
        assert_eq!(process.halt(), None);
    }

    #[test]
    fn sees_another_program_take_its_place() {
        let script = "read line; exec sleep 9";
        let mut shell = std::process::Command::new("sh");
        let mut child = shell.args(["-c", script]).stdin(std::process::Stdio::piped()).spawn().unwrap();
        let process = loop {
            // Until it executes the shell, the child is a copy of this test.
            let process = Process::open(child.id()).unwrap();
            if process.command() == "sh" {
                break process;
            }
        };
        assert!(process.runs_same_program());
        // The shell continues when its input ends.
        drop(child.stdin.take());
        while process.command() != "sleep" {
            std::thread::yield_now();
        }
        assert!(process.is_alive() && process.has_become_another_program());
        // SAFETY: kill touches no memory, and the pid is our child's.
        unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGSTOP) };
        let process = Process::open(child.id()).unwrap();
        while process.halt() != Some(Halt::Signal) {
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!process.is_alive() && !process.runs_same_program() && !process.has_become_another_program());
    }

    #[test]
    fn refuses_what_is_not_there() {
        assert!(matches!(Process::open(u32::MAX / 4), Err(TargetError::NoSuchProcess(_))));
    }

    #[test]
    fn parses_a_command_name_with_parentheses() {
        let text = "7 (a) b (c)) S 1 7 7 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 4242 0 0 0 1 2 140720 0 0";
        let stat = Stat::parse(text).unwrap();
        assert_eq!((stat.state, stat.flags, stat.start_time, stat.stack_start), ('S', 4_194_560, 4242, 140_720));
    }
}
