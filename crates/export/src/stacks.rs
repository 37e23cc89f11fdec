//! The stacks of an interval as servers get them: without what would make a series of its own of nearly each sample.

use std::collections::HashMap;

use lj_trace_profile::model::{FrameId, Measure, Profile, RequestLabels, Weights};
use lj_trace_profile::{Frame, Interval, Resource};

use crate::Amount;

/// The attribute, and the label, with what the VM was doing.
pub const VM_STATE: &str = "vm_state";

/// A stack, leaf first, and what it weighs in all threads and traces.
pub struct BoundedStack {
    /// What the VM was doing, by name: one of ten, so that it may be a label.
    pub state: Option<String>,
    /// Which request it served: there is a bounded number of such labels.
    pub request: Option<RequestLabels>,
    /// The frames.
    pub frames: Vec<FrameId>,
    /// What it weighs.
    pub weights: Weights,
}

/// What tells a stack from others: the state of its VM, its request, its frames.
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
        let request = row.labels.request.clone();
        let place = *places.entry((state.clone(), request.clone(), frames.clone())).or_insert_with(|| {
            stacks.push(BoundedStack { state, request, frames, weights: Weights::default() });
            stacks.len() - 1
        });
        let sums = &mut stacks[place].weights;
        sums.iter_mut().zip(row.weights).for_each(|(sum, weight)| *sum = sum.saturating_add(*weight));
    }
    stacks
}

/// What these stacks have of the measures.
pub fn amount(measures: &[Measure], stacks: &[BoundedStack]) -> Amount {
    let mut amount = Amount::NONE;
    for measure in measures {
        stacks.iter().for_each(|stack| amount.count(measure, measure.value(&stack.weights)));
    }
    amount
}

/// The process of an interval; one of which nothing is known, where nobody says.
pub fn resource_of(interval: &Interval<'_>) -> Resource {
    interval.resource.cloned().unwrap_or_default()
}

/// A number of a format without a sign.
pub fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
