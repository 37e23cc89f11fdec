//! Calls and returns: the functions that they enter, and the places that they return to.
//!
//! LuaJIT's sources: [`callunroll`], [`lj_opt_dse_ahstore`], [`rec_call_setup`], [`lj_record_ret`],
//! [`rec_call_specialize`].
//!
//! [`callunroll`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_jit.h#L122-L123
//! [`lj_opt_dse_ahstore`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_opt_mem.c#L368-L386
//! [`rec_call_setup`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_record.c#L831-L861
//! [`lj_record_ret`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_record.c#L1000-L1011
//! [`rec_call_specialize`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_record.c#L809-L818

use super::{BytecodeStep, Constant, Phase, Reader, ReadingPlace, SlotValue, VmQueries};
use crate::bytecode::{Metamethod, Op};
use crate::trace::functions::Callee;
use crate::trace::ir::{FIRST, IrOp as Ir, irt};
use crate::trace::stacks::{NOWHERE, Stacks};

/// The most frames in a trace: more than a snapshot has room for.
pub(super) const MAX_DEPTH: usize = 120;

/// How often a trace may run the same function above itself: `callunroll` is 3 by default, `recunroll` 2 (`lj_jit.h`),
/// and each counts calls beyond the first.
pub(super) const MAX_RECURSION: usize = 5;

