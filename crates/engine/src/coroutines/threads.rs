//! The threads of the target, and where waiting ones are: `/proc/PID/task/TID/syscall` shows their instruction and stack
//! pointers without stopping anything.

use std::fs;

use lj_trace_process::Process;
use lj_trace_process::process::thread_state;
use lj_trace_unwind::Registers;

/// A thread of the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OsThread {
    /// The id of the thread.
    pub tid: u32,
    /// The name of the thread.
    pub name: String,
    /// The state, as in `/proc/PID/task/TID/stat`: `R`, `S`, `D`, `T`, `t`, `Z`.
    pub state: char,
    /// The place where the thread is.
    pub place: ThreadPlace,
}

/// Where a thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadPlace {
    /// The thread waits in the kernel, and its user code will continue here.
    Waiting {
        /// Its program counter.
        pc: u64,
        /// Its stack pointer.
        sp: u64,
        /// A mark of this wait. It differs between system calls with other arguments, and after the thread has run in
        /// between.
        mark: u64,
    },
    /// The thread runs, or is about to run: the kernel does not say where.
    Running,
    /// The kernel refuses access without the privilege to trace the process (`CAP_SYS_PTRACE`).
    Refused,
}

impl ThreadPlace {
    /// The known registers at this place.
    pub fn registers(&self) -> Option<Registers> {
        match *self {
            Self::Waiting { pc, sp, .. } => Some(Registers::only(pc, sp)),
            Self::Running | Self::Refused => None,
        }
    }

    /// The current place of thread `tid` of process `pid`.
    pub fn read(pid: u32, tid: u32) -> Self {
        let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/task/{tid}/{name}"));
        match read("syscall") {
            // Some kernels do not count how often a thread has run. The arguments alone must then do.
            Ok(text) => Self::parse(&text, &read("schedstat").unwrap_or_default()).unwrap_or(Self::Running),
            Err(_) => Self::Refused,
        }
    }

    /// Parses `running`, or `NUMBER ARGUMENT... SP PC`, or `-1 SP PC` (proc(5)). `runs` says how long and how often the
    /// thread has run so far (`schedstat`).
    fn parse(text: &str, runs: &str) -> Option<Self> {
        let mut words = text.split_whitespace().rev();
        let mut number = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
        let (pc, sp) = (number()?, number()?);
        let mark = words.chain([runs]).fold(0_u64, |mark, word| {
            word.bytes().fold(mark, |mark, byte| (mark.rotate_left(5) ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
        });
        Some(Self::Waiting { pc, sp, mark })
    }
}

impl OsThread {
    /// All threads of `process`, the first thread first.
    pub fn all(process: &Process) -> Vec<Self> {
        let mut tids = process.threads().unwrap_or_default();
        tids.sort_unstable();
        tids.into_iter().filter_map(|tid| Self::read(process.pid(), tid)).collect()
    }

    fn read(pid: u32, tid: u32) -> Option<Self> {
        let stat = fs::read(format!("/proc/{pid}/task/{tid}/stat")).ok()?;
        let stat = String::from_utf8_lossy(&stat);
        let (name, state) = name_and_state(&stat)?;
        Some(Self { tid, name, state, place: ThreadPlace::read(pid, tid) })
    }
}

/// What a thread does in this state, in words.
pub fn describe(state: char) -> &'static str {
    match state {
        'R' => "running",
        'S' => "sleeping",
        'D' => "waiting for a device",
        'T' => "stopped",
        't' => "stopped by a debugger",
        'Z' | 'X' => "exited",
        'I' => "idle",
        _ => "in an unknown state",
    }
}

/// Whether a tracer has stopped the thread.
pub fn is_traced(pid: u32, tid: u32) -> bool {
    thread_state(pid, tid) == Some('t')
}

fn name_and_state(stat: &str) -> Option<(String, char)> {
    let (open, close) = (stat.find('(')?, stat.rfind(')')?);
    let name = stat.get(open + 1..close)?.to_owned();
    Some((name, stat.get(close + 1..)?.trim_start().chars().next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_where_a_thread_waits() {
        let parse = |text| ThreadPlace::parse(text, "12345 678 9");
        let place = parse("7 0x1 0x2 0x3 0x0 0x0 0x0 0x7ffc00 0x7f1234\n").unwrap();
        let ThreadPlace::Waiting { pc, sp, mark } = place else { panic!("{place:?}") };
        assert_eq!((pc, sp), (0x7f1234, 0x7ffc00));
        let other = parse("7 0x1 0x2 0x4 0x0 0x0 0x0 0x7ffc00 0x7f1234\n").unwrap();
        assert!(matches!(other, ThreadPlace::Waiting { mark: other, .. } if other != mark));
        let again = ThreadPlace::parse("7 0x1 0x2 0x3 0x0 0x0 0x0 0x7ffc00 0x7f1234\n", "12399 678 10");
        assert_ne!(again, Some(place), "the same call again, after it has run");
        assert!(matches!(parse("-1 0x7ffc00 0x7f1234"), Some(ThreadPlace::Waiting { .. })));
        assert_eq!(parse("running\n"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn a_name_may_hold_parentheses() {
        assert_eq!(name_and_state("7 (a) (b) S 1 2"), Some(("a) (b".to_owned(), 'S')));
        assert_eq!(name_and_state(")("), None);
    }

    #[test]
    fn finds_its_own_threads() {
        let threads = OsThread::all(&Process::open(std::process::id()).unwrap());
        assert!(
            threads.iter().any(|thread| thread.state == 'R' && thread.place == ThreadPlace::Running),
            "{threads:?}"
        );
    }
}
