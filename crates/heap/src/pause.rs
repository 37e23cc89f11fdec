//! Stops a process for the time of a look at it.
//!
//! ptrace stops the process (`PTRACE_SEIZE`, `PTRACE_INTERRUPT`). Of all ways to stop a process, only this one ends with
//! its caller: when lj-trace exits, no matter how, the kernel detaches it, and the process goes on. After `SIGSTOP` or in a
//! frozen cgroup, the process would stay stopped until someone notices. The parent of the process sees nothing of ptrace,
//! either. The process itself does see one effect, as with the other two ways: a waiting system call may return early with
//! `EINTR` if signal(7) says so (`epoll_wait`).

use std::io;
use std::time::{Duration, Instant};

use lj_trace_common::event::SampledRegisters;
use lj_trace_process::{Process, TargetError};
use lj_trace_text::untrusted;

use crate::arch;

/// Why a process cannot be stopped.
#[derive(Debug, thiserror::Error)]
pub enum PauseError {
    /// Another process traces it, or lj-trace lacks the permission.
    #[error(
        "cannot stop process {pid}: {source} (a debugger, strace, or the setting kernel.yama.ptrace_scope may be in the \
         way; without --pause it is not stopped)"
    )]
    Refused {
        /// The process.
        pid: u32,
        /// The cause.
        source: io::Error,
    },
    /// Another process traces it, and a process can have only one tracer.
    #[error(
        "cannot stop process {pid}: {name} (pid {tracer}) traces it, and only one can at a time: end that, or leave out --pause"
    )]
    Traced {
        /// The process.
        pid: u32,
        /// The process that traces it,
        tracer: u32,
        /// The name of the tracer.
        name: String,
    },
    /// A thread does not stop: it waits in the kernel and cannot be interrupted.
    #[error("process {pid} did not stop within {} ms: thread {tid} waits for the kernel; try again, or leave out --pause", .patience.as_millis())]
    DoesNotStop {
        /// The process.
        pid: u32,
        /// The thread.
        tid: u32,
        /// How long lj-trace waited for the thread.
        patience: Duration,
    },
    /// The process is gone.
    #[error(transparent)]
    Target(#[from] TargetError),
}

/// How long a thread may take to stop.
const PATIENCE: Duration = Duration::from_millis(500);

/// A process with stopped threads. They go on when this is dropped, or when lj-trace ends.
#[derive(Debug)]
pub struct Paused {
    threads: Vec<TracedThread>,
    since: Instant,
}

/// A traced thread.
#[derive(Clone, Copy, Debug)]
struct TracedThread {
    tid: libc::pid_t,
    /// The signal that the thread was about to receive when it stopped; 0 if there was none. The thread receives it when it
    /// goes on.
    signal: libc::c_int,
    /// The thread's registers; [`None`] until it has stopped.
    registers: Option<SampledRegisters>,
}

/// Stopped threads, with their registers.
pub type StoppedThreads = Vec<(u32, SampledRegisters)>;

/// The registers of a thread that this thread has stopped.
pub fn registers(tid: libc::pid_t) -> Option<SampledRegisters> {
    // SAFETY: all of it are plain integers.
    let mut user: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    let mut place = libc::iovec { iov_base: (&raw mut user).cast(), iov_len: size_of_val(&user) };
    /// `NT_PRSTATUS` (`elf.h`).
    const GENERAL: usize = 1;
    // SAFETY: the kernel writes `user` and no more, as `place` says, and both outlive the call.
    let outcome = unsafe { libc::ptrace(libc::PTRACE_GETREGSET, tid, GENERAL, &raw mut place) };
    // A process of another architecture (32 bits) has fewer registers.
    (outcome != -1 && place.iov_len == size_of_val(&user)).then(|| arch::sampled(&user))
}

/// The error for a refused ptrace call.
fn refused(process: &Process, source: io::Error) -> PauseError {
    let pid = process.pid();
    match process.tracer().filter(|tracer| *tracer != std::process::id()) {
        Some(tracer) => {
            let name = std::fs::read(format!("/proc/{tracer}/comm")).unwrap_or_default();
            PauseError::Traced { pid, tracer, name: untrusted::bytes(name.trim_ascii_end()) }
        }
        None => PauseError::Refused { pid, source },
    }
}

