//! What processes use.

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

/// The CPU time of a process so far, its threads that have exited included, in seconds.
///
/// # Errors
/// If it is gone.
pub fn cpu_time(pid: u32) -> Result<f64> {
    Ok(cpu_times(pid)?.iter().sum())
}

/// The same in two parts: what it was itself, and what the kernel was for it.
///
/// # Errors
/// If it is gone.
pub fn cpu_times(pid: u32) -> Result<[f64; 2]> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // proc(5): utime and stime are the 14th and 15th field; the 2nd ends with the last parenthesis.
    let fields: Vec<_> = stat.rsplit_once(')').context("no command in stat")?.1.split_whitespace().collect();
    let time = |index: usize| seconds(fields.get(index).context("stat is too short")?);
    Ok([time(11)?, time(12)?])
}

/// The time that the host of a virtual machine has run something else instead of one of its CPUs, in seconds, since it
/// was started. The kernel keeps it out of the CPU time of the process that ran there, and the timer behind the samples
/// does not: of a process there are up to so many seconds of samples more than it has used CPU time.
///
/// # Errors
/// If /proc does not tell.
pub fn stolen() -> Result<f64> {
    Ok(of_all_cpus()?[STEAL])
}

/// How long the machine's CPUs have worked since it was started, in seconds.
///
/// # Errors
/// If /proc does not tell.
pub fn busy() -> Result<f64> {
    const IDLE: usize = 3;
    const WAITING: usize = 4;
    let times = of_all_cpus()?;
    Ok(times[..STEAL].iter().sum::<f64>() - times[IDLE] - times[WAITING])
}

/// The place of the time that the host has taken.
const STEAL: usize = 7;

/// What all CPUs together have done since the machine was started, in seconds.
fn of_all_cpus() -> Result<Vec<f64>> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    // proc(5): the first line is the sum of all CPUs, and steal its 8th figure.
    let times: Vec<_> = stat.split_whitespace().skip(1).take(STEAL + 1).map(seconds).collect::<Result<_>>()?;
    ensure!(times.len() > STEAL, "/proc/stat is too short");
    Ok(times)
}

/// A time as /proc tells it, in seconds.
fn seconds(ticks: &str) -> Result<f64> {
    // SAFETY: sysconf takes a plain integer.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    Ok(ticks.parse::<f64>()? / per_second as f64)
}

/// Waits until a process has used so much more CPU time, in seconds: on a machine that has much else to do that takes
/// longer.
///
/// # Errors
/// If it has exited, or does not get that far.
pub fn let_work(pid: u32, seconds: f64) -> Result<()> {
    const PATIENCE: u64 = 60;
    let (begin, started) = (cpu_time(pid)?, Instant::now());
    while cpu_time(pid)? < begin + seconds {
        ensure!(started.elapsed() < crate::patience(PATIENCE), "process {pid} does not work");
        sleep(Duration::from_millis(10));
    }
    Ok(())
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

/// A process's share of the memory that it uses, where it shares pages with others (`Pss`), in bytes.
///
/// # Errors
/// If it is gone.
pub fn proportional_memory(pid: u32) -> Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"));
    Ok(line.and_then(|line| line.split_whitespace().next()).with_context(|| text.clone())?.parse::<u64>()? << 10)
}

/// What the kernel keeps for a process's BPF maps, in bytes, and how many programs it has loaded.
///
/// # Errors
/// If it is gone.
pub fn bpf(pid: u32) -> Result<(u64, usize)> {
    let (mut maps, mut programs) = (HashMap::new(), 0);
    for entry in std::fs::read_dir(format!("/proc/{pid}/fdinfo"))?.flatten() {
        let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
        programs += usize::from(field("prog_type:").is_some());
        if let (Some(id), Some(size)) = (field("map_id:"), field("memlock:")) {
            maps.insert(id, size);
        }
    }
    Ok((maps.values().sum(), programs))
}

/// What a command has used, from its start to its end.
#[derive(Clone, Copy, Debug)]
pub struct Used {
    /// CPU time in seconds.
    pub cpu: f64,
    /// The largest resident memory that it had, in bytes.
    pub memory: u64,
}

/// Runs a command to its end, with what it prints in the file `output`.
///
/// # Errors
/// If it cannot be run, or fails.
pub fn used_by(command: &mut Command, output: &Path) -> Result<Used> {
    let child = command.stdin(Stdio::null()).stdout(File::create(output)?).spawn()?;
    let pid = libc::pid_t::try_from(child.id())?;
    let mut status = 0;
    // SAFETY: a zeroed rusage is a valid one.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both are places for what the kernel writes, and outlive the call; nobody else waits for this child.
    let ended = unsafe { libc::wait4(pid, &mut status, 0, &mut usage) };
    if ended != pid || status != 0 {
        bail!("{command:?} has failed: status {status:#x}");
    }
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    let memory = u64::try_from(usage.ru_maxrss)? * 1024;
    Ok(Used { cpu: seconds(usage.ru_utime) + seconds(usage.ru_stime), memory })
}
