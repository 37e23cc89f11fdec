//! A program that is stopped after each instruction.

use std::io;
use std::ptr::null_mut;

use anyhow::{Context as _, Result, bail};
use lj_trace_common::event::SampledRegisters;
use lj_trace_heap::pause::registers;

/// A thread that runs instruction by instruction. It goes on by itself when this is dropped.
pub struct Stepper {
    thread: libc::pid_t,
}

impl Stepper {
    /// Stops the main thread of a process.
    ///
    /// # Errors
    /// It cannot be stopped.
    pub fn seize(pid: u32) -> Result<Self> {
        let thread = libc::pid_t::try_from(pid)?;
        ptrace(libc::PTRACE_SEIZE, thread, 0).context("cannot trace")?;
        let stepper = Self { thread };
        ptrace(libc::PTRACE_INTERRUPT, thread, 0).context("cannot stop")?;
        stepper.wait()?;
        Ok(stepper)
    }

    /// Where it is.
    ///
    /// # Errors
    /// It is gone.
    pub fn registers(&self) -> Result<SampledRegisters> {
        registers(self.thread).context("no registers")
    }

    /// Runs one instruction. False if the program has ended.
    ///
    /// # Errors
    /// It cannot be continued.
    pub fn step(&mut self) -> Result<bool> {
        ptrace(libc::PTRACE_SINGLESTEP, self.thread, 0).context("cannot step")?;
        self.wait()
    }

    /// Waits until it stops.
    fn wait(&self) -> Result<bool> {
        let mut status = 0;
        // SAFETY: `status` is a place for the status, and outlives the call.
        let changed = unsafe { libc::waitpid(self.thread, &raw mut status, libc::__WALL) };
        if changed != self.thread {
            bail!("waitpid: {}", io::Error::last_os_error());
        }
        Ok(libc::WIFSTOPPED(status))
    }
}

impl Drop for Stepper {
    fn drop(&mut self) {
        // It may have ended.
        let _ = ptrace(libc::PTRACE_DETACH, self.thread, 0);
    }
}

fn ptrace(request: libc::c_uint, thread: libc::pid_t, data: usize) -> io::Result<()> {
    // SAFETY: these requests take no address, and a number as their data: the kernel writes no memory of ours.
    let outcome = unsafe { libc::ptrace(request, thread, null_mut::<libc::c_void>(), data as *mut libc::c_void) };
    if outcome == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
