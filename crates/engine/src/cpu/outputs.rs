//! The outputs of a CPU recording: streams, which get samples as they arrive, and the profile for the sinks.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use lj_trace_process::Process;
use lj_trace_profile::answer::CpuFacts;
use lj_trace_profile::model::Recorded;
use lj_trace_profile::{Frame as Named, ProfileKind};
use lj_trace_streams::{Annotation, VmState};

use super::about_process;
use super::reports::CpuReports;
use super::streams::{JitSamples, SysprofStreams};
use super::summary::Summary;
use crate::error::EngineError;
use crate::output::OutputFiles;
use crate::output::pieces::SinceThen;
use crate::resolve::{Resolved, TraceTable};

/// All outputs of a CPU recording.
pub struct Outputs {
    /// The samples per trace, if they are counted.
    traces: Option<TraceTable>,
    streams: SysprofStreams,
    reports: CpuReports,
    /// The current folder of the target.
    folder: Option<PathBuf>,
    /// The sampling rate in samples per second.
    rate: u32,
    /// The losses that earlier pieces have reported.
    told: SinceThen,
}

impl Outputs {
    /// Opens all of `files`. Existing contents stay until [`begin`](Self::begin), and new files are removed if that is
    /// never called. If the recording is written in pieces, `piece` is the time at which the first piece begins.
    ///
    /// # Errors
    /// An I/O error for an output that cannot be written.
    pub fn open(
        files: OutputFiles,
        title: &str,
        (kind, rate): (ProfileKind, u32),
        vms: usize,
        jit_samples: JitSamples,
        piece: Option<&str>,
    ) -> Result<Self, EngineError> {
        let OutputFiles { streams, reports } = files;
        let reports = CpuReports::open(&reports, title, (kind, rate), piece)?;
        let streams = SysprofStreams::open(streams, vms, jit_samples, piece)?;
        Ok(Self { traces: None, streams, reports, folder: None, rate, told: SinceThen::default() })
    }

    /// Begins the streams: samples come next.
    ///
    /// # Errors
    /// A stream cannot be written.
    pub fn begin(&mut self) -> Result<(), EngineError> {
        self.streams.begin()
    }

    /// Adds a sample to all outputs.
    ///
    /// # Errors
    /// A stream cannot be written any more.
    pub fn add(&mut self, sample: &Resolved) -> Result<(), EngineError> {
        // A group replaces the VM.
        self.reports.add(sample, sample.vm.filter(|_| sample.request.group.is_none()).map(Named::vm));
        if let (Some(trace), Some(table)) = (&sample.trace, &mut self.traces) {
            table.add(sample.vm.unwrap_or(0), trace, 1);
        }
        if sample.wait.is_some() {
            // Streams have no room for waits.
            return Ok(());
        }
        // Code outside of any VM counts as a C function in streams.
        self.streams.add(sample.state.unwrap_or(VmState::Cfunc), sample)
    }

    /// The size of the largest stream so far, in bytes.
    pub fn largest_stream(&self) -> u64 {
        self.streams.largest()
    }

    /// The number of samples whose stacks were too rare to have entries in reports.
    pub fn folded(&self) -> u64 {
        self.reports.folded()
    }

    /// The reports.
    pub fn reports(&mut self) -> &mut CpuReports {
        &mut self.reports
    }

    /// Reads facts about the recorded process.
    pub fn describe(&mut self, process: &Process) {
        self.folder = about_process::folder(process);
        self.reports.describe(process);
    }

    /// Keeps the data for [`facts`](Self::facts).
    pub fn keep_answer(&mut self) {
        self.reports.keep_answer();
    }

    /// The facts of the samples, if they were kept.
    pub fn facts(&mut self) -> Option<CpuFacts> {
        self.reports.facts()
    }

    /// The same as [`CpuReports::hottest`].
    pub fn hottest(&self) -> Option<(String, f64)> {
        self.reports.hottest()
    }

    /// Counts the samples of each trace from now on.
    pub fn group_by_trace(&mut self) {
        self.traces = Some(TraceTable::default());
    }

    /// The samples per trace, if they are counted.
    pub fn traces(&self) -> Option<&TraceTable> {
        self.traces.as_ref()
    }

    /// Writes the outputs so far, and returns their paths. Reports are written again at the end.
    ///
    /// # Errors
    /// An output cannot be written.
    pub fn write_interim(&mut self) -> Result<Vec<PathBuf>, EngineError> {
        self.flush()?;
        let mut paths = self.streams.open_files();
        paths.extend(self.reports.show()?);
        Ok(paths)
    }

    /// Writes the buffered data of the streams to their files.
    ///
    /// # Errors
    /// A stream cannot be written.
    pub fn flush(&mut self) -> Result<(), EngineError> {
        self.streams.flush()
    }

    /// Ends the streams of a VM that is gone and has no further samples.
    ///
    /// # Errors
    /// A stream cannot be written.
    pub fn end_vm(&mut self, vm: usize) -> Result<(), EngineError> {
        self.streams.end_vm(vm, &properties(self.rate, self.folder.as_deref(), &[]))
    }

    /// The files that were completed since the last call, while recording goes on.
    pub fn take_ended(&mut self) -> Vec<PathBuf> {
        self.streams.take_ended()
    }

    /// Ends all files, and begins the next ones, with `piece` in their names. `lost` are the losses since the recording
    /// began.
    ///
    /// # Errors
    /// The next files cannot be opened; then nothing has changed. Or a current file cannot be written.
    pub fn rotate(&mut self, piece: &str, lost: &[(&'static str, u64)]) -> Result<Vec<PathBuf>, EngineError> {
        let next = self.streams.prepare(piece)?;
        self.reports.prepare(piece)?;
        let lost = self.told.take(lost);
        let mut written = self.reports.end_interval(&lost)?;
        written.extend(self.streams.end(&properties(self.rate, self.folder.as_deref(), &lost))?);
        self.streams.go_on(next)?;
        Ok(written)
    }

    /// Ends all outputs; returns their paths.
    ///
    /// # Errors
    /// The error of the first output that could not be written. The others are complete all the same.
    pub fn finish(mut self, summary: &Summary) -> Result<Vec<PathBuf>, EngineError> {
        let lost = self.told.take(&summary.lost);
        let mut properties = properties(summary.rate, self.folder.as_deref(), &lost);
        let began = SystemTime::now().checked_sub(summary.duration);
        properties.extend(began.map(|began| {
            let [began, duration] = Recorded { began, duration: summary.duration }.nanoseconds();
            Annotation::Property { key: "recorded".to_owned(), value: format!("{began} {duration}") }
        }));
        let streams = self.streams.end(&properties);
        let reports = self.reports.finish(&lost);
        let mut paths = streams?;
        paths.extend(reports?);
        paths.retain(|path| path != Path::new("-"));
        Ok(paths)
    }
}

/// The facts of the run, for readers of the stream.
fn properties(rate: u32, folder: Option<&Path>, lost: &[(&'static str, u64)]) -> Vec<Annotation> {
    let property = |key: &str, value: String| Annotation::Property { key: key.to_owned(), value };
    let mut properties = vec![property("rate", rate.to_string())];
    properties.extend(folder.map(|folder| property("folder", folder.display().to_string())));
    properties.extend(lost.iter().map(|(reason, count)| property(reason, count.to_string())));
    properties
}
