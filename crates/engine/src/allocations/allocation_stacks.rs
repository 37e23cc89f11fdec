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

/// The stacks of allocations, and the outputs that they go to.
pub struct AllocationStacks {
    every: u64,
    profile: CpuProfile,
    sinks: Vec<Box<dyn Sink>>,
    began: SystemTime,
}

impl AllocationStacks {
    /// Opens the outputs. All of them must have formats that show stacks.
    ///
    /// # Errors
    /// An output cannot be written.
    pub fn open(outputs: &[(Format, PathBuf)], title: &str, every: u32) -> Result<Self, EngineError> {
        let mut profile = CpuProfile::new(match every {
            1 => format!("{title}: bytes allocated"),
            _ => format!("{title}: bytes allocated, estimated from every {every}th allocation"),
        });
        profile.unit = Unit::Bytes;
        let sinks = ReportFile::open_all(outputs, None)?;
        Ok(Self { every: every.into(), profile, sinks, began: SystemTime::now() })
    }

    /// Adds the stack of an allocation of `size` bytes. It also represents the allocations between two recorded ones.
    pub fn add(&mut self, stack: &Resolved, size: u64) {
        let weights = [self.every, size.saturating_mul(self.every)];
        // A group takes the place of the VM.
        self.profile.add_sample(
            info(stack, weights),
            rooted(stack, stack.vm.filter(|_| stack.request.group.is_none()).map(Named::vm)),
        );
        self.profile.keep_within(STACKS);
    }

    /// Shows the stacks so far; returns the paths of the written files.
    ///
    /// # Errors
    /// A sink cannot show them.
    pub fn show(&mut self) -> Result<Vec<PathBuf>, EngineError> {
        show_all(&mut self.sinks, &Interval::until_now(ProfileKind::Allocations, &self.profile, self.began))
    }

    /// Ends the interval; returns the paths of the written files.
    ///
    /// # Errors
    /// The error of the first sink that could not take it. The other sinks take it all the same.
    pub fn finish(mut self) -> Result<Vec<PathBuf>, EngineError> {
        end_all(&mut self.sinks, &Interval::until_now(ProfileKind::Allocations, &self.profile, self.began))
    }
}
