//! Reports of CPU time: what people look at, over all VMs of one process, or of several processes.

use std::path::{Path, PathBuf};

use super::outputs::{Format, ReportOutput};
use super::pipeline::Resolved;
use crate::commands::exit::CommandError;
use crate::report::{CpuProfile, Frame as Named};
use crate::stream::VmState;

/// Files that are written at the end, and the profile that goes into them.
pub struct CpuReports {
    profile: CpuProfile,
    files: Vec<ReportOutput>,
}

impl CpuReports {
    /// Opens the files.
    ///
    /// # Errors
    /// One of them cannot be written.
    pub fn open(files: &[(Format, PathBuf)], title: &str, rate: u32) -> Result<Self, CommandError> {
        let mut profile = CpuProfile::new(title);
        profile.rate = Some(rate);
        let files = files.iter().map(|(format, path)| ReportOutput::open(*format, path));
        Ok(Self { profile, files: files.collect::<Result<_, _>>()? })
    }

    /// Adds a sample. `root` is what it belongs to, where there may be several of that.
    pub fn add(&mut self, sample: &Resolved, root: Option<Named>) {
        if self.files.is_empty() {
            return;
        }
        // Code outside of any VM counts as C, in the streams' terms.
        let state = sample.state.unwrap_or(VmState::Cfunc);
        self.profile.add(state, rooted(sample, root));
    }

    /// Writes what there is so far, but on standard output.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn write_interim(&self) -> Result<(), CommandError> {
        let mut files = self.files.iter().filter(|file| file.path != Path::new("-"));
        files.try_for_each(|file| file.write(&self.profile))
    }

    /// Writes all files; returns their paths. `lost` are numbers of samples that never arrived, by reason.
    ///
    /// # Errors
    /// The first file that could not be written; the others are written all the same.
    pub fn finish(mut self, lost: &[(&'static str, u64)]) -> Result<Vec<PathBuf>, CommandError> {
        lost.iter().for_each(|(reason, count)| self.profile.lose(reason, *count));
        let written: Vec<_> = self.files.iter().map(|file| file.write(&self.profile)).collect();
        written.into_iter().collect::<Result<(), _>>()?;
        Ok(self.files.into_iter().map(|file| file.path).collect())
    }
}

/// The frames of a sample, root first.
pub(super) fn rooted(sample: &Resolved, root: Option<Named>) -> impl Iterator<Item = Named> {
    root.into_iter().chain(sample.frames.iter().rev().map(|frame| (*frame.named).clone()))
}
