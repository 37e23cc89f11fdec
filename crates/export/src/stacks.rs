//! The stacks of an interval as servers get them: without labels that would turn nearly each sample into a series of
//! its own.

use std::collections::HashMap;

use lj_trace_profile::model::{FrameId, Measure, Profile, RequestKey, RequestLabels, Weights};
use lj_trace_profile::{Frame, Interval, Resource};

use crate::Amount;

/// The attribute, and the label, for the state of the VM.
pub const VM_STATE: &str = "vm_state";

/// A stack, leaf first, with its weight over all threads and traces.
pub struct BoundedStack {
    /// The state of the VM, by name: one of ten, so it may be a label.
    pub state: Option<String>,
    /// The request that it served: there is a bounded number of such labels.
    pub request: Option<RequestLabels>,
    /// The frames.
    pub frames: Vec<FrameId>,
    /// Its weights.
    pub weights: Weights,
}

/// What distinguishes stacks: the VM's state, the request, the frames.
type StackKey = (Option<String>, Option<RequestLabels>, Vec<FrameId>);

/// Adds up the stacks of all threads, traces and VMs.
pub fn bounded(profile: &dyn Profile, kernel_frames: bool) -> Vec<BoundedStack> {
    let table = profile.weighted();
    let mut places: HashMap<StackKey, usize> = HashMap::new();
    let mut stacks: Vec<BoundedStack> = Vec::new();
    for row in table.rows() {
        let is_wanted = |id: &FrameId| kernel_frames || !matches!(table.frame(*id), Some(Frame::Kernel { .. }));
        let frames: Vec<FrameId> = row.frames.iter().rev().copied().filter(is_wanted).collect();
        let state = row.labels.state.map(|state| state.to_string());
        // Plugins and trace IDs would multiply the series of routes. The stack shows the plugin's file.
        let request = row.labels.request.as_ref();
        let request = request.and_then(|labels| labels.without(RequestKey::Plugin)?.without(RequestKey::TraceId));
        let place = *places.entry((state.clone(), request.clone(), frames.clone())).or_insert_with(|| {
            stacks.push(BoundedStack { state, request, frames, weights: Weights::default() });
            stacks.len() - 1
        });
        let sums = &mut stacks[place].weights;
        sums.iter_mut().zip(row.weights).for_each(|(sum, weight)| *sum = sum.saturating_add(*weight));
    }
    stacks
}

/// The sums of the measures over these stacks.
pub fn amount(measures: &[Measure], stacks: &[BoundedStack]) -> Amount {
    let mut amount = Amount::NONE;
    for measure in measures {
        stacks.iter().for_each(|stack| amount.count(measure, measure.value(&stack.weights)));
    }
    amount
}

/// The process of an interval; an empty resource if the interval has none.
pub fn resource_of(interval: &Interval<'_>) -> Resource {
    interval.resource.cloned().unwrap_or_default()
}

/// Converts a number for a format that has only signed ones.
pub fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