impl<S: VmQueries> Reader<'_, S> {
    /// The value that a call calls.
    pub(super) fn called_value(&self, place: &ReadingPlace, step: BytecodeStep) -> SlotValue {
        let a = usize::from(step.instruction.a());
        place.slot(if step.op == Op::ITERC { a.wrapping_sub(3) } else { a })
    }

    /// The functions that a call of this value may enter.
    pub(super) fn callees_of(&self, value: SlotValue) -> Vec<Callee> {
        let others = || {
            let mut callees = self.functions.callable();
            if self.powers.unnamed_natives {
                callees.push(UNNAMED);
            }
            callees
        };
        match value {
            SlotValue::Function(callee) => vec![callee],
            SlotValue::Ref(at) => match self.body.code.ins(at).kind_of_result() {
                irt::FUNC => {
                    let mut callees = self.functions.guarded(at);
                    if self.powers.unnamed_natives {
                        callees.push(UNNAMED);
                    }
                    callees
                }
                _ => self.called_objects(),
            },
            SlotValue::Number(_) | SlotValue::Constant => self.called_objects(),
            SlotValue::Any | SlotValue::Unloaded => others(),
            SlotValue::Field(_) | SlotValue::Upvalue(..) => self.found_callees(value).unwrap_or_else(others),
        }
    }

    /// The functions that a call of a value from a field or an upvalue may enter, searched only once. [`None`] if they
    /// are not known.
    fn found_callees(&self, value: SlotValue) -> Option<Vec<Callee>> {
        if let Some(known) = self.callees.borrow().get(&value) {
            return known.clone();
        }
        let found = match value {
            SlotValue::Field(string) => self.callees_by(string),
            SlotValue::Upvalue(prototype, index) => self.callees_in(prototype, index),
            _ => None,
        };
        self.callees.borrow_mut().insert(value, found.clone());
        found
    }

    /// The functions that a call of a value loaded by this string may enter: the ones with which guards compare such
    /// values, or that were stored under the string. [`None`] if they are not known.
    fn callees_by(&self, string: u64) -> Option<Vec<Callee>> {
        let code = &self.body.code;
        let by_it = |at: &u16| self.may_be_by_string(code.ins(*at).op1(), string);
        let loads = (FIRST..code.end()).filter(|at| self.op(*at) == Some(Ir::HLOAD)).filter(by_it);
        let stores: Vec<u16> =
            (FIRST..code.end()).filter(|at| self.op(*at) == Some(Ir::HSTORE)).filter(by_it).collect();
        // A store of another value may have been dropped (`lj_opt_dse_ahstore`, `lj_opt_mem.c`).
        let is_dropped = !stores.is_empty() && (FIRST..code.end()).any(|at| self.op(at) == Some(Ir::NOP));
        // Fields of C data are loaded in another way.
        if is_dropped || self.powers.cdata {
            return None;
        }
        let values = loads.map(SlotValue::Ref).chain(stores.iter().map(|&at| self.value(code.ins(at).op2())));
        // The table may have been created with a constant.
        let mut callees = self.called_objects();
        for callee in values.flat_map(|value| self.callees_of(value)) {
            if !callees.contains(&callee) {
                callees.push(callee);
            }
        }
        Some(callees)
    }

    /// The functions that a call of an upvalue may enter, if none of the trace's known closures can change the upvalue.
    fn callees_in(&self, prototype: u64, index: u16) -> Option<Vec<Callee>> {
        if self.functions.is_any_closure(prototype) || self.unknown_closures.contains(&prototype) {
            return None;
        }
        let closures = self.functions.closures(prototype);
        let mut callees = Vec::new();
        for closure in &closures {
            match self.queries.upvalue(*closure, index)? {
                Constant::Function(callee) if callees.contains(&callee) => {}
                Constant::Function(callee) => callees.push(callee),
                Constant::Number(_) | Constant::Other => callees.extend(self.called_objects()),
            }
        }
        (!callees.is_empty()).then_some(callees)
    }

    /// The functions that a call of an object, which is no function, may enter.
    fn called_objects(&self) -> Vec<Callee> {
        let named = self.powers.looks_for("__call");
        let may_be = |callee: &Callee| match callee {
            Callee::Lua { .. } => self.powers.metatypes || named && self.functions.may_be_metamethod(*callee, "__call"),
            Callee::Native { .. } => self.powers.cdata || self.functions.may_be_native_metamethod(*callee, "__call"),
        };
        let mut callees: Vec<Callee> = self.functions.callable().into_iter().filter(may_be).collect();
        if self.powers.unnamed_natives {
            callees.push(UNNAMED);
        }
        callees
    }

    /// The first slot of a call's arguments.
    pub(super) fn arguments(&self, step: BytecodeStep) -> usize {
        usize::from(step.instruction.a()) + if self.fr2 { 2 } else { 1 }
    }

    /// The places after a call was set up: at the beginning of the function, or in a library function.
    pub(super) fn enter_called(
        &self,
        stacks: &mut Stacks,
        place: &ReadingPlace,
        step: BytecodeStep,
        callee: Callee,
    ) -> Vec<ReadingPlace> {
        let is_tail = matches!(step.op, Op::CALLT | Op::CALLMT);
        let is_meta = matches!(place.phase, Phase::Meta(_));
        let mut base = place.clone();
        let (caller, call) = if is_tail && !is_meta {
            let current = stacks.get(step.stack);
            (current.caller, current.call)
        } else {
            (Some(step.stack), step.position)
        };
        match callee {
            Callee::Native { .. } => {
                // A library function in a tail call replaces its caller's frame, but its instructions still belong to the call.
                base.phase = Phase::Native(callee);
                vec![base]
            }
            Callee::Lua { prototype, .. } => {
                if self.functions.prototype(prototype).is_none() || base.frames.len() >= MAX_DEPTH {
                    return Vec::new();
                }
                let runs = base.frames.iter().filter(|frame| stacks.get(frame.stack).callee.same_code(callee)).count();
                if runs > MAX_RECURSION {
                    return Vec::new();
                }
                let arguments = self.arguments(step);
                let called = self.called_value(place, step);
                // A called object becomes the first argument of its `__call` (`rec_call_setup`, `lj_record.c`).
                let object = match called {
                    SlotValue::Function(_) => Some(None),
                    SlotValue::Ref(at) if self.body.code.ins(at).kind_of_result() == irt::FUNC => Some(None),
                    SlotValue::Ref(_) => Some(Some(called)),
                    _ => None,
                };
                let passed: Vec<SlotValue> = match (step.op, object) {
                    (Op::CALL | Op::CALLT, Some(object)) if !is_meta => {
                        let count = usize::from(step.instruction.c()).saturating_sub(1);
                        let count = if step.op == Op::CALLT {
                            usize::from(step.instruction.d()).saturating_sub(1)
                        } else {
                            count
                        };
                        let given = (arguments..arguments + count).map(|slot| place.slot(slot));
                        object.into_iter().chain(given).collect()
                    }
                    _ => Vec::new(),
                };
                if is_tail && !is_meta {
                    base.frames.pop();
                }
                let stack = stacks.intern(caller, callee, call);
                base.push(stack);
                for (slot, value) in passed.into_iter().enumerate() {
                    base.set_slot(slot, if value == SlotValue::Unloaded { SlotValue::Any } else { value });
                }
                base.position = 0;
                base.phase = Phase::Start;
                vec![base]
            }
        }
    }

    /// The places after a return with `values`.
    pub(super) fn leave(&self, stacks: &mut Stacks, place: &ReadingPlace, values: &[SlotValue]) -> Vec<ReadingPlace> {
        let mut next = place.with(Phase::Start);
        let Some(left) = next.frames.pop() else { return Vec::new() };
        let mut call = stacks.get(left.stack).call;
        let mut is_protected = false;
        // A return also leaves protected calls.
        while let Some(outer) = next.frames.last().map(|frame| stacks.get(frame.stack))
            && matches!(outer.callee, Callee::Native { .. })
        {
            call = outer.call;
            next.frames.pop();
            is_protected = true;
        }
        if next.frames.is_empty() {
            // A return to the frame below the one in which the trace ran.
            let Some(&(callee, position)) = self.returns.get(place.returns) else { return Vec::new() };
            let stack = stacks.intern(None, callee, NOWHERE);
            next.push(stack);
            next.position = position.wrapping_sub(1);
            next.returns += 1;
            let call = self.step(stacks, &next);
            next.position = position;
            if let Some(call) = call.filter(|call| matches!(call.op, Op::CALL | Op::CALLM | Op::ITERC)) {
                // Only the results of that frame are loaded so far (`lj_record_ret`).
                let a = usize::from(call.instruction.a());
                (0..a).for_each(|slot| next.set_slot(slot, SlotValue::Unloaded));
                let wanted = usize::from(call.instruction.b()).saturating_sub(1);
                if call.op == Op::CALL && !is_protected {
                    values.iter().enumerate().take(wanted).for_each(|(index, value)| next.set_slot(a + index, *value));
                }
            }
            return vec![next];
        }
        next.position = call;
        let Some(step) = self.step(stacks, &next) else { return Vec::new() };
        let a = usize::from(step.instruction.a());
        match step.op {
            Op::CALL | Op::CALLM | Op::ITERC => {
                let mut next = next.go(call + 1);
                next.forget_from(a);
                let wanted = usize::from(step.instruction.b()).saturating_sub(1);
                if !is_protected && step.op != Op::CALLM {
                    for (index, value) in values.iter().enumerate().take(wanted) {
                        next.set_slot(a + index, *value);
                    }
                }
                vec![next]
            }
            _ => self.back(stacks, &next, step, values.first().copied().unwrap_or_default()),
        }
    }

    /// The places after a metamethod has returned to the operation that called it.
    pub(super) fn back(
        &self,
        stacks: &mut Stacks,
        place: &ReadingPlace,
        step: BytecodeStep,
        value: SlotValue,
    ) -> Vec<ReadingPlace> {
        match step.instruction.opcode(self.set).map(|opcode| opcode.metamethod) {
            Some(Metamethod::Named("__lt" | "__le" | "__eq")) => match self.ways(stacks, place, step) {
                Some((taken, other)) => vec![place.go(other), place.go(taken)],
                None => Vec::new(),
            },
            Some(Metamethod::Named("__concat")) => {
                // Further metamethods may concatenate the rest.
                let mut next = place.go(step.position + 1);
                next.set_slot(usize::from(step.instruction.a()), SlotValue::Any);
                vec![next, place.with(Phase::Start)]
            }
            Some(Metamethod::Named("__newindex")) => vec![place.go(step.position + 1)],
            _ => {
                let mut next = place.go(step.position + 1);
                next.set_slot(usize::from(step.instruction.a()), value);
                vec![next]
            }
        }
    }
}

/// A library function with many instances, so that it is no constant (`rec_call_specialize`).
const UNNAMED: Callee = Callee::Native { function: 0, ffid: 0 };
