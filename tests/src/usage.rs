//! What processes use.

use anyhow::{Context as _, Result};

/// The CPU time of a process so far, its threads that have exited included, in seconds.
///
/// # Errors
/// If it is gone.
pub fn cpu_time(pid: u32) -> Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // proc(5): utime and stime are the 14th and 15th field; the 2nd ends with the last parenthesis.
    let fields: Vec<_> = stat.rsplit_once(')').context("no command in stat")?.1.split_whitespace().collect();
    let ticks: f64 = [11, 12].iter().filter_map(|&index| fields.get(index)?.parse::<f64>().ok()).sum();
    // SAFETY: sysconf takes a plain integer.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    Ok(ticks / per_second as f64)
}

/// The most memory that a process has had so far, and what it has now, in KiB.
///
/// # Errors
/// If it is gone.
pub fn memory(pid: u32) -> Result<(u64, u64)> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = |key: &str| {
        let value = status.lines().find_map(|line| line.strip_prefix(key)?.trim().strip_suffix(" kB")?.parse().ok());
        value.with_context(|| format!("no {key} in the status of {pid}"))
    };
    Ok((line("VmHWM:")?, line("VmRSS:")?))
}
