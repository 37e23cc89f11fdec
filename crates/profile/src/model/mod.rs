//! What all formats are written from: stacks of frames with labels, what they weigh by each measure, and when.
//!
//! A recording knows all of it. A stream holds less (no threads, no times), and such parts are then absent.

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

    /// What was measured, and of which program.
    fn title(&self) -> String;

    /// What the total is, what is missing from it, and what the colours mean.
    fn subtitle(&self) -> String;

    /// All that the weights tell.
    fn measures(&self) -> Vec<Measure>;

    /// The one of them that formats with room for one show.
    fn shown(&self) -> Measure;

    /// What was recorded when, where that is known.
    fn timeline(&self) -> Option<&Timeline> {
        None
    }

    /// When it was recorded, where a stream tells that.
    fn recorded(&self) -> Option<Recorded> {
        None
    }

    /// The process, where it is known.
    fn process(&self) -> Option<u32> {
        None
    }

    /// The files that native code is in, where they are known.
    fn modules(&self) -> Option<&NativeModules> {
        None
    }

    /// By how much what stacks have of a measure may be more or less, in 19 of 20 cases; nothing of those that were counted.
    fn errors(&self, _: &Measure) -> HashMap<StackId, f64> {
        HashMap::new()
    }

    /// What was lost, by reason.
    fn losses(&self) -> &BTreeMap<String, u64>;

    /// Writes the profile as text for people, into lines with so much room.
    ///
    /// # Errors
    /// The output cannot take the bytes.
    fn write_text(&self, room: Room, out: &mut dyn io::Write) -> io::Result<()>;

    /// The shown weight of all stacks together.
    fn total(&self) -> u64 {
        self.shown().value(&self.weighted().totals())
    }
}
