//! The way through the bytecode that was recorded between two snapshots of a trace.
//!
//! The recorder follows the interpreter, so where the bytecode itself says how it goes on, the way is known. Where
//! it does not (comparisons, calls of functions that are not constant, metamethods) the next snapshot tells: the
//! way has to come by its function and PC. What has several ways is tried, within bounds.

mod branch;
mod call;
mod place;
mod search;
mod step;

use lj_trace_common::layout::BytecodeSet;

pub use self::place::Place;
use super::cast::{Callee, Cast};
use super::stacks::StackId;
use crate::vm::Prototype;
use crate::vm::bytecode::{Instruction, Op};

/// What the walk must know of the VM beyond the trace.
pub trait Surroundings {
    /// The function in an upvalue of a closure.
    fn upvalue(&self, closure: u64, index: u16) -> Option<Callee>;
    /// Address of the constant string `index` of a prototype.
    fn string(&self, prototype: &Prototype, index: u16) -> Option<u64>;
    /// The constant number `index` of a prototype.
    fn number(&self, prototype: &Prototype, index: u16) -> Option<f64>;
    /// The instruction of a prototype that the start of `trace` has replaced.
    fn start_instruction(&self, prototype: &Prototype, position: u32, trace: u16) -> Option<Instruction>;
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Origin {
    /// Not known.
    #[default]
    Unknown,
    /// A bytecode has made it: its call stack and position.
    Made(StackId, u32),
    /// It is a constant number.
    Number(f64),
}

/// What is known of a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Slot {
    /// The function that it holds.
    pub callee: Option<Callee>,
    /// Where its value comes from.
    pub origin: Origin,
}

/// One bytecode of the way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// The call stack that executes it.
    pub stack: StackId,
    /// Its index in the innermost function.
    pub position: u32,
    /// What it is.
    pub instruction: Instruction,
    /// Its opcode.
    pub op: Op,
    /// Where its operands come from.
    pub operands: [Origin; 2],
    /// Whether it stands for a library function that it calls: what that was compiled to is not known.
    pub is_native: bool,
}

/// A snapshot, as the aim of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aim {
    /// Its call stack.
    pub stack: StackId,
    /// The bytecode at which the trace would be left.
    pub position: u32,
}

/// A way from one snapshot to the next.
#[derive(Clone, Debug)]
pub struct Way {
    /// What is executed.
    pub steps: Vec<Step>,
    /// Where it leads.
    pub end: Place,
    /// How much speaks against it: calls that nothing tells of, and guards that it does not explain.
    pub doubts: u32,
}

/// Finds ways through the bytecode of one trace.
pub struct Walker<'a, S> {
    /// The functions of the trace.
    pub cast: &'a Cast,
    /// What lies around the trace.
    pub surroundings: &'a S,
    /// The numbering of bytecodes.
    pub set: BytecodeSet,
    /// Whether frames take two slots.
    pub fr2: bool,
    /// The frames that the trace returns to, in order: the function, and the position after the call.
    pub returns: &'a [(Callee, u32)],
    /// Where the trace begins: it ends where it comes back to.
    pub begin: Option<Aim>,
}

