//! The labels of a stack.

use std::sync::Arc;

use lj_trace_streams::VmState;

use super::RequestLabels;

/// What is known of the samples of a stack apart from their frames.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Labels {
    /// The thread.
    pub thread: Option<ThreadLabel>,
    /// The state of the VM.
    pub state: Option<VmState>,
    /// The number of the trace that was running.
    pub trace: Option<u64>,
    /// The request that the coroutine served.
    pub request: Option<RequestLabels>,
    /// The id of the fiber that ran.
    pub fiber_id: Option<u64>,
}

/// A thread of the target.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ThreadLabel {
    /// Its id.
    pub tid: u32,
    /// Its name, if it could be read.
    pub name: Option<Arc<str>>,
}
