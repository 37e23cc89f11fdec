//! The means of benchmarks: a workload with a fixed amount of work, the resources that a profiler used, and medians
//! with their spread.

use std::fmt;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::mem::MaybeUninit;
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::paths;
use crate::run::Guarded;

/// A workload of `tests/lua`, started and waiting for its start signal.
pub struct Workload {
    child: Guarded,
    stdout: BufReader<ChildStdout>,
}

/// The time that the workload took, as it measured itself, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Times {
    /// CPU time.
    pub cpu: f64,
    /// Elapsed time.
    pub wall: f64,
}

impl Workload {
    /// Starts `script` with its arguments, and waits until it is ready. `command` is a LuaJIT, or a launcher followed
    /// by a LuaJIT.
    pub fn start(command: &[&str], script: &str, args: &[&str]) -> Result<Self> {
        let [program, before @ ..] = command else { bail!("no program to run the workload on") };
        let mut command = Command::new(program);
        command.args(before).arg(script).args(args).current_dir(paths::lua());
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = Guarded(child.with_context(|| format!("cannot start {program}"))?);
        let stdout = child.0.stdout.take().context("the workload's output is not piped")?;
        let mut workload = Self { child, stdout: BufReader::new(stdout) };
        match workload.line()?.as_str() {
            "ready" => Ok(workload),
            other => bail!("the workload said {other:?} instead of \"ready\""),
        }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.0.id()
    }

    /// Lets the workload do its work, and returns how long that took. The workload then exits, but is not waited for.
    pub fn work(&mut self) -> Result<Times> {
        let stdin = self.child.0.stdin.as_mut().context("the workload's input is not piped")?;
        stdin.write_all(b"go\n")?;
        let line = self.line()?;
        parse_times(&line).with_context(|| format!("the workload said {line:?} instead of its times"))
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.stdout.read_line(&mut line).context("cannot read the workload's output")?;
        Ok(line.trim_end().to_owned())
    }
}

fn parse_times(line: &str) -> Option<Times> {
    let (cpu, wall) = line.strip_prefix("cpu ")?.split_once(" wall ")?;
    Some(Times { cpu: cpu.parse().ok()?, wall: wall.parse().ok()? })
}

/// The resources that a process has used in its life.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// CPU time in seconds, in user space and in the kernel.
    pub cpu: f64,
    /// Its peak resident memory, in MiB.
    pub peak_memory: f64,
}

/// Waits for a child, and returns the resources that it used. Fails if the child did.
pub fn wait(child: &mut Child) -> Result<Usage> {
    let pid = libc::pid_t::try_from(child.id()).context("a process id beyond pid_t")?;
    let mut status = 0;
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: both pointers are to live, writable variables of the types that wait4 fills; the pid is that of a
    // child that nobody has waited for (`Child` does so only when asked).
    let waited = unsafe { libc::wait4(pid, &mut status, 0, usage.as_mut_ptr()) };
    if waited != pid {
        return Err(io::Error::last_os_error()).context("cannot wait for the profiler");
    }
    // SAFETY: it was zeroed, which is a valid `rusage`, and wait4 has filled it since.
    let usage = unsafe { usage.assume_init() };
    let by_interrupt = libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGINT;
    // perf exits as if the SIGINT that stopped it had killed it.
    let exited_well = libc::WIFEXITED(status) && [0, 128 + libc::SIGINT].contains(&libc::WEXITSTATUS(status));
    if !exited_well && !by_interrupt {
        bail!("the profiler failed: wait status {status:#x}");
    }
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    // Linux gives ru_maxrss in KiB.
    Ok(Usage { cpu: seconds(usage.ru_utime) + seconds(usage.ru_stime), peak_memory: usage.ru_maxrss as f64 / 1024.0 })
}

/// The CPU time that a running process has used so far, in seconds; 0 if it is gone.
///
/// Unlike the clock ticks of `/proc/PID/stat`, the scheduler's statistics count nanoseconds.
pub fn cpu_time_so_far(pid: u32) -> f64 {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let nanoseconds = threads.filter_map(|thread| {
        let statistics = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        statistics.split(' ').next()?.parse::<f64>().ok()
    });
    nanoseconds.sum::<f64>() / 1e9
}

/// Repeated measurements of one thing.
#[derive(Clone, Debug, Default)]
pub struct Series(Vec<f64>);

impl Series {
    /// Adds a measurement.
    pub fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// The value at a fraction of the way from the least to the greatest; 0 if there are no values.
    pub fn quantile(&self, fraction: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let place = fraction * sorted.len().saturating_sub(1) as f64;
        let (below, above) = (place.floor() as usize, place.ceil() as usize);
        match (sorted.get(below), sorted.get(above)) {
            (Some(low), Some(high)) => low + (high - low) * place.fract(),
            _ => 0.0,
        }
    }
}

/// The median, then the quartiles: `1.0023 [1.0011 .. 1.0040]`.
impl fmt::Display for Series {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let precision = out.precision().unwrap_or(3);
        let [low, median, high] = [0.25, 0.5, 0.75].map(|fraction| self.quantile(fraction));
        write!(out, "{median:.precision$} [{low:.precision$} .. {high:.precision$}]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_between_measurements() {
        let mut series = Series::default();
        assert_eq!(series.quantile(0.5), 0.0);
        [4.0, 1.0, 3.0, 2.0].into_iter().for_each(|value| series.push(value));
        assert_eq!((series.quantile(0.0), series.quantile(0.5), series.quantile(1.0)), (1.0, 2.5, 4.0));
        assert_eq!(format!("{series:.2}"), "2.50 [1.75 .. 3.25]");
    }

    #[test]
    fn reads_the_workloads_times() {
        assert_eq!(parse_times("cpu 0.5 wall 0.75"), Some(Times { cpu: 0.5, wall: 0.75 }));
        assert_eq!(parse_times("cpu 0.5"), None);
    }

    #[test]
    fn a_childs_usage_is_its_own() {
        let mut child =
            Command::new("sh").args(["-c", "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done"]).spawn().unwrap();
        assert_eq!(cpu_time_so_far(u32::MAX), 0.0);
        let usage = wait(&mut child).unwrap();
        assert!(usage.cpu > 0.0 && usage.cpu < 10.0 && usage.peak_memory > 0.1, "{usage:?}");
        assert!(wait(&mut Command::new("false").spawn().unwrap()).is_err());
    }
}
