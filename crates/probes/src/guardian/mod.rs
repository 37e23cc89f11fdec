//! The guardian and its holders insert probes into a process and remove them. lj-trace does not do so itself, because
//! nothing may kill these processes at the wrong moment.
//!
//! The kernel does not remove a breakpoint for a thread that has a fatal signal pending (`uprobe_unregister` in Linux's
//! `kernel/events/uprobes.c` gives up, "leaking uprobe"). If lj-trace removed its probes itself, a SIGKILL during that
//! time, from a user or from the OOM killer, would leave them in the target for good. A process that is already dying
//! is safe from further signals. So each set of probes belongs to a process of its own, its holder. A holder only
//! waits, and removes its probes by dying: when lj-trace asks for it, or when lj-trace itself has died. Holders are
//! children of the guardian, a small process that lj-trace forks before it has threads, and that ignores signals.

mod holder;
mod message;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use lj_trace_process::privileges::Capabilities;
use lj_trace_process::sockets;
use message::{Order, Words};

use super::mechanism::Mechanism;
use super::uprobe_multi::UprobeKind;

/// How the kernel inserts probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Means {
    /// With one `uprobe_multi` link.
    Multi(UprobeKind),
    /// With one perf event per probe, for kernels without `uprobe_multi` links. The number is the perf event type of
    /// uprobes; the flag says whether the probes are on returns.
    Classic(u32, bool),
}

impl Means {
    /// How this mechanism inserts probes of this kind.
    ///
    /// # Errors
    /// Perf events have no probes of this kind.
    pub fn of(mechanism: Mechanism, kind: UprobeKind) -> io::Result<Self> {
        match (mechanism, kind) {
            (Mechanism::Multi, kind) => Ok(Self::Multi(kind)),
            (Mechanism::Classic, UprobeKind::Session) => Err(io::ErrorKind::Unsupported.into()),
            (Mechanism::Classic, kind) => Ok(Self::Classic(classic_number()?, kind == UprobeKind::Return)),
        }
    }
}

/// The perf event type of uprobes.
fn classic_number() -> io::Result<u32> {
    const PATH: &str = "/sys/bus/event_source/devices/uprobe/type";
    let invalid = || io::Error::new(io::ErrorKind::InvalidData, format!("{PATH} holds no number"));
    std::fs::read_to_string(PATH)?.trim().parse().map_err(|_| invalid())
}

/// Probes in a process. They are removed when lj-trace ends, or when this is dropped; dropping waits until they are
/// gone.
#[derive(Debug)]
pub struct Held {
    /// The socket whose closing tells the holder to die.
    order: Option<OwnedFd>,
    /// The holder's pidfd.
    process: OwnedFd,
}

/// The socket to the guardian; [`None`] as long as there is no guardian.
static GUARDIAN: Mutex<Option<OwnedFd>> = Mutex::new(None);

/// Forks the guardian, unless it exists. The earlier this happens, the smaller the guardian is.
///
/// # Errors
/// The system has no more processes or descriptors.
pub fn start() -> io::Result<()> {
    with(|_| Ok(()))
}

/// Makes the guardian give up all capabilities but these.
pub fn keep_only(capabilities: Capabilities) {
    let guardian = GUARDIAN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(guardian) = &*guardian {
        // If the guardian is gone, it has no capabilities left to give up.
        let _ = message::send(guardian.as_fd(), &Words::capabilities(capabilities), &[]);
    }
}

/// Puts `program` on instructions of the file at `path` in the process `pid`. Each point is an offset in the file and a
/// cookie.
///
/// # Errors
/// The kernel refuses, or the guardian has been killed.
pub fn attach(program: BorrowedFd<'_>, path: &Path, points: &[(u64, u64)], pid: u32, means: Means) -> io::Result<Held> {
    // Opens the file that the path means to lj-trace: links in /proc/self mean something else to the guardian.
    let file = File::options().read(true).custom_flags(libc::O_PATH).open(path)?;
    let order = Words::attach(&Order { pid, means, points })?;
    let (own, others) = sockets::pair(libc::SOCK_SEQPACKET)?;
    with(|guardian| message::send(guardian, &order, &[program, others.as_fd(), file.as_fd()]))?;
    drop(others);
    let (error, process) = message::receive_reply(own.as_fd())?;
    match (error, process) {
        (0, Some(process)) => Ok(Held { order: Some(own), process }),
        (0, None) => Err(killed()),
        (error, _) => Err(io::Error::from_raw_os_error(error)),
    }
}