fn ptrace(request: libc::c_uint, tid: libc::pid_t, data: libc::c_int) -> io::Result<()> {
    let nothing = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: these requests take no address, and a number as their data: the kernel reads and writes no memory of ours.
    let outcome = unsafe { libc::ptrace(request, tid, nothing, data as usize as *mut libc::c_void) };
    if outcome == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

impl Paused {
    /// Stops all threads of a process. [`None`] if that takes longer than `limit`; the threads that have stopped by then go
    /// on.
    ///
    /// # Errors
    /// [`PauseError`]; the threads that were stopped by then go on.
    pub fn new(process: &Process, limit: Duration) -> Result<Option<Self>, PauseError> {
        let pid = process.pid();
        let mut paused = Self { threads: Vec::new(), since: Instant::now() };
        // Running threads may start others until all of them are stopped.
        loop {
            let mut found_more = false;
            for tid in process.threads()? {
                let Ok(tid) = libc::pid_t::try_from(tid) else { continue };
                if paused.threads.iter().any(|thread| thread.tid == tid) {
                    continue;
                }
                match ptrace(libc::PTRACE_SEIZE, tid, 0) {
                    Ok(()) => paused.threads.push(TracedThread { tid, signal: 0, registers: None }),
                    // The thread has ended meanwhile.
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) => continue,
                    Err(source) => return Err(refused(process, source)),
                }
                found_more = true;
                if ptrace(libc::PTRACE_INTERRUPT, tid, 0).is_ok() && !paused.wait(pid, tid, limit)? {
                    return Ok(None);
                }
            }
            if !found_more {
                return Ok(Some(paused));
            }
            // Each thread may stop at once, and another one start meanwhile.
            if paused.elapsed() > limit {
                return Ok(None);
            }
        }
    }

    /// Waits until a thread has stopped or ended. Returns whether that happened within the time for which all threads may
    /// be stopped.
    fn wait(&mut self, pid: u32, tid: libc::pid_t, limit: Duration) -> Result<bool, PauseError> {
        let start = Instant::now();
        loop {
            let mut status = 0;
            // SAFETY: `status` is a place for the status, and outlives the call.
            let changed = unsafe { libc::waitpid(tid, &mut status, libc::__WALL | libc::WNOHANG) };
            if changed == tid && libc::WIFSTOPPED(status) {
                // Without an event (`PTRACE_EVENT_STOP`), the thread has stopped because of a signal that it has not
                // received yet.
                let signal = if status >> 16 == 0 { libc::WSTOPSIG(status) } else { 0 };
                let thread = self.threads.iter_mut().find(|thread| thread.tid == tid);
                thread.into_iter().for_each(|thread| (thread.signal, thread.registers) = (signal, registers(tid)));
                return Ok(true);
            }
            if changed != 0 {
                self.threads.retain(|thread| thread.tid != tid);
                return Ok(true);
            }
            if self.elapsed() > limit {
                return Ok(false);
            }
            if start.elapsed() > PATIENCE {
                return Err(PauseError::DoesNotStop { pid, tid: tid.cast_unsigned(), patience: PATIENCE });
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// The threads of the process, with the registers that they stopped with.
    pub fn threads(&self) -> StoppedThreads {
        let known = |thread: &TracedThread| Some((thread.tid.cast_unsigned(), thread.registers?));
        self.threads.iter().filter_map(known).collect()
    }

    /// Lets the process go on; returns how long it was stopped.
    pub fn resume(mut self) -> Duration {
        self.detach();
        self.since.elapsed()
    }

    /// How long the process has been stopped so far.
    pub fn elapsed(&self) -> Duration {
        self.since.elapsed()
    }

    fn detach(&mut self) {
        for thread in self.threads.drain(..) {
            // A thread that was killed meanwhile is gone. A thread that has not stopped yet cannot be detached: the kernel
            // detaches it when this thread ends.
            let _ = ptrace(libc::PTRACE_DETACH, thread.tid, thread.signal);
        }
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        self.detach();
    }
}

#[cfg(test)]
mod tests {
    use std::io::BufRead as _;
    use std::process::{Command, Stdio};

    use super::*;

    fn state(pid: u32) -> String {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("State:"));
        line.unwrap_or_default().trim().to_owned()
    }

    #[test]
    fn a_process_stands_still_and_goes_on() {
        let mut child = Command::new("sleep").arg("60").stdout(Stdio::null()).spawn().unwrap();
        let process = Process::open(child.id()).unwrap();
        match Paused::new(&process, PATIENCE) {
            Ok(paused) => {
                let paused = paused.expect("it has stopped");
                assert!(state(child.id()).starts_with('t'), "{}", state(child.id()));
                let stood = paused.resume();
                assert!(stood > Duration::ZERO);
                assert!(!state(child.id()).starts_with(['t', 'T']), "{}", state(child.id()));
            }
            // If ptrace is not permitted, the error says so.
            Err(error) => assert!(error.to_string().contains("cannot stop process"), "{error}"),
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn no_signal_is_lost() {
        // The script counts signals and prints the number after each.
        let script = "count=0; trap 'count=$((count+1)); echo $count' USR1; echo ready; while :; do sleep 0.01; done";
        let mut child = Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = io::BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        let process = Process::open(child.id()).unwrap();
        for count in 1..=20 {
            let kill = || Command::new("kill").args(["-USR1", &child.id().to_string()]).status().unwrap();
            // Send signals before the process stops and while it is stopped.
            if count % 2 == 0 {
                assert!(kill().success());
            }
            let Ok(Some(paused)) = Paused::new(&process, PATIENCE) else { break };
            if count % 2 == 1 {
                assert!(kill().success());
            }
            paused.resume();
            assert_eq!(lines.next().unwrap().unwrap(), count.to_string());
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
