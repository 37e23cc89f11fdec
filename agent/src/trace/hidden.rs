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

#[cfg(test)]
mod tests {
    use super::super::made::{SET, abc, ad, lua};
    use super::*;
    use crate::vm::bytecode::{Instruction, Op};

    fn metamethod(step: &Step) -> Option<Metamethod> {
        step.instruction.opcode(SET).map(|opcode| opcode.metamethod)
    }

    fn step(stack: StackId, position: u32, word: u32, op: Op, is_native: bool) -> Step {
        let instruction = Instruction(word);
        Step { stack, position, instruction, op, operands: Default::default(), is_native }
    }

    #[test]
    fn only_what_may_call_hides_a_function_that_nothing_shows() {
        let mut stacks = Stacks::default();
        let stack = stacks.intern(None, lua(0), NOWHERE);
        let mut hidden = Hidden::new(&[], std::iter::once(lua(2)));
        let plain = step(stack, 1, ad(Op::KSHORT, 0, 7), Op::KSHORT, false);
        let add = step(stack, 2, abc(Op::ADDVV, 0, 1, 2), Op::ADDVV, false);
        let call = step(stack, 3, abc(Op::CALL, 0, 1, 1), Op::CALL, false);
        let native = Step { is_native: true, ..call };
        hidden.pass(&stacks, &[1, 2], [plain, call].iter(), metamethod);
        hidden.pass(&stacks, &[3], [plain, add].iter(), metamethod);
        hidden.pass(&stacks, &[4], [call, native].iter(), metamethod);

        assert_eq!(hidden.possible(&mut stacks, &[lua(0), lua(2)]), [], "the one runs, the other is a value");
        let possible = hidden.possible(&mut stacks, &[lua(0), lua(1), lua(2)]);
        let calls: Vec<(u16, u32)> = possible.iter().map(|(at, (stack, _))| (*at, stacks.get(*stack).call)).collect();
        assert_eq!(calls, [(3, 2), (4, 3)]);
        for (_, (inner, position)) in possible {
            assert_eq!((stacks.get(inner).caller, stacks.get(inner).callee), (Some(stack), lua(1)));
            assert_eq!(position, NOWHERE);
        }
    }
}
