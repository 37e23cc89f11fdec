//! Samples for tests.

use lj_trace_engine::resolve::{Code, Resolved, ResolvedFrame, SampleRequest};
use lj_trace_profile::Frame;
use lj_trace_streams::VmState;

/// A sample of the first VM in this state, with these frames, the innermost first.
pub fn sample(state: VmState, frames: &[Frame]) -> Resolved {
    let frame = |named: &Frame| ResolvedFrame { named: named.clone().into(), code: Code::Name };
    Resolved {
        state: Some(state),
        vm: Some(0),
        tid: 1,
        time: 0,
        allocation: None,
        thread_name: None,
        request: SampleRequest::default(),
        wait: None,
        turn: 0,
        entry: None,
        trace: None,
        frames: frames.iter().map(frame).collect(),
    }
}
