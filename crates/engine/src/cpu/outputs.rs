//! The outputs of a CPU recording: streams, which take samples as they arrive, and the profile that sinks take.

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

/// All outputs of a recording.
pub struct Outputs {
    /// The samples of each trace, if they are asked for.
    traces: Option<TraceTable>,
    streams: SysprofStreams,
    reports: CpuReports,
    /// The folder that the target works in.
    folder: Option<PathBuf>,
    /// Samples a second.
    rate: u32,
    /// The losses that earlier pieces tell.
    told: SinceThen,
}

impl Outputs {
    /// Opens all of `files`; what is in them stays until [`begin`](Self::begin), and what was not there goes again if that is
    /// never called. `piece` says when they begin, if each piece of a recording has its own.
    ///
    /// # Errors
    /// An I/O error for what cannot be written.
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

    /// Begins the streams: samples will come.
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
        // A group takes the place of the VM.
        self.reports.add(sample, sample.vm.filter(|_| sample.request.group.is_none()).map(Named::vm));
        if let (Some(trace), Some(table)) = (&sample.trace, &mut self.traces) {
            table.add(sample.vm.unwrap_or(0), trace, 1);
        }
        if sample.wait.is_some() {
            // Streams have no room for waits.
            return Ok(());
        }
        // Code outside of any VM counts as C, in the streams' terms.
        self.streams.add(sample.state.unwrap_or(VmState::Cfunc), sample)
    }

    /// The size of the largest stream so far, in bytes.
    pub fn largest_stream(&self) -> u64 {
        self.streams.largest()
    }

    /// Samples of stacks that were too rare for reports to have room for each.
    pub fn folded(&self) -> u64 {
        self.reports.folded()
    }

    /// The reports among them.
    pub fn reports(&mut self) -> &mut CpuReports {
        &mut self.reports
    }

    /// Looks at the process that is recorded.
    pub fn describe(&mut self, process: &Process) {
        self.folder = about_process::folder(process);
        self.reports.describe(process);
    }

    /// Keeps what [`facts`](Self::facts) needs.
    pub fn keep_answer(&mut self) {
        self.reports.keep_answer();
    }

    /// What the samples say, if that was to be kept.
    pub fn facts(&mut self) -> Option<CpuFacts> {
        self.reports.facts()
    }

    /// As [`CpuReports::hottest`].
    pub fn hottest(&self) -> Option<(String, f64)> {
        self.reports.hottest()
    }

    /// Counts the samples of each trace from now on.
    pub fn group_by_trace(&mut self) {
        self.traces = Some(TraceTable::default());
    }

    /// The samples of each trace, if they were counted.
    pub fn traces(&self) -> Option<&TraceTable> {
        self.traces.as_ref()
    }

    /// Writes what there is so far, and returns the paths: reports are rewritten at the end.
    ///
    /// # Errors
    /// An output cannot be written.
    pub fn write_interim(&mut self) -> Result<Vec<PathBuf>, EngineError> {
        self.flush()?;
        let mut paths = self.streams.open_files();
        paths.extend(self.reports.show()?);
        Ok(paths)
    }

    /// Writes streams out as far as they are.
    ///
    /// # Errors
    /// One of them cannot be written.
    pub fn flush(&mut self) -> Result<(), EngineError> {
        self.streams.flush()
    }

    /// A VM is not there any more, and nothing of it will come: ends its streams.
    ///
    /// # Errors
    /// One of them cannot be written.
    pub fn end_vm(&mut self, vm: usize) -> Result<(), EngineError> {
        self.streams.end_vm(vm, &properties(self.rate, self.folder.as_deref(), &[]))
    }

    /// The files that were completed while recording goes on, since the last time it was asked.
    pub fn take_ended(&mut self) -> Vec<PathBuf> {
        self.streams.take_ended()
    }

    /// Ends all files, and begins the next ones, in whose names `piece` is. `lost` is what was lost since recording began.
    ///
    /// # Errors
    /// The next files cannot be opened, then nothing has changed; or one of these not be written.
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
    /// The first output that could not be written; the others are complete all the same.
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

/// The numbers of the run, for whoever reads the stream later.
fn properties(rate: u32, folder: Option<&Path>, lost: &[(&'static str, u64)]) -> Vec<Annotation> {
    let property = |key: &str, value: String| Annotation::Property { key: key.to_owned(), value };
    let mut properties = vec![property("rate", rate.to_string())];
    properties.extend(folder.map(|folder| property("folder", folder.display().to_string())));
    properties.extend(lost.iter().map(|(reason, count)| property(reason, count.to_string())));
    properties
}
