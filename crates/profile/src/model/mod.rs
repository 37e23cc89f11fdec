//! The model that all formats are written from: stacks of frames with labels, their weights by each measure, and times.
//!
//! A recording fills all of it. A stream holds less (no threads, no times); those parts are then absent.

mod fold;
pub mod labels;
mod measure;
mod module;
mod recorded;
pub mod requests;
pub mod stacks;
mod timeline;

use std::collections::{BTreeMap, HashMap};
use std::io;

pub use labels::Labels;
pub use measure::{Measure, Unit};
pub use module::{NativeModule, NativeModules};
pub use recorded::Recorded;
pub use requests::{RequestKey, RequestLabels};
pub use stacks::{FrameId, Row, StackId, StackTable, Weights};
pub use timeline::{CounterSeries, Point, Timeline};

use lj_trace_text::Room;

/// A profile that can be written in every format.
pub trait Profile {
    /// The stacks and their weights.
    fn weighted(&self) -> &StackTable;

    /// What was measured, and of which program, for a title.
    fn title(&self) -> String;

    /// What the total is, what is missing from it, and what the colours mean.
    fn subtitle(&self) -> String;

    /// All measures that the weights have.
    fn measures(&self) -> Vec<Measure>;

    /// The measure that formats with room for one show.
    fn shown(&self) -> Measure;

    /// The order of samples in time, if known.
    fn timeline(&self) -> Option<&Timeline> {
        None
    }

    /// When it was recorded, if a stream says so.
    fn recorded(&self) -> Option<Recorded> {
        None
    }

    /// The process, if known.
    fn process(&self) -> Option<u32> {
        None
    }

    /// The files that native code is in, if known.
    fn modules(&self) -> Option<&NativeModules> {
        None
    }

    /// For each stack, by how much its value of a measure may be off in 19 of 20 cases; empty if the values were
    /// counted.
    fn errors(&self, _: &Measure) -> HashMap<StackId, f64> {
        HashMap::new()
    }

    /// What was lost, by reason.
    fn losses(&self) -> &BTreeMap<String, u64>;

    /// Writes the profile as text for people, in lines of this width.
    ///
    /// # Errors
    /// The output cannot take the bytes.
    fn write_text(&self, room: Room, out: &mut dyn io::Write) -> io::Result<()>;

    /// The shown weight of all stacks together.
    fn total(&self) -> u64 {
        self.shown().value(&self.weighted().totals())
    }
}
