//! Functions that run in a trace though no way through the bytecode comes by them.
//!
//! A call needs a guard where the function is not a constant, and leaves a frame in the snapshots inside of it. The
//! metamethods of C types (`crec_index_meta`, `crec_arith_meta`, `lj_crecord.c`) have neither: the type says which
//! function it is. All that is left of such a call is the function among the constants of the trace, and any
//! instruction that may have made it.

use std::collections::HashSet;

use super::cast::Callee;
use super::frames::SnapshotFrame;
use super::path::Step;
use super::stacks::{NOWHERE, StackId, Stacks};
use crate::vm::bytecode::Metamethod;

/// What the recorded instructions between two snapshots came from.
#[derive(Clone, Debug, Default)]
struct Passage {
    recorded: Vec<u16>,
    /// The calls that may have run something else than the way shows: the call stack and the position of each.
    calls: Vec<(StackId, u32)>,
}

/// What the ways through a trace have shown so far.
#[derive(Clone, Debug, Default)]
pub struct Hidden {
    /// Prototypes that are known to run, or not to.
    seen: HashSet<u64>,
    passages: Vec<Passage>,
}

impl Hidden {
    /// What the snapshots show: the functions of their frames, and those that are values in slots, which is why they
    /// are constants of the trace.
    pub fn new(frames: &[Option<Vec<SnapshotFrame>>], values: impl Iterator<Item = Callee>) -> Self {
        let callees = frames.iter().flatten().flatten().filter_map(|frame| frame.callee);
        let seen = callees.chain(values).filter_map(Callee::prototype).collect();
        Self { seen, passages: Vec::new() }
    }

    /// Notes the ways that instructions may have come from. `metamethod` tells which one a step may call.
    pub fn pass<'a>(
        &mut self,
        stacks: &Stacks,
        recorded: &[u16],
        steps: impl Iterator<Item = &'a Step>,
        metamethod: impl Fn(&Step) -> Option<Metamethod>,
    ) {
        let mut passage = Passage { recorded: recorded.to_vec(), calls: Vec::new() };
        for step in steps {
            self.seen.extend(stacks.get(step.stack).callee.prototype());
            let call = (step.stack, step.position);
            if may_hide(step, metamethod(step)) && !passage.calls.contains(&call) {
                passage.calls.push(call);
            }
        }
        self.passages.push(passage);
    }

    /// For each recorded instruction that a function of `functions` may have made without being seen: the call stack
    /// of that call, at no known position. An instruction may be listed several times.
    pub fn possible(&self, stacks: &mut Stacks, functions: &[Callee]) -> Vec<(u16, (StackId, u32))> {
        let is_hidden = |callee: &&Callee| callee.prototype().is_some_and(|prototype| !self.seen.contains(&prototype));
        // One says as much as many: that the innermost frame is not known.
        let Some(&callee) = functions.iter().find(is_hidden) else { return Vec::new() };
        let mut possible = Vec::new();
        for passage in &self.passages {
            for &(caller, call) in &passage.calls {
                let stack = stacks.intern(Some(caller), callee, call);
                possible.extend(passage.recorded.iter().map(|&at| (at, (stack, NOWHERE))));
            }
        }
        possible
    }
}

/// Whether a step may have called a Lua function that the way does not come by.
fn may_hide(step: &Step, metamethod: Option<Metamethod>) -> bool {
    // Calls that are not native go into the function that they call, which the way shows.
    step.is_native || matches!(metamethod, Some(Metamethod::Named(_)))
}
