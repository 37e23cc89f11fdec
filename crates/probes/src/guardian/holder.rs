//! The guardian and its holders. They are forks of a program that may have had threads, so they make only system calls
//! and never return.

use std::ffi::CStr;
use std::io::{self, Write as _};
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};

use lj_trace_process::privileges::{self, Capabilities, Capability};
use lj_trace_process::sockets::{DESCRIPTORS, receive, send};

use super::Means;
use super::message::{MAX_WORDS, Received, parse};
use crate::perf_event::{Attr, link, open};
use crate::uprobe_multi;

/// The descriptor of the guardian's socket; the standard streams come before it.
const SOCKET: RawFd = 3;

/// How many events a process with classic probes can have open.
const MAX_EVENTS: usize = super::message::MAX_POINTS;

/// Runs in lj-trace's child. It forks the guardian and exits, so that the guardian has no parent that must wait for it.
pub fn guard(socket: RawFd) -> ! {
    // SAFETY: all of these are system calls with plain integers, or with strings and structures that are there as long as
    // the process. Only this thread is left.
    unsafe {
        // In a session of its own, neither Ctrl-C nor a kill of the process group reaches the guardian.
        libc::setsid();
        match libc::fork() {
            0 => {}
            child => libc::_exit(i32::from(child < 0)),
        }
        (1..=64).for_each(ignore);
        libc::prctl(libc::PR_SET_NAME, c"lj-trace-guard".as_ptr());
        spare_from_oom_killer();
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        // Close everything that lj-trace has open (pipes, files, the target's files): it must close when lj-trace ends.
        let socket = libc::fcntl(socket, libc::F_DUPFD, 64);
        (0..SOCKET).for_each(|fd| {
            libc::dup2(null, fd);
        });
        libc::dup2(socket, SOCKET);
        libc::syscall(libc::SYS_close_range, SOCKET + 1, u32::MAX, 0);
    }
    // CAP_SYS_ADMIN does the job where CAP_BPF does not exist, or where a kernel setting asks for more.
    let _ = privileges::keep_only(Capabilities::of(&[Capability::Bpf, Capability::Perfmon, Capability::SysAdmin]));
    let mut words = [0; MAX_WORDS];
    loop {
        // Nobody is at the other end: lj-trace has ended.
        let Ok((count @ 1.., descriptors)) = receive(SOCKET, &mut words) else { die() };
        match parse(&words[..count]) {
            Some(Received::KeepOnly(capabilities)) => {
                // The guardian has at most these; if it cannot give up the others, it is no worse off than before.
                let _ = privileges::keep_only(capabilities);
            }
            // SAFETY: there is only this thread.
            Some(Received::Attach(pid, means, offsets, cookies)) => match unsafe { libc::fork() } {
                0 => hold(pid, means, offsets, cookies, descriptors),
                -1 => reply(descriptors[1], last_error(), None),
                _ => {}
            },
            None => reply(descriptors[1], libc::EINVAL, None),
        }
        for descriptor in descriptors {
            // SAFETY: the kernel has given us these descriptors with the message; there may be none.
            unsafe { libc::close(descriptor) };
        }
    }
}

fn ignore(signal: libc::c_int) {
    // Children that nobody waits for leave nothing behind, as SIGCHLD is ignored. SIGKILL and SIGSTOP cannot be.
    // SAFETY: it is a valid disposition.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

/// Keeps the OOM killer away from this process. It works only with `CAP_SYS_RESOURCE`.
fn spare_from_oom_killer() {
    const NEVER: &[u8] = b"-1000";
    // SAFETY: the path ends with a NUL, and the bytes are readable.
    unsafe {
        let file = libc::open(c"/proc/self/oom_score_adj".as_ptr(), libc::O_WRONLY);
        libc::write(file, NEVER.as_ptr().cast(), NEVER.len());
        libc::close(file);
    }
}

/// Inserts the probes, and waits until it should remove them.
fn hold(pid: u32, means: Means, offsets: &[u64], cookies: &[u64], descriptors: [RawFd; DESCRIPTORS]) -> ! {
    let [program, order, file] = descriptors;
    // SAFETY: the descriptor is the guardian's own socket, of which it has a copy.
    unsafe { libc::close(SOCKET) };
    let mut events: [Option<OwnedFd>; MAX_EVENTS] = [const { None }; MAX_EVENTS];
    match put_in(pid, means, offsets, cookies, (program, file), &mut events) {
        Err(error) => reply(order, error.raw_os_error().unwrap_or(libc::EIO), None),
        Ok(()) => {
            // SAFETY: pidfd_open(2) and getpid(2) take plain integers.
            let own = unsafe { libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) };
            match i32::try_from(own).ok().filter(|&own| own >= 0) {
                Some(own) => reply(order, 0, Some(own)),
                None => reply(order, last_error(), None),
            }
            // lj-trace never sends anything: it closes its end, or has ended.
            while matches!(receive(order, &mut [0]), Ok((1.., _))) {}
        }
    }
    die()
}

fn put_in(
    pid: u32,
    means: Means,
    offsets: &[u64],
    cookies: &[u64],
    (program, file): (RawFd, RawFd),
    events: &mut [Option<OwnedFd>],
) -> io::Result<()> {
    if program < 0 || file < 0 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: the kernel has given us this descriptor with the message, and it stays open.
    let program = unsafe { BorrowedFd::borrow_raw(program) };
    let mut path = [0; 32];
    write!(&mut path[..], "/proc/self/fd/{file}\0")?;
    let path = CStr::from_bytes_until_nul(&path).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    match means {
        Means::Multi(kind) => {
            events[0] = Some(uprobe_multi::attach(program, path, offsets, cookies, pid, kind)?);
        }
        Means::Classic(number, on_return) => {
            for ((&offset, &cookie), event) in offsets.iter().zip(cookies).zip(events) {
                let probe = open(&Attr::probe(number, path, offset, on_return), pid as libc::pid_t)?;
                // The link holds the event.
                *event = Some(link(program, &probe, cookie)?);
            }
        }
    }
    Ok(())
}

fn reply(socket: RawFd, error: i32, process: Option<RawFd>) {
    // If lj-trace is gone, nobody needs the answer.
    let _ = send(socket, &[error as u64], process.as_slice());
}

fn last_error() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// Ends this process, which closes all that it has open and so removes the probes. It sends itself a SIGKILL, so that
/// no other SIGKILL can interfere: in exit(2), a SIGKILL that arrives early still finds a process that is not exiting
/// yet.
fn die() -> ! {
    // SAFETY: these are system calls with plain integers.
    unsafe {
        libc::kill(libc::getpid(), libc::SIGKILL);
        // Only the first process of a PID namespace gets here.
        libc::_exit(0)
    }
}
