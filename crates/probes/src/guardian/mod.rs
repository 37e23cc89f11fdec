//! Who inserts probes into a process and removes them: not lj-trace itself, but processes that nothing ends at the wrong
//! moment.
//!
//! The kernel does not take a breakpoint out for a thread that has a fatal signal pending (`uprobe_unregister` in Linux's
//! `kernel/events/uprobes.c` gives up, "leaking uprobe"): a SIGKILL that came while lj-trace took its probes out, by whoever
//! or by the OOM killer, left them in the target for good. For a process that is dying already, no further signal counts. So
//! each set of probes belongs to a process of its own, its holder, which does nothing but wait, and takes them out by
//! dying: when lj-trace asks for it, or has died itself. Holders are children of the guardian, a small process that is
//! forked off lj-trace before it has threads, and hears no signals.

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

/// How probes are put in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Means {
    /// By one `uprobe_multi` link.
    Multi(UprobeKind),
    /// By a perf event each, of this number among the kinds of perf events, on the return or not: what kernels without
    /// `uprobe_multi` links have.
    Classic(u32, bool),
}

impl Means {
    /// What this mechanism has for probes of this kind.
    ///
    /// # Errors
    /// Perf events have no such probes.
    pub fn of(mechanism: Mechanism, kind: UprobeKind) -> io::Result<Self> {
        match (mechanism, kind) {
            (Mechanism::Multi, kind) => Ok(Self::Multi(kind)),
            (Mechanism::Classic, UprobeKind::Session) => Err(io::ErrorKind::Unsupported.into()),
            (Mechanism::Classic, kind) => Ok(Self::Classic(classic_number()?, kind == UprobeKind::Return)),
        }
    }
}

/// The number of this kind of perf events.
fn classic_number() -> io::Result<u32> {
    const PATH: &str = "/sys/bus/event_source/devices/uprobe/type";
    let invalid = || io::Error::new(io::ErrorKind::InvalidData, format!("{PATH} holds no number"));
    std::fs::read_to_string(PATH)?.trim().parse().map_err(|_| invalid())
}

/// Probes in a process. They are taken out when this is dropped, which takes until they are, or when lj-trace ends.
#[derive(Debug)]
pub struct Held {
    /// The holder waits for the other end of this to close.
    order: Option<OwnedFd>,
    /// The holder.
    process: OwnedFd,
}

/// This process's end of what the guardian listens to; [`None`] as long as there is none.
static GUARDIAN: Mutex<Option<OwnedFd>> = Mutex::new(None);

/// Forks the guardian, unless it is there. The sooner, the smaller it is.
///
/// # Errors
/// The system has no more processes or descriptors.
pub fn start() -> io::Result<()> {
    with(|_| Ok(()))
}

/// Has the guardian give up all capabilities but these.
pub fn keep_only(capabilities: Capabilities) {
    let guardian = GUARDIAN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(guardian) = &*guardian {
        // If it is gone, it can do nothing any more.
        let _ = message::send(guardian.as_fd(), &Words::capabilities(capabilities), &[]);
    }
}

/// Puts `program` on instructions of the file at `path`, each given by its offset there and its cookie, in the process
/// `pid`.
///
/// # Errors
/// What the kernel says; or the guardian has been killed.
pub fn attach(program: BorrowedFd<'_>, path: &Path, points: &[(u64, u64)], pid: u32, means: Means) -> io::Result<Held> {
    // Whatever the path means here, links of /proc/self too.
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

/// Does something with the guardian, which is started if it is not there.
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
        // It leaves another child, which is nobody's but init's: nobody has to wait for it.
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
    /// Asks for the probes to be taken out, and does not wait for it.
    pub fn release(&mut self) {
        self.order = None;
    }

    /// Whether the holder has gone without being asked: somebody has killed it, and the probes went with it.
    pub fn is_lost(&self) -> bool {
        self.order.is_some() && self.is_over(Duration::ZERO)
    }

    /// Waits so long for the holder's end; whether it has come.
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
        // It dies once the kernel has taken out all probes.
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
        // It is no program.
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