/// What is sought.
#[derive(Clone, Copy, Debug)]
pub struct Search<'a> {
    /// The snapshot to come to.
    pub aim: Aim,
    /// Whether there must be a step in between.
    pub not_empty: bool,
    /// Functions that guards in between ask for: they are called on the way.
    pub guards: &'a [Callee],
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::made::{SET, abc, ad, cast, constant, lua, native};
    use crate::trace::stacks::{NOWHERE, Stacks};

    /// Upvalue `n` of any closure is function `n`, but the library function is upvalue 9.
    struct Upvalues;

    impl Surroundings for Upvalues {
        fn upvalue(&self, _: u64, index: u16) -> Option<Callee> {
            match index {
                8 => None,
                9 => Some(native()),
                _ => Some(lua(u64::from(index))),
            }
        }
        fn string(&self, _: &Prototype, _: u16) -> Option<u64> {
            None
        }
        fn number(&self, _: &Prototype, _: u16) -> Option<f64> {
            None
        }
        fn start_instruction(&self, _: &Prototype, _: u32, _: u16) -> Option<Instruction> {
            None
        }
    }

    /// A function that calls the one in upvalue `callee`.
    fn caller(callee: u16) -> Vec<u32> {
        vec![
            ad(Op::FUNCF, 6, 0),
            ad(Op::UGET, 1, callee),
            ad(Op::KSHORT, 3, 5),
            abc(Op::CALL, 1, 2, 2),
            ad(Op::KSHORT, 2, 6),
            ad(Op::RET0, 0, 1),
        ]
    }

    /// A function that returns 7.
    fn seven() -> Vec<u32> {
        vec![ad(Op::FUNCF, 2, 0), ad(Op::KSHORT, 0, 7), ad(Op::RET1, 0, 2)]
    }

    /// The one way from a snapshot to another: the functions and positions, and where it is native.
    fn way(functions: &[Vec<u32>], stacks: &mut Stacks, from: Aim, to: Aim) -> (Vec<(u64, u32, bool)>, Way) {
        let constants: Vec<(u16, Callee)> =
            (0..functions.len()).map(|index| (constant(index), lua(index as u64))).collect();
        let cast = cast(functions, &constants);
        let walker = Walker { cast: &cast, surroundings: &Upvalues, set: SET, fr2: true, returns: &[], begin: None };
        let start = Place::at(stacks, from, 0);
        let mut ways = walker.ways(stacks, &start, Search { aim: to, not_empty: true, guards: &[] });
        assert_eq!(ways.len(), 1, "{ways:?}");
        let way = ways.remove(0);
        let index = |stack| match stacks.get(stack).callee {
            Callee::Lua { prototype, .. } => (prototype - crate::trace::made::START) / 0x1000,
            Callee::Native { .. } => u64::MAX,
        };
        (way.steps.iter().map(|step| (index(step.stack), step.position, step.is_native)).collect(), way)
    }

    fn outermost(stacks: &mut Stacks) -> StackId {
        stacks.intern(None, lua(0), NOWHERE)
    }

    #[test]
    fn a_call_of_a_known_function_goes_through_it() {
        let mut stacks = Stacks::default();
        let stack = outermost(&mut stacks);
        stacks.are_shown();
        let at = |position| Aim { stack, position };
        let (steps, way) = way(&[caller(1), seven()], &mut stacks, at(1), at(4));
        let called = [(1, 0, false), (1, 1, false), (1, 2, false)];
        assert_eq!(steps, [&[(0, 1, false), (0, 2, false), (0, 3, false)][..], &called].concat());
        assert_eq!(way.end.slot_of(0, 1).origin, Origin::Number(7.0), "the result is in the call's slot");
    }

    #[test]
    fn a_tail_call_takes_the_place_of_its_caller() {
        let mut stacks = Stacks::default();
        let stack = outermost(&mut stacks);
        stacks.are_shown();
        let at = |position| Aim { stack, position };
        let tail = vec![ad(Op::FUNCF, 4, 0), ad(Op::UGET, 0, 2), ad(Op::CALLT, 0, 1)];
        let (steps, way) = way(&[caller(1), tail, seven()], &mut stacks, at(1), at(4));
        assert_eq!(steps.iter().map(|step| step.0).collect::<Vec<_>>(), [0, 0, 0, 1, 1, 1, 2, 2, 2]);
        let inner = stacks.get(way.steps[8].stack);
        assert_eq!((inner.callee, inner.caller, inner.call), (lua(2), Some(stack), 3));
    }

    #[test]
    fn varargs_are_not_known_to_the_function() {
        let mut stacks = Stacks::default();
        let stack = outermost(&mut stacks);
        stacks.are_shown();
        let at = |position| Aim { stack, position };
        let vararg = vec![ad(Op::FUNCV, 4, 0), abc(Op::VARG, 0, 0, 0), ad(Op::RETM, 0, 0)];
        let (steps, way) = way(&[caller(1), vararg], &mut stacks, at(1), at(4));
        assert_eq!(steps[3..], [(1, 0, false), (1, 1, false), (1, 2, false)]);
        assert_eq!(way.end.slot_of(0, 1), Slot::default(), "what it returns is not known");
    }

    #[test]
    fn what_is_called_under_protection_is_what_a_snapshot_shows_there() {
        let mut stacks = Stacks::default();
        let stack = outermost(&mut stacks);
        let protected = stacks.intern(Some(stack), native(), 3);
        let inside = stacks.intern(Some(protected), lua(1), NOWHERE);
        stacks.are_shown();
        let functions = [caller(9), seven()];
        let (steps, _) = way(&functions, &mut stacks, Aim { stack, position: 1 }, Aim { stack: inside, position: 1 });
        assert_eq!(steps, [(0, 1, false), (0, 2, false), (0, 3, false), (1, 0, false)]);
        let (steps, way) = way(&functions, &mut stacks, Aim { stack: inside, position: 1 }, Aim { stack, position: 4 });
        assert_eq!(steps, [(1, 1, false), (1, 2, false)]);
        assert_eq!(way.end.stack(), Some(stack), "out of the protected call as well");
    }

    #[test]
    fn a_metamethod_returns_into_the_slot_of_its_operation() {
        let mut stacks = Stacks::default();
        let stack = outermost(&mut stacks);
        let inside = stacks.intern(Some(stack), lua(1), 1);
        stacks.are_shown();
        let add = vec![ad(Op::FUNCF, 6, 0), abc(Op::ADDVV, 4, 2, 3), ad(Op::RET0, 0, 1)];
        let (steps, way) =
            way(&[add, seven()], &mut stacks, Aim { stack: inside, position: 1 }, Aim { stack, position: 2 });
        assert_eq!(steps, [(1, 1, false), (1, 2, false)]);
        assert_eq!(way.end.slot_of(0, 4).origin, Origin::Number(7.0));
    }

    #[test]
    fn a_library_function_is_a_native_step_of_its_caller() {
        let mut stacks = Stacks::default();
        let stack = outermost(&mut stacks);
        stacks.are_shown();
        let at = |position| Aim { stack, position };
        let (steps, way) = way(&[caller(9), seven()], &mut stacks, at(1), at(5));
        assert_eq!(steps[2..], [(0, 3, false), (0, 3, true), (0, 4, false)]);
        assert_eq!(way.doubts, 0);
    }
}
