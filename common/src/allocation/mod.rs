//! What a VM allocates: one record for each call of its allocator, with the function or trace that caused it.

mod attribute;
pub mod call_site;
pub mod event;
pub mod known;
pub mod on_trace;
pub mod serving;
pub mod serving_fiber;
pub mod tally;

pub(crate) use attribute::caller;
pub use attribute::{AttributionRoom, attribute};
pub use event::{AllocationEvent, AllocationKind, AllocationSource, PendingAllocation, PrototypeSeen, TraceSeen};
