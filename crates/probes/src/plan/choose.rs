//! Chooses the probe points: the cheapest set that every call passes exactly once.

use std::collections::{BTreeMap, BTreeSet};

use super::arguments::{Argument, ArgumentLocation, ArgumentState};
use super::flow::{Flow, FlowNode};
use super::{EventKind, Need};
use crate::arch::is_emulated;

/// Sets of points that are kept for each instruction. Real allocators have a handful in all.
const MAX_SETS: usize = 16;

/// Points in a set. Every one is a breakpoint to put in and to explain; beyond this the entry is better.
const MAX_POINTS: usize = 8;

/// A set of points with what it costs. The order is that of preference: the derived one of the fields.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Set {
    /// Points with a return probe that frees pass as well, in vain.
    wasted_returns: usize,
    /// How many points there are.
    count: usize,
    /// Their offsets, sorted.
    points: Vec<usize>,
}

impl Set {
    fn new(flow: &Flow, points: Vec<usize>) -> Self {
        let kinds = points.iter().filter_map(|&point| flow.node(point)?.state.as_ref()).map(kind);
        let wasted_returns = kinds.filter(|kind| *kind == EventKind::Any).count();
        Self { wasted_returns, count: points.len(), points }
    }
}

/// Which events pass a point.
pub(super) fn kind(state: &ArgumentState) -> EventKind {
    if state.is_zero(Argument::NewSize) {
        EventKind::Free
    } else if !state.is_nonzero(Argument::NewSize) {
        EventKind::Any
    } else if state.is_zero(Argument::Pointer) {
        EventKind::Alloc
    } else if state.is_nonzero(Argument::Pointer) {
        EventKind::Realloc
    } else {
        EventKind::AllocOrRealloc
    }
}

/// The best set of emulated points; `None` if there is none.
pub(super) fn choose(code: &[u8], flow: &Flow, need: Need) -> Option<Vec<usize>> {
    // The sets that cover all ways from an instruction on, instructions after it first.
    let mut sets: BTreeMap<usize, Vec<Set>> = BTreeMap::new();
    for offset in postorder(flow) {
        let Some(node) = flow.node(offset) else { continue };
        // A jump back finds nothing yet: the ways through a loop are covered before it or after it.
        let mut successors = node.successors().filter(|&next| flow.is_reached(next));
        let nothing = || vec![Set::new(flow, Vec::new())];
        let of = |next: usize| sets.get(&next).cloned().unwrap_or_else(nothing);
        let mut mine = match (successors.next(), successors.next()) {
            (Some(first), Some(second)) => unions(flow, &of(first), &of(second)),
            (Some(only), None) => of(only),
            // An exit, with nothing on the way to it yet.
            _ => Vec::new(),
        };
        if is_candidate(code, offset, node, need) {
            mine.push(Set::new(flow, vec![offset]));
        }
        mine.sort();
        mine.dedup();
        mine.truncate(MAX_SETS);
        sets.insert(offset, mine);
    }
    // The sets are only proposals: whether one is right is checked on the whole graph.
    sets.remove(&0)?.into_iter().map(|set| set.points).find(|points| flow.passes_once(points))
}

/// Whether a probe at an instruction is cheap and sees everything that an event is made of.
fn is_candidate(code: &[u8], offset: usize, node: &FlowNode, need: Need) -> bool {
    let Some(state) = &node.state else { return false };
    let bytes = code.get(offset..offset + node.instruction.size());
    let needed = Argument::ALL.into_iter().filter(|&argument| need.has(argument));
    bytes.is_some_and(is_emulated)
        && state.before_any_call()
        && (kind(state) == EventKind::Free || state.return_address_on_top())
        && needed.map(|argument| state.location(argument)).all(|location| location != ArgumentLocation::Lost)
}

/// Every set of the one side with every set of the other.
fn unions(flow: &Flow, left: &[Set], right: &[Set]) -> Vec<Set> {
    let pairs = left.iter().flat_map(|left| right.iter().map(move |right| (left, right)));
    let union = |(left, right): (&Set, &Set)| {
        let mut points = [left.points.as_slice(), &right.points].concat();
        points.sort_unstable();
        points.dedup();
        (points.len() <= MAX_POINTS).then(|| Set::new(flow, points))
    };
    pairs.filter_map(union).collect()
}

/// All instructions that control reaches, each after those that it leads to, loops aside.
fn postorder(flow: &Flow) -> Vec<usize> {
    let mut order = Vec::new();
    let mut seen = BTreeSet::new();
    let mut stack = vec![(0, false)];
    while let Some((offset, done)) = stack.pop() {
        if done {
            order.push(offset);
        } else if seen.insert(offset) {
            stack.push((offset, true));
            let successors = flow.node(offset).into_iter().flat_map(FlowNode::successors);
            stack.extend(successors.filter(|&next| flow.is_reached(next)).map(|next| (next, false)));
        }
    }
    order
}
