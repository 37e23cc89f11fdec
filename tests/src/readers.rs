//! The process of lj-trace's that reads files which others can have written.

use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lj_trace_process::sandbox::{ARGUMENT, Question};
use lj_trace_process::sockets;

use crate::tracer::binary;

/// How a reader is called (`/proc/PID/comm`).
pub const NAME: &str = "lj-trace-reader";

/// A reader that is asked without lj-trace.
pub struct Reader {
    process: Child,
    socket: UnixStream,
}

impl Reader {
    /// Starts one, and waits until it has given up what it can.
    ///
    /// # Errors
    /// It does not start.
    pub fn start() -> Result<Self> {
        let (own, others) = UnixStream::pair()?;
        let mut command = Command::new(binary());
        command.arg(ARGUMENT).stdin(Stdio::from(std::os::fd::OwnedFd::from(others))).stdout(Stdio::null());
        let process = command.stderr(Stdio::null()).spawn()?;
        let reader = Self { process, socket: own };
        let began = Instant::now();
        while !reader.status()?.contains("Seccomp:\t2") {
            ensure!(began.elapsed() < crate::patience(10), "it is not confined");
            thread::sleep(Duration::from_millis(1));
        }
        Ok(reader)
    }

    /// What the kernel says of it.
    ///
    /// # Errors
    /// It has ended.
    pub fn status(&self) -> Result<String> {
        Ok(fs::read_to_string(format!("/proc/{}/status", self.process.id()))?)
    }

    /// The most memory that it had at a time, in KiB.
    ///
    /// # Errors
    /// It has ended.
    pub fn memory(&self) -> Result<i64> {
        peak(self.process.id()).context("it has ended")
    }

    /// Asks a question about a file; the length of its answer, or none if it has ended instead, or has none in this time.
    ///
    /// # Errors
    /// It cannot be asked.
    pub fn ask(&mut self, file: &File, question: Question, address: u64, time: Duration) -> Result<Option<usize>> {
        use std::io::Read as _;
        sockets::send(self.socket.as_raw_fd(), &[question as u64, 1, address], &[file.as_raw_fd()])?;
        self.socket.set_read_timeout(Some(time))?;
        let mut head = [0; 9];
        if self.socket.read_exact(&mut head).is_err() {
            return Ok(None);
        }
        let length = u64::from_le_bytes(*head.first_chunk().context("nine bytes")?);
        let mut answer = Vec::new();
        (&self.socket).take(length).read_to_end(&mut answer)?;
        Ok((answer.len() as u64 == length).then_some(answer.len()))
    }

    /// Ends it, if it has not ended by itself; how it ended.
    ///
    /// # Errors
    /// It cannot be waited for.
    pub fn end(mut self) -> Result<ExitStatus> {
        self.process.kill()?;
        Ok(self.process.wait()?)
    }
}

/// The most memory that a process had at a time, in KiB; none if it has ended.
pub fn peak(pid: u32) -> Option<i64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?.trim().strip_suffix(" kB")?.parse().ok()
}

/// The readers that a process has started.
pub fn of(pid: u32) -> Vec<u32> {
    children(pid)
        .into_iter()
        .filter(|child| fs::read_to_string(format!("/proc/{child}/comm")).is_ok_and(|name| name.trim_end() == NAME))
        .collect()
}

/// The children of all threads of a process.
fn children(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let of_thread = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("children")).unwrap_or_default();
    threads
        .flat_map(|thread| of_thread(thread).split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// How a run of lj-trace went.
#[derive(Debug)]
pub struct Run {
    /// How it ended.
    pub status: ExitStatus,
    /// How long it took.
    pub took: Duration,
    /// The most memory that it and its readers had at a time, in KiB: the sum of the peaks of those that were there together.
    pub memory: i64,
    /// How many readers there were.
    pub readers: usize,
    /// What it said.
    pub stderr: String,
}

/// Runs lj-trace to its end, and looks at it all the time; `with_reader` is called with each reader that appears.
///
/// # Errors
/// It cannot be started.
pub fn run(arguments: &[&str], mut with_reader: impl FnMut(u32)) -> Result<Run> {
    let folder = tempfile::tempdir()?;
    let said = folder.path().join("stderr");
    let began = Instant::now();
    let mut command = Command::new(binary());
    let mut child = command.args(arguments).stdout(Stdio::null()).stderr(File::create(&said)?).spawn()?;
    let (mut memory, mut seen) = (0, Vec::new());
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        let readers = of(child.id());
        let sum = readers.iter().chain([&child.id()]).filter_map(|&pid| peak(pid)).sum();
        memory = memory.max(sum);
        for reader in readers {
            if !seen.contains(&reader) {
                seen.push(reader);
                with_reader(reader);
            }
        }
        thread::sleep(Duration::from_millis(2));
    };
    let stderr = fs::read_to_string(&said)?;
    Ok(Run { status, took: began.elapsed(), memory, readers: seen.len(), stderr })
}
