//! Stacks of every Nth allocation, for an allocation flame graph. A memprof stream has no room for them.

use std::path::PathBuf;
use std::time::SystemTime;

use lj_trace_profile::model::Unit;
use lj_trace_profile::{CpuProfile, Format, Frame as Named, ProfileKind};

use crate::cpu::reports::{STACKS, info, rooted};
use crate::error::EngineError;
use crate::output::ReportFile;
use crate::resolve::Resolved;
use crate::sink::{Interval, Sink, end_all, show_all};

/// The stacks of allocations, and where they are written to.
pub struct AllocationStacks {
    every: u64,
    profile: CpuProfile,
    sinks: Vec<Box<dyn Sink>>,
    began: SystemTime,
}

impl AllocationStacks {
    /// Opens the outputs, all of formats that show stacks.
    ///
    /// # Errors
    /// What cannot be written.
    pub fn open(outputs: &[(Format, PathBuf)], title: &str, every: u32) -> Result<Self, EngineError> {
        let mut profile = CpuProfile::new(match every {
            1 => format!("{title}: bytes allocated"),
            _ => format!("{title}: bytes allocated, estimated from every {every}th allocation"),
        });
        profile.unit = Unit::Bytes;
        let sinks = ReportFile::open_all(outputs, None)?;
        Ok(Self { every: every.into(), profile, sinks, began: SystemTime::now() })
    }

    /// Adds the stack of an allocation of `size` bytes, which stands for the others in between.
    pub fn add(&mut self, stack: &Resolved, size: u64) {
        let weights = [self.every, size.saturating_mul(self.every)];
        // A group takes the place of the VM.
        self.profile.add_sample(
            info(stack, weights),
            rooted(stack, stack.vm.filter(|_| stack.request.group.is_none()).map(Named::vm)),
        );
        self.profile.keep_within(STACKS);
    }

    /// Shows what there is so far; returns the paths of what was written.
    ///
    /// # Errors
    /// A sink cannot show it.
    pub fn show(&mut self) -> Result<Vec<PathBuf>, EngineError> {
        show_all(&mut self.sinks, &Interval::until_now(ProfileKind::Allocations, &self.profile, self.began))
    }

    /// Ends the interval; returns the paths of what was written.
    ///
    /// # Errors
    /// The first sink that could not take it; the others have it all the same.
    pub fn finish(mut self) -> Result<Vec<PathBuf>, EngineError> {
        end_all(&mut self.sinks, &Interval::until_now(ProfileKind::Allocations, &self.profile, self.began))
    }
}
