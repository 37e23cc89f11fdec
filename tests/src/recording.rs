//! Recordings of a workload, into a stream and folded stacks at once.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::folded::Folded;
use crate::tracer::{Outcome, Tracer, run};
use crate::workload::Workload;

/// A running `lj-trace` that records a workload, and the folder for its files.
#[derive(Debug)]
pub struct Recording {
    folder: tempfile::TempDir,
    /// The running lj-trace.
    pub tracer: Tracer,
}

/// What a recording left: a stream and folded stacks of the same samples.
#[derive(Debug)]
pub struct Recorded {
    folder: tempfile::TempDir,
    /// How lj-trace ended and what it said.
    pub outcome: Outcome,
    /// The samples.
    pub folded: Folded,
}

impl Recording {
    /// Starts to record; lj-trace may not have attached yet when this returns.
    ///
    /// # Errors
    /// If lj-trace cannot be started.
    pub fn start(workload: &Workload, more: &[&str]) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut arguments = vec!["--pid".into(), workload.pid().to_string()];
        for output in [STREAM, FOLDED] {
            arguments.extend(["--output".into(), folder.path().join(output).to_string_lossy().into_owned()]);
        }
        arguments.extend(more.iter().map(|&argument| argument.to_owned()));
        Ok(Self { tracer: Tracer::start(arguments)?, folder })
    }

    /// Starts to record, and waits until lj-trace has attached.
    ///
    /// # Errors
    /// If it cannot be started, or does not attach.
    pub fn attached(workload: &Workload, more: &[&str]) -> Result<Self> {
        let mut recording = Self::start(workload, more)?;
        recording.tracer.wait_until_attached()?;
        Ok(recording)
    }

    /// lj-trace's own process.
    pub fn pid(&self) -> u32 {
        self.tracer.pid()
    }

    /// The file of the stream.
    pub fn stream(&self) -> PathBuf {
        self.folder.path().join(STREAM)
    }

    /// The file of the folded stacks.
    pub fn folded(&self) -> PathBuf {
        self.folder.path().join(FOLDED)
    }

    /// Stops lj-trace as Ctrl-C does, and reads what it left.
    ///
    /// # Errors
    /// As [`finish`](Self::finish).
    pub fn stop(self) -> Result<Recorded> {
        self.tracer.signal(libc::SIGINT)?;
        self.finish()
    }

    /// Waits for lj-trace's end, and reads what it left.
    ///
    /// # Errors
    /// If it does not end, or its files cannot be read.
    ///
    /// # Panics
    /// If it fails.
    pub fn finish(self) -> Result<Recorded> {
        let outcome = self.tracer.wait()?;
        outcome.expect(0, &[]);
        let folded = std::fs::read_to_string(self.folder.path().join(FOLDED))?;
        Ok(Recorded { folder: self.folder, outcome, folded: Folded::parse(&folded)? })
    }
}

impl Recorded {
    /// How many samples were taken, at least: where the rate was lowered, each counts as several.
    pub fn taken(&self) -> f64 {
        self.folded.samples() as f64 / self.outcome.weight()
    }

    /// The stream's bytes.
    ///
    /// # Errors
    /// If there is none.
    pub fn stream(&self) -> Result<Vec<u8>> {
        Ok(std::fs::read(self.folder.path().join(STREAM))?)
    }

    /// The samples as `lj-trace report` reads them from the stream.
    ///
    /// # Errors
    /// If they are no folded stacks.
    ///
    /// # Panics
    /// If it fails.
    pub fn folded_of_stream(&self) -> Result<Folded> {
        folded_of(&self.folder.path().join(STREAM))
    }

    /// The samples of the VM with this number, of several, from its stream.
    ///
    /// # Errors
    /// If it has none.
    ///
    /// # Panics
    /// If it cannot be read.
    pub fn folded_of_vm(&self, number: usize) -> Result<Folded> {
        folded_of(&self.folder.path().join(STREAM.replace('.', &format!("-{number}."))))
    }

    /// The share, in percent, that the summary gives for `what`.
    ///
    /// # Errors
    /// If the summary has no line `what  NUMBER (PERCENT%)`.
    pub fn share(&self, what: &str) -> Result<f64> {
        self.outcome.share(what)
    }
}

/// The samples of a stream, as `lj-trace report` reads them.
fn folded_of(stream: &Path) -> Result<Folded> {
    let report = run(["report", &stream.to_string_lossy(), "--format", "folded"])?;
    report.expect(0, &[]);
    Folded::parse(&report.stdout)
}

const STREAM: &str = "profile.bin";
const FOLDED: &str = "profile.folded";
