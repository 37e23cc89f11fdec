//! The trait of code that observes CPU samples during a recording.

use lj_trace_common::turn::EndedTurn;
use lj_trace_profile::Frame;

use super::reports::CpuReports;
use crate::resolve::Resolved;

/// Takes CPU samples besides the outputs of a recording: the common reports of all processes, or the live view.
pub trait SampleListener {
    /// Takes a sample. `root` names the process, and the VM if the process has several.
    fn sample(&mut self, sample: &Resolved, root: Frame);

    /// Takes a turn of an event loop that was too long, after it has ended. Its samples came before.
    fn turn(&mut self, _turn: &EndedTurn) {}
}

impl SampleListener for CpuReports {
    fn sample(&mut self, sample: &Resolved, root: Frame) {
        self.add(sample, Some(root));
    }
}
