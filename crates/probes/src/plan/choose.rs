//! Chooses the probe points: the cheapest set that every call passes exactly once.

use std::collections::{BTreeMap, BTreeSet};

use lj_trace_common::arch::reg;

use super::arguments::{Argument, ArgumentLocation, ArgumentState};
use super::flow::{Flow, FlowNode};
use super::{EventKind, Need};
use crate::arch::is_emulated;

/// How many sets to keep for each instruction. Real allocators have a handful in all.
const MAX_SETS: usize = 16;

/// The most points in a set. Every point is a breakpoint to insert and to explain; a plan with more is worse than the
/// entry.
const MAX_POINTS: usize = 8;

/// A set of points with its cost. The derived order of the fields is the order of preference.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Set {
    /// The number of points with a return probe that frees pass as well, for nothing.
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

/// Which calls pass a point.
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
    // The sets that cover all paths from an instruction on; later instructions come first.
    let mut sets: BTreeMap<usize, Vec<Set>> = BTreeMap::new();
    for offset in postorder(flow) {
        let Some(node) = flow.node(offset) else { continue };
        // A jump back finds nothing yet: points before or after a loop cover the paths through it.
        let mut successors = node.successors().filter(|&next| flow.is_reached(next));
        let nothing = || vec![Set::new(flow, Vec::new())];
        let of = |next: usize| sets.get(&next).cloned().unwrap_or_else(nothing);
        let mut mine = match (successors.next(), successors.next()) {
            (Some(first), Some(second)) => unions(flow, &of(first), &of(second)),
            (Some(only), None) => of(only),
            // An exit: no points lie on the path to it yet.
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
    // The sets are only proposals: the whole graph decides whether one is right.
    sets.remove(&0)?.into_iter().map(|set| set.points).find(|points| flow.passes_once(points))
}

/// Whether a probe at an instruction is cheap and sees all arguments of an event. Where calls leave the return address in a
/// register, the programs also want to know who has called.
fn is_candidate(code: &[u8], offset: usize, node: &FlowNode, need: Need) -> bool {
    let Some(state) = &node.state else { return false };
    let bytes = code.get(offset..offset + node.instruction.size());
    let needed = Argument::ALL.into_iter().filter(|&argument| need.has(argument));
    bytes.is_some_and(is_emulated)
        && state.before_any_call()
        && (state.return_address_in_place() || kind(state) == EventKind::Free && reg::LINK.is_none())
        && needed.map(|argument| state.location(argument)).all(|location| location != ArgumentLocation::Lost)
}

/// Joins every set of one side with every set of the other.
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

/// All instructions that control reaches, each after its successors, except in loops.
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
