//! Recordings of CPU time and memory at once, and whether what they left is whole.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::allocations::Allocations;
use crate::folded::Folded;
use crate::tracer::{Outcome, Tracer, binary, run};
use crate::usage::let_work;

/// A running lj-trace that records both, and the folder for its files.
#[derive(Debug)]
pub struct Profiling {
    folder: tempfile::TempDir,
    /// The running lj-trace.
    pub tracer: Tracer,
}

/// What it left.
#[derive(Debug)]
pub struct Profiles {
    folder: tempfile::TempDir,
    /// How lj-trace ended and what it said.
    pub outcome: Outcome,
}

impl Profiling {
    /// Starts to record a process; lj-trace may not have attached yet when this returns.
    ///
    /// # Errors
    /// If lj-trace cannot be started.
    pub fn start(pid: u32, more: &[&str]) -> Result<Self> {
        Self::start_in(&mut Command::new(binary()), pid, more)
    }

    /// The same by a command that ends with the path of lj-trace, and runs it in some surroundings of its own.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_in(command: &mut Command, pid: u32, more: &[&str]) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        // Programs that allocate all the time are to be recorded to the end.
        command.args(["--pid", &pid.to_string(), "--mode", "all", "--no-limit", "--output"]);
        command.arg(folder.path().join("run.bin"));
        Ok(Self { tracer: Tracer::spawn(command.args(more))?, folder })
    }

    /// Starts to record, and waits until lj-trace has attached.
    ///
    /// # Errors
    /// If it cannot be started, or does not attach.
    pub fn attached(pid: u32, more: &[&str]) -> Result<Self> {
        let mut profiling = Self::start(pid, more)?;
        profiling.tracer.wait_until_attached()?;
        Ok(profiling)
    }

    /// Where the streams are: of CPU time, and of memory.
    pub fn streams(&self) -> [PathBuf; 2] {
        streams(self.folder.path())
    }

    /// Lets the process work for long enough to be seen in both profiles.
    ///
    /// # Errors
    /// If it does not work.
    pub fn let_work(&self, pid: u32) -> Result<()> {
        let_work(pid, 0.2 * crate::slower() as f64)
    }

    /// Stops it as Ctrl-C does, in whatever surroundings it was started; gives what it left.
    ///
    /// # Errors
    /// As [`finish`](Self::finish).
    ///
    /// # Panics
    /// As [`finish`](Self::finish).
    pub fn stop(self) -> Result<Profiles> {
        let own = self.tracer.pid();
        // The command is lj-trace, whose child is its reader of files, or what runs lj-trace as its child.
        let is_lj_trace = std::fs::read_to_string(format!("/proc/{own}/comm"))?.trim() == "lj-trace";
        let children = std::fs::read_to_string(format!("/proc/{own}/task/{own}/children"))?;
        let child = children.split_whitespace().next().filter(|_| !is_lj_trace);
        let pid = child.map_or(Ok(own), str::parse)?;
        // SAFETY: kill touches no memory, and neither our child nor its child is waited for yet.
        let outcome = unsafe { libc::kill(libc::pid_t::try_from(pid)?, libc::SIGINT) };
        ensure!(outcome == 0, "cannot signal {pid}: {}", std::io::Error::last_os_error());
        self.finish()
    }

    /// Ends it at once, without any chance to write what it has; gives what it left.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn kill(self) -> Result<Profiles> {
        self.tracer.signal(libc::SIGKILL)?;
        Ok(Profiles { outcome: self.tracer.wait()?, folder: self.folder })
    }

    /// Waits for its end, which has to be a good one; gives what it left.
    ///
    /// # Errors
    /// If it does not end.
    ///
    /// # Panics
    /// If it fails.
    pub fn finish(self) -> Result<Profiles> {
        let outcome = self.tracer.wait()?;
        outcome.expect(0, &[]);
        Ok(Profiles { folder: self.folder, outcome })
    }
}

impl Profiles {
    /// Where the streams are: of CPU time, and of memory.
    pub fn streams(&self) -> [PathBuf; 2] {
        streams(self.folder.path())
    }

    /// The samples; the stream has to be whole.
    ///
    /// # Errors
    /// If it is not.
    pub fn cpu(&self) -> Result<Folded> {
        let [stream, _] = self.streams();
        whole(&stream)?;
        folded(&stream)
    }

    /// The events; the stream has to be whole.
    ///
    /// # Errors
    /// If it is not.
    pub fn memory(&self) -> Result<Allocations> {
        let [_, stream] = self.streams();
        whole(&stream)?;
        let events = Allocations::read(&stream)?;
        events.check_addresses()?;
        Ok(events)
    }

    /// Both have to be whole, and show that `serve` of `service.lua` ran.
    ///
    /// # Errors
    /// If they do not.
    pub fn show_service(&self) -> Result<()> {
        let (cpu, memory) = (self.cpu()?, self.memory()?);
        let serving = cpu.samples_where(|stack| stack.frames.iter().any(|frame| frame.starts_with("serve@")));
        ensure!(serving > 0, "nothing in serve: {cpu:#?}");
        // That has a symbol, which is in the file that the program was started from.
        let named = cpu.samples_where(|stack| stack.frames.iter().any(|frame| frame == "lua_pcall"));
        ensure!(named > 0, "no lua_pcall: {cpu:#?}");
        ensure!(memory.events.len() > 100, "{} events: {}", memory.events.len(), self.outcome.stderr);
        Ok(())
    }
}

fn streams(folder: &Path) -> [PathBuf; 2] {
    ["sysprof", "memprof"].map(|kind| folder.join(format!("run.{kind}.bin")))
}

/// A stream of either kind ends with its epilogue (`LJP_EPILOGUE_HEADER`, `LJM_EPILOGUE_HEADER`), and nothing is missing
/// to who reads it.
///
/// # Errors
/// If it is not so.
pub fn whole(stream: &Path) -> Result<()> {
    let bytes = std::fs::read(stream).with_context(|| format!("no stream {}", stream.display()))?;
    ensure!(bytes.last() == Some(&0x80), "{} ends with {:?}", stream.display(), bytes.last());
    let report = run(["report".as_ref(), stream.as_os_str()])?;
    ensure!(report.status.success() && report.stderr.is_empty(), "{}: {report:#?}", stream.display());
    Ok(())
}

/// Who reads a stream is told that its end is missing, and gets what was before; gives that, as folded stacks.
///
/// # Errors
/// If it is not so.
pub fn cut_off(stream: &Path) -> Result<Folded> {
    let report = run(["report".as_ref(), stream.as_os_str()])?;
    let is_said = report.status.success() && report.stderr.contains("the stream is cut off at byte");
    ensure!(is_said, "{}: {report:#?}", stream.display());
    folded(stream)
}

fn folded(stream: &Path) -> Result<Folded> {
    let report = run(["report".as_ref(), stream.as_os_str(), "--format".as_ref(), "folded".as_ref()])?;
    ensure!(report.status.success(), "{}: {report:#?}", stream.display());
    Folded::parse(&report.stdout)
}
