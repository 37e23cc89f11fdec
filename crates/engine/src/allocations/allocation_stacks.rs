//! The stacks of every Nth allocation: an allocation flame graph, which a memprof stream has no room for.

use std::path::{Path, PathBuf};

use lj_trace_profile::model::Unit;
use lj_trace_profile::{CpuProfile, Format, Frame as Named};

use crate::cpu::reports::{STACKS, info, rooted};
use crate::error::EngineError;
use crate::output::ReportFile;
use crate::resolve::Resolved;

/// The stacks of allocations, and where they are written to.
pub struct AllocationStacks {
    every: u64,
    profile: CpuProfile,
    reports: Vec<ReportFile>,
}

impl AllocationStacks {
    /// Opens the outputs, all of formats that show stacks.
    ///
    /// # Errors
    /// What cannot be written.
    pub fn open(outputs: Vec<(Format, PathBuf)>, title: &str, every: u32) -> Result<Self, EngineError> {
        let mut profile = CpuProfile::new(match every {
            1 => format!("{title}: bytes allocated"),
            _ => format!("{title}: bytes allocated, estimated from every {every}th allocation"),
        });
        profile.unit = Unit::Bytes;
        let reports = outputs.into_iter().map(|(format, path)| ReportFile::open(format, &path));
        Ok(Self { every: every.into(), profile, reports: reports.collect::<Result<_, _>>()? })
    }

    /// Adds the stack of an allocation of `size` bytes, which stands for the others in between.
    pub fn add(&mut self, stack: &Resolved, size: u64) {
        let weights = [self.every, size.saturating_mul(self.every)];
        self.profile.add_sample(info(stack, weights), rooted(stack, stack.vm.map(Named::vm)));
        self.profile.keep_within(STACKS);
    }

    /// Writes what there is so far.
    ///
    /// # Errors
    /// An output cannot be written.
    pub fn write_interim(&self) -> Result<(), EngineError> {
        let mut files = self.reports.iter().filter(|report| report.path != Path::new("-"));
        files.try_for_each(|report| report.write(&self.profile))
    }

    /// Writes all outputs; returns their paths.
    ///
    /// # Errors
    /// The first output that could not be written; the others are written all the same.
    pub fn finish(&self) -> Result<Vec<PathBuf>, EngineError> {
        let written: Vec<_> = self.reports.iter().map(|report| report.write(&self.profile)).collect();
        written.into_iter().collect::<Result<(), _>>()?;
        let paths = self.reports.iter().map(|report| report.path.clone());
        Ok(paths.filter(|path| path != Path::new("-")).collect())
    }
}
