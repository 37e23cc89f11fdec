//! Reports of CPU time: what people look at, over all VMs of one process, or of several processes.

use std::path::{Path, PathBuf};

use lj_trace_process::Process;
use lj_trace_profile::model::{Labels, labels::Thread};
use lj_trace_profile::profile::SampleInfo;
use lj_trace_profile::{CpuProfile, Format, Frame as Named, Profile as _};
use lj_trace_streams::VmState;

use super::about_process;
use crate::error::EngineError;
use crate::output::ReportFile;
use crate::output::pieces::of_piece;
use crate::resolve::Resolved;

/// Files that are written at the end, and the profile that goes into them.
pub struct CpuReports {
    profile: CpuProfile,
    files: Vec<ReportFile>,
    /// The same files, before it is put into their names when they begin.
    names: Vec<(Format, PathBuf)>,
    /// Samples of stacks that were too rare to have room for each, in the pieces that are written.
    folded: u64,
}

impl CpuReports {
    /// Opens the files. `piece` says when they begin, if each piece of a recording has its own.
    ///
    /// # Errors
    /// One of them cannot be written.
    pub fn open(names: &[(Format, PathBuf)], title: &str, rate: u32, piece: Option<&str>) -> Result<Self, EngineError> {
        let mut profile = CpuProfile::new(title);
        profile.rate = Some(rate);
        if names.iter().any(|(format, _)| format.shows_time()) {
            profile.keep_times();
        }
        Ok(Self { profile, files: open_files(names, piece)?, names: names.to_vec(), folded: 0 })
    }

    /// Writes the files, and begins the next ones with an empty profile; returns the paths of what was written.
    ///
    /// # Errors
    /// The next files cannot be opened, or these not be written. What was recorded so far is kept.
    pub fn rotate(&mut self, piece: &str, lost: &[(&'static str, u64)]) -> Result<Vec<PathBuf>, EngineError> {
        let next = open_files(&self.names, Some(piece))?;
        lost.iter().for_each(|(reason, count)| self.profile.lose(reason, *count));
        self.files.iter().try_for_each(|file| file.write(&self.profile))?;
        self.folded += self.profile.folded();
        self.profile.begin_anew();
        let written = std::mem::replace(&mut self.files, next);
        Ok(written.into_iter().map(|file| file.path).collect())
    }

    /// Looks at the process that is recorded, or at the first of several.
    pub fn describe(&mut self, process: &Process) {
        if self.files.is_empty() || self.profile.pid.is_some() {
            return;
        }
        self.profile.pid = Some(process.pid());
        self.profile.sources = about_process::source_code(process);
        self.profile.modules = about_process::native_modules(process);
        self.profile.started_now();
    }

    /// Looks again at the libraries of a process: some may have been loaded since.
    pub fn add_modules(&mut self, process: &Process) {
        if !self.files.is_empty() {
            self.profile.modules.extend(about_process::native_modules(process));
        }
    }

    /// Whether some format shows how memory changes over time.
    pub fn shows_time(&self) -> bool {
        self.profile.timeline().is_some()
    }

    /// Adds the sizes of the heap and of the process, in bytes, as they are now.
    pub fn measure_memory(&mut self, heap: Option<u64>, resident: Option<u64>) {
        let now = about_process::now();
        for (name, bytes) in [("GC heap", heap), ("Resident memory", resident)] {
            if let Some(bytes) = bytes {
                self.profile.count_bytes(name, now, bytes);
            }
        }
    }

    /// Adds a sample. `root` is what it belongs to, where there may be several of that.
    pub fn add(&mut self, sample: &Resolved, root: Option<Named>) {
        if self.files.is_empty() {
            return;
        }
        self.profile.add_sample(info(sample, [1, 0]), rooted(sample, root));
        self.profile.keep_within(STACKS);
    }

    /// Samples of stacks that were too rare to have room for each.
    pub fn folded(&self) -> u64 {
        self.folded + self.profile.folded()
    }

    /// Writes what there is so far, but on standard output.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn write_interim(&self) -> Result<(), EngineError> {
        let mut files = self.files.iter().filter(|file| file.path != Path::new("-"));
        files.try_for_each(|file| file.write(&self.profile))
    }

    /// Writes all files; returns their paths. `lost` are numbers of samples that never arrived, by reason.
    ///
    /// # Errors
    /// The first file that could not be written; the others are written all the same.
    pub fn finish(mut self, lost: &[(&'static str, u64)]) -> Result<Vec<PathBuf>, EngineError> {
        lost.iter().for_each(|(reason, count)| self.profile.lose(reason, *count));
        let written: Vec<_> = self.files.iter().map(|file| file.write(&self.profile)).collect();
        written.into_iter().collect::<Result<(), _>>()?;
        Ok(self.files.into_iter().map(|file| file.path).collect())
    }
}

fn open_files(names: &[(Format, PathBuf)], piece: Option<&str>) -> Result<Vec<ReportFile>, EngineError> {
    names.iter().map(|(format, path)| ReportFile::open(*format, &of_piece(path, piece))).collect()
}

/// Bytes of memory for stacks: for some thirty thousand that are thirty frames deep.
pub(crate) const STACKS: usize = 16 << 20;

/// What is known of a sample besides its frames.
pub(crate) fn info(sample: &Resolved, weights: [u64; 2]) -> SampleInfo {
    let thread = Thread { tid: sample.tid, name: sample.thread_name.clone() };
    let trace = sample.trace.as_ref().map(|trace| u64::from(trace.number()));
    SampleInfo {
        // Code outside of any VM counts as C, in the streams' terms.
        state: sample.state.unwrap_or(VmState::Cfunc),
        labels: Labels { thread: Some(thread), state: None, trace },
        time: Some(sample.time),
        weights,
    }
}

/// The frames of a sample, root first.
pub(crate) fn rooted(sample: &Resolved, root: Option<Named>) -> impl Iterator<Item = Named> {
    root.into_iter().chain(sample.frames.iter().rev().map(|frame| (*frame.named).clone()))
}
