//! Which request an event of a memory profile is for.

use crate::Frame;
use crate::model::RequestLabels;

/// What is known of the request that a call of the allocator was for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventRequest {
    /// Its number: events of the same number have the same of all else.
    pub number: u32,
    /// Its labels, if it is known.
    pub labels: Option<RequestLabels>,
    /// What stacks begin with, in place of the VM, if they are grouped by a label.
    pub group: Option<Frame>,
    /// Whether it is none of those that are kept: its allocations count nowhere, and what it frees is not held any more.
    pub is_left_out: bool,
}