fn killed() -> io::Error {
    io::Error::other("the process that holds lj-trace's probes (lj-trace-guard) was killed")
}

/// Calls `what` with the guardian's socket; starts the guardian if there is none.
fn with<T>(what: impl FnOnce(BorrowedFd<'_>) -> io::Result<T>) -> io::Result<T> {
    let mut guardian = GUARDIAN.lock().unwrap_or_else(PoisonError::into_inner);
    let guardian = match &mut *guardian {
        Some(guardian) => guardian,
        none => none.insert(fork()?),
    };
    what(guardian.as_fd()).map_err(|error| match error.raw_os_error() {
        Some(libc::EPIPE | libc::ECONNRESET) => killed(),
        _ => error,
    })
}

fn fork() -> io::Result<OwnedFd> {
    let (own, others) = sockets::pair(libc::SOCK_SEQPACKET)?;
    // SAFETY: what follows in the child only makes system calls: it neither allocates nor takes locks, which other
    // threads may have had at this moment.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        // This child forks the guardian proper and exits. So init adopts the guardian, and lj-trace need not wait for
        // it.
        0 => holder::guard(others.as_raw_fd()),
        child => {
            let mut status = 0;
            // SAFETY: it writes the status alone.
            while unsafe { libc::waitpid(child, &raw mut status, 0) } < 0
                && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
            {}
            if status == 0 { Ok(own) } else { Err(io::ErrorKind::OutOfMemory.into()) }
        }
    }
}

impl Held {
    /// Asks the holder to remove the probes, and does not wait for it.
    pub fn release(&mut self) {
        self.order = None;
    }

    /// Whether the holder is gone without being asked: something has killed it, and its probes are gone, too.
    pub fn is_lost(&self) -> bool {
        self.order.is_some() && self.is_over(Duration::ZERO)
    }

    /// Waits up to `time` for the holder's end. Returns whether it has ended.
    fn is_over(&self, time: Duration) -> bool {
        let mut event = libc::pollfd { fd: self.process.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let milliseconds = i32::try_from(time.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: it is given one valid `pollfd`.
        unsafe { libc::poll(&raw mut event, 1, milliseconds) == 1 }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.release();
        // The holder dies once the kernel has removed all probes.
        while !self.is_over(Duration::from_secs(1)) {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uprobe_multi::load;

    #[test]
    fn what_the_kernel_says_comes_back() {
        let refused = attach(
            File::open("/dev/null").unwrap().as_fd(),
            Path::new("/proc/self/exe"),
            &[(0, 0)],
            std::process::id(),
            Means::Multi(UprobeKind::Call),
        );
        // The descriptor is no program.
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EINVAL));
    }

    #[test]
    fn probes_are_there_until_they_are_dropped() {
        let nothing = [[0xb7, 0, 0, 0, 0, 0, 0, 0], [0x95, 0, 0, 0, 0, 0, 0, 0]];
        let Ok(program) = load("nothing", &nothing, c"GPL", Some(UprobeKind::Call)) else {
            println!("NOT RUN: BPF programs cannot be loaded here");
            return;
        };
        let first = || {
            // The first instruction of a function that nobody calls meanwhile.
            let address = what_the_kernel_says_comes_back as *const () as usize;
            // SAFETY: it is code of this program.
            unsafe { (address as *const u8).read_volatile() }
        };
        let address = what_the_kernel_says_comes_back as *const () as usize as u64;
        let maps = lj_trace_process::Maps::read(std::process::id()).unwrap();
        let mapping = maps.find(address).unwrap();
        let offset = address - mapping.start + mapping.offset;
        let before = first();
        let exe = Path::new("/proc/self/exe");
        let held =
            attach(program.as_fd(), exe, &[(offset, 0)], std::process::id(), Means::Multi(UprobeKind::Call)).unwrap();
        assert_eq!(first(), 0xcc);
        assert!(!held.is_lost());
        drop(held);
        assert_eq!(first(), before);
    }
}
