//! An estimate for programs: the figures of each line, with their errors.

use lj_trace_estimate::Figure;
use lj_trace_estimate::life::Life;

use super::EstimatedProfile;
use crate::Frame;
use crate::model::Profile as _;

/// What is known of a line, or of another source of allocations.
#[derive(Clone, Debug)]
pub struct LineFigures<'a> {
    /// Its frames, outermost first: chunk, function, and line; or a C function, a trace, the VM.
    pub frames: Vec<&'a Frame>,
    /// Its share of all allocated bytes, from 0 to 1.
    pub share: Figure,
    /// Bytes allocated.
    pub bytes: Figure,
    /// Number of allocations.
    pub count: Figure,
    /// How long its objects live, if any were followed.
    pub life: Option<&'a Life>,
}

impl EstimatedProfile {
    /// The figures of all lines, largest first.
    pub fn figures(&self) -> Vec<LineFigures<'_>> {
        let stacks = self.weighted();
        let figures = self.rows().into_iter().filter_map(|(seen, line)| {
            let frames = stacks.row(seen.stack)?.frames.iter().filter_map(|&id| stacks.frame(id)).collect();
            let life = self.lives.get(&line.source);
            Some(LineFigures { frames, share: line.share, bytes: line.bytes, count: line.count, life })
        });
        figures.collect()
    }
}
