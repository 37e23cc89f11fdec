//! What a program takes: its memory and CPU time.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitStatus};

use anyhow::{Context as _, Result, ensure};

/// What a program took.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// How it ended.
    pub status: ExitStatus,
    /// The most memory that it had at a time, in KiB.
    pub memory: i64,
    /// Its CPU time, in seconds.
    pub cpu: f64,
}

/// Runs a program to its end.
///
/// # Errors
/// If it cannot be started.
pub fn measure(command: &mut Command) -> Result<Measured> {
    let child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
    let pid = libc::pid_t::try_from(child.id())?;
    let mut status = 0;
    // SAFETY: a rusage of zeros is a valid one.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to variables of ours; the child is nobody else's to wait for.
    let waited = unsafe { libc::wait4(pid, &raw mut status, 0, &raw mut usage) };
    ensure!(waited == pid, "{command:?} cannot be waited for");
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    let cpu = seconds(usage.ru_utime) + seconds(usage.ru_stime);
    Ok(Measured { status: ExitStatus::from_raw(status), memory: usage.ru_maxrss, cpu })
}
