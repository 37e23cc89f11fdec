//! The trait of those that observe CPU samples while they are recorded.

use lj_trace_common::turn::EndedTurn;
use lj_trace_profile::Frame;

use super::reports::CpuReports;
use crate::resolve::Resolved;

/// Takes in CPU samples beside the outputs of a recording: the reports of all processes together, the live view.
pub trait SampleListener {
    /// A sample. `root` is what its stack belongs to: the process, and its VM where it has several.
    fn sample(&mut self, sample: &Resolved, root: Frame);

    /// A turn of an event loop has ended that was too long; its samples came before.
    fn turn(&mut self, _turn: &EndedTurn) {}
}

impl SampleListener for CpuReports {
    fn sample(&mut self, sample: &Resolved, root: Frame) {
        self.add(sample, Some(root));
    }
}
