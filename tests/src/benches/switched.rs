//! An lj-trace that samples a program in turns with nothing: its perf events are switched on and off from outside, and it is
//! stopped while they are off.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use anyhow::{Context as _, Result, bail, ensure};
use lj_trace_probes::perf_event;
use lj_trace_process::{Exit, Process};

use crate::tracer::Tracer;

/// An lj-trace and its perf events.
pub struct Switched {
    tracer: Tracer,
    events: Vec<OwnedFd>,
}

impl Switched {
    /// Takes hold of the perf events of one that has attached.
    ///
    /// # Errors
    /// If it has none, or the kernel does not hand them out.
    pub fn of(tracer: Tracer) -> Result<Self> {
        let Exit::Event(process) = Process::open(tracer.pid())?.exit() else {
            bail!("the kernel has no descriptor of lj-trace")
        };
        let mut events = Vec::new();
        for entry in fs::read_dir(format!("/proc/{}/fd", tracer.pid()))? {
            let entry = entry?;
            // One may have been closed meanwhile.
            let Ok(target) = fs::read_link(entry.path()) else { continue };
            if target.as_os_str() == "anon_inode:[perf_event]" {
                let number = entry.file_name().to_string_lossy().parse().context("what is in fd/ is a number")?;
                events.push(pidfd_getfd(&process, number).context("cannot take hold of a perf event")?);
            }
        }
        ensure!(!events.is_empty(), "lj-trace has no perf event");
        Ok(Self { tracer, events })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.tracer.pid()
    }

    /// Lets it sample, or not.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn switch(&self, on: bool) -> Result<()> {
        if on {
            self.tracer.signal(libc::SIGCONT)?;
        }
        self.events.iter().try_for_each(|event| perf_event::enable(event, on))?;
        if !on {
            self.tracer.signal(libc::SIGSTOP)?;
        }
        Ok(())
    }

    /// Ends it; gives the number of samples that it has taken, all told.
    ///
    /// # Errors
    /// If it does not end, or has lost samples.
    pub fn end(self) -> Result<f64> {
        self.tracer.signal(libc::SIGINT)?;
        self.tracer.signal(libc::SIGCONT)?;
        let outcome = self.tracer.wait()?;
        outcome.expect(0, &["lost               0"]);
        let samples = outcome.stderr.lines().find_map(|line| line.split_once(" samples, ")?.0.rsplit(' ').next());
        Ok(samples.with_context(|| format!("no number of samples in {outcome:?}"))?.parse()?)
    }
}

/// A copy of the descriptor of this number of a process (since Linux 5.6).
fn pidfd_getfd(process: &OwnedFd, number: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: the arguments are plain integers, and the first is an open descriptor.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0) };
    match i32::try_from(fd) {
        // SAFETY: the kernel has just given us this descriptor, and nobody else knows it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}
