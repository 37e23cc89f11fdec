//! Light samples: what a thread runs at each tick of its clock.

use aya::maps::{MapData, RingBuf};
use lj_trace_common::activity::ActivitySample;

use super::programs::{ProbeError, Programs};
use super::sample::plain;
use super::set::take_map;

/// The buffer of light samples.
pub struct ActivityBuffer(RingBuf<MapData>);

impl ActivityBuffer {
    /// The buffer of these programs.
    ///
    /// # Errors
    /// [`ProbeError::Refused`] if it was taken before.
    pub fn open(programs: &mut Programs) -> Result<Self, ProbeError> {
        let buffer = take_map(&mut programs.ebpf(), "ACTIVITY").and_then(|map| Ok(RingBuf::try_from(map)?));
        buffer.map(Self).map_err(ProbeError::sort)
    }

    /// Calls `take` for every sample that is ready, for at most `limit` samples. Returns their number.
    pub fn drain(&mut self, limit: usize, mut take: impl FnMut(ActivitySample)) -> usize {
        for count in 0..limit {
            let Some(record) = self.0.next() else { return count };
            if let Some(sample) = plain(&record) {
                take(sample);
            }
        }
        limit
    }
}
