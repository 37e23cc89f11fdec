//! What [`off_cpu.lua`](WAITS) measured of its own waits, and recordings of time off the CPU.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use tempfile::TempDir;

use crate::folded::Folded;
use crate::tracer::{Outcome, Tracer};
use crate::workload::Workload;

/// The name of the workload that waits in several ways.
pub const WAITS: &str = "off_cpu.lua";

/// A way of waiting, with times in seconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Way {
    /// The name of its function.
    pub name: String,
    /// The line where that is defined.
    pub line: u32,
    /// For how long it waited altogether.
    pub all: f64,
    /// For how long of that in waits below the threshold.
    pub short: f64,
    /// How often it waited.
    pub count: u32,
}

/// What the workload measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Waits {
    /// All ways.
    pub ways: Vec<Way>,
    /// The CPU time of its work between, in seconds.
    pub spin: f64,
    /// The time that passed, in seconds.
    pub total: f64,
}

impl Waits {
    /// Has it wait for so many seconds, and work between for so many microseconds each time.
    ///
    /// # Errors
    /// If it ends, or reports something that is not understood.
    pub fn measure(workload: &mut Workload, seconds: f64, spin: u32) -> Result<Self> {
        workload.tell(&format!("{seconds} {spin}"))?;
        let mut waits = Self::default();
        for line in workload.report()? {
            waits.add(&line).with_context(|| format!("the workload reported {line:?}"))?;
        }
        Ok(waits)
    }

    /// All waits, in seconds.
    pub fn waited(&self) -> f64 {
        self.ways.iter().map(|way| way.all).sum()
    }

    fn add(&mut self, line: &str) -> Option<()> {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["wait", name, line, all, short, count] => self.ways.push(Way {
                name: name.to_owned(),
                line: line.parse().ok()?,
                all: all.parse().ok()?,
                short: short.parse().ok()?,
                count: count.parse().ok()?,
            }),
            ["spin", seconds] => self.spin = seconds.parse().ok()?,
            ["total", seconds] => self.total = seconds.parse().ok()?,
            _ => return None,
        }
        Some(())
    }
}

/// A recording of time off the CPU.
pub struct OffCpuRun {
    tracer: Tracer,
    folder: TempDir,
}

/// What one has left.
pub struct OffCpuRecorded {
    /// How it ended.
    pub outcome: Outcome,
    /// The stacks, in nanoseconds.
    pub folded: Folded,
    /// The folder of its files: `profile.` and each ending.
    pub folder: TempDir,
}

impl OffCpuRun {
    /// Attaches to a process.
    ///
    /// # Errors
    /// If lj-trace does not.
    pub fn attach(pid: u32, mode: &str, endings: &[&str], more: &[&str]) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut arguments: Vec<String> = ["--pid", &pid.to_string(), "--mode", mode].map(str::to_owned).into();
        for ending in ["folded"].iter().chain(endings) {
            arguments.extend(["--output".into(), path(&folder, ending).display().to_string()]);
        }
        arguments.extend(more.iter().map(|&argument| argument.to_owned()));
        let mut tracer = Tracer::start(arguments)?;
        tracer.wait_until_attached()?;
        Ok(Self { tracer, folder })
    }

    /// Stops it as Ctrl-C does.
    ///
    /// # Errors
    /// If it does not end, or has left no stacks.
    ///
    /// # Panics
    /// If it fails.
    pub fn stop(self) -> Result<OffCpuRecorded> {
        self.tracer.signal(libc::SIGINT)?;
        self.finish()
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// As [`Self::stop`].
    ///
    /// # Panics
    /// As [`Self::stop`].
    pub fn finish(self) -> Result<OffCpuRecorded> {
        let outcome = self.tracer.wait()?;
        outcome.expect(0, &[]);
        let folded = Folded::parse(&std::fs::read_to_string(path(&self.folder, "folded"))?)?;
        Ok(OffCpuRecorded { outcome, folded, folder: self.folder })
    }
}

impl OffCpuRecorded {
    /// The file with this ending.
    pub fn file(&self, ending: &str) -> PathBuf {
        path(&self.folder, ending)
    }

    /// Seconds of stacks with a frame that begins so.
    pub fn seconds_with(&self, beginning: &str) -> f64 {
        let has = |frames: &[String]| frames.iter().any(|frame| frame.starts_with(beginning));
        self.folded.samples_where(|stack| has(&stack.frames)) as f64 / 1e9
    }

    /// Seconds of all stacks.
    pub fn seconds(&self) -> f64 {
        self.folded.samples() as f64 / 1e9
    }

    /// Seconds of which lj-trace says that it does not know whether threads waited: some kernels run no BPF programs while a
    /// process that they hide is the current one.
    pub fn unseen(&self) -> f64 {
        let lines =
            self.outcome.stderr.lines().filter_map(|line| line.strip_prefix("LOST: ")?.split_once(" s not known"));
        lines.filter_map(|(seconds, _)| seconds.parse::<f64>().ok()).sum()
    }

    /// Whether it says that it lost something else.
    pub fn has_lost(&self) -> bool {
        self.outcome.stderr.lines().any(|line| line.contains("LOST") && !line.contains(" s not known to be waits"))
    }

    /// Seconds off the CPU of all stacks.
    pub fn seconds_off(&self) -> f64 {
        self.seconds_with("[blocked: ") + self.seconds_with("[waiting for a CPU")
    }
}

fn path(folder: &TempDir, ending: &str) -> PathBuf {
    folder.path().join(format!("profile.{ending}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_report() {
        let mut waits = Waits::default();
        for line in ["wait sleeping 12 0.5 0.25 7", "spin 0.125", "total 2"] {
            waits.add(line).unwrap();
        }
        assert_eq!((waits.waited(), waits.spin, waits.total, waits.ways[0].line), (0.5, 0.125, 2.0, 12));
        assert_eq!(waits.add("wait sleeping"), None);
    }
}
