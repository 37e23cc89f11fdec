//! Upvalues: which references belong to a function, and their values.
//!
//! LuaJIT's sources: [`cse_uref`], [`rec_upvalue`], [`lj_opt_fwd_uload`].
//!
//! [`cse_uref`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_opt_fold.c#L2161-L2187
//! [`rec_upvalue`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_record.c#L1785-L1865
//! [`lj_opt_fwd_uload`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_opt_mem.c#L511-L541

use std::collections::HashSet;

use super::{BytecodeStep, Constant, Reader, ReadingPlace, SlotValue, VmQueries};
use crate::Prototype;
use crate::bytecode::Op;
use crate::trace::functions::Callee;
use crate::trace::ir::{BIAS, FIRST, Ins, IrOp as Ir};
use crate::trace::stacks::Stacks;

impl<S: VmQueries> Reader<'_, S> {
    /// Whether an instruction belongs to the access of the upvalue that a bytecode reads or writes.
    pub(super) fn is_of_upvalue(
        &self,
        stacks: &Stacks,
        place: &ReadingPlace,
        step: BytecodeStep,
        op: Ir,
        ins: Ins,
        at: u16,
    ) -> bool {
        let index = match step.op {
            Op::UGET => step.instruction.d(),
            _ => u16::from(step.instruction.a()),
        };
        let code = &self.body.code;
        // The reference itself, or a value computed from it.
        let mut reference = at;
        if !matches!(op, Ir::UREFC | Ir::UREFO) {
            reference = [ins.op1(), ins.op2()].into_iter().find(|&operand| operand > BIAS).unwrap_or(ins.op1());
            if matches!(self.op(reference), Some(Ir::SUB | Ir::ADD)) {
                reference = code.ins(reference).op1();
            }
        }
        if !matches!(self.op(reference), Some(Ir::UREFC | Ir::UREFO)) {
            // This checks which function the frame has.
            return op == Ir::EQ;
        }
        let own = place.stack().map(|stack| stacks.get(stack).callee);
        own.is_none_or(|own| self.is_upvalue(reference, own, index) != Some(false))
    }

    /// Whether a reference is to the upvalue `index` of a function; [`None`] if that is not known. Constant functions
    /// may share upvalues, and then their references, too (`cse_uref`, `lj_opt_fold.c`).
    pub(super) fn is_upvalue(&self, reference: u16, own: Callee, index: u16) -> Option<bool> {
        let found = self.body.code.ins(reference);
        // A function that is no constant is the function of a frame.
        let function = match self.functions.function(found.op1())? {
            Callee::Lua { function, .. } => function?,
            Callee::Native { .. } => return Some(false),
        };
        let found = self.queries.upvalue_address(function, found.op2() >> 8)?;
        let prototype = own.prototype()?;
        if self.functions.is_any_closure(prototype) {
            return None;
        }
        let closures = self.functions.closures(prototype);
        let own = closures.iter().map(|&closure| self.queries.upvalue_address(closure, index));
        let own = own.collect::<Option<Vec<u64>>>()?;
        match own[..] {
            [only] => Some(only == found),
            _ if own.contains(&found) => None,
            _ => Some(false),
        }
    }

    /// The value that `UGET` puts into its slot (`rec_upvalue`, `lj_record.c`).
    pub(super) fn upvalue(&self, stacks: &Stacks, step: BytecodeStep, loaded: Option<u16>, until: u16) -> SlotValue {
        // The closure may be another one than the constant.
        if let Some(load) = loaded {
            return self.loaded_value(load);
        }
        if let Some(constant) = self.constant_upvalue(stacks, step) {
            return match constant {
                Constant::Function(callee) => SlotValue::Function(callee),
                Constant::Number(bits) => SlotValue::Number(bits),
                Constant::Other => SlotValue::Constant,
            };
        }
        match (self.upvalue_before(stacks, step, until), stacks.get(step.stack).callee.prototype()) {
            (None | Some(SlotValue::Any), Some(prototype)) => SlotValue::Upvalue(prototype, step.instruction.d()),
            (before, _) => before.unwrap_or_default(),
        }
    }

    /// Finds the prototypes that may have a running closure which is no constant: the function of a frame in which the trace
    /// began or to which it returned, if its upvalues were read without a check of the closure. If a prototype has many
    /// closures, the recorder does not check (`rec_upvalue`, `lj_record.c`), even if another closure is a constant.
    pub fn find_unknown_closures(&self) -> HashSet<u64> {
        let code = &self.body.code;
        let is_unknown = |at: u16| {
            let function = code.ins(at).op1();
            let is_told = |callee: &Callee| matches!(callee, Callee::Lua { function: Some(_), .. });
            matches!(self.op(at), Some(Ir::UREFC | Ir::UREFO))
                && function >= BIAS
                && !self.functions.guarded(function).iter().any(is_told)
        };
        if !(FIRST..code.end()).any(is_unknown) {
            return HashSet::new();
        }
        let began = self.frames.first().and_then(Option::as_ref).into_iter().flatten().filter_map(|frame| frame.callee);
        let returned = self.returns.iter().map(|(callee, _)| *callee);
        began.chain(returned).filter_map(Callee::prototype).collect()
    }

    /// The closure of a prototype, if no other closure can run in the trace.
    pub(super) fn only_closure(&self, prototype: u64) -> Option<u64> {
        self.functions.only_closure(prototype).filter(|_| !self.unknown_closures.contains(&prototype))
    }

    /// The value of the upvalue that is read, if it never changes.
    pub(super) fn constant_upvalue(&self, stacks: &Stacks, step: BytecodeStep) -> Option<Constant> {
        let prototype = stacks.get(step.stack).callee.prototype()?;
        self.queries.upvalue(self.only_closure(prototype)?, step.instruction.d())
    }

    /// The known value of the upvalue that is read: equal loads are emitted only once, and a stored value is not loaded
    /// (`lj_opt_fwd_uload`, `lj_opt_mem.c`). [`None`] if it was neither loaded nor stored.
    pub(super) fn upvalue_before(&self, stacks: &Stacks, step: BytecodeStep, until: u16) -> Option<SlotValue> {
        let code = &self.body.code;
        let own = stacks.get(step.stack).callee;
        let mut references: Vec<u16> = Vec::new();
        let mut last: Option<(u16, SlotValue)> = None;
        let mut is_sure = true;
        for at in FIRST..code.end() {
            let ins = code.ins(at);
            let value = match self.op(at) {
                Some(Ir::ULOAD) if at < until => self.loaded_value(at),
                Some(Ir::USTORE) => self.value(ins.op2()),
                _ => continue,
            };
            let reference = ins.op1();
            if !matches!(self.op(reference), Some(Ir::UREFC | Ir::UREFO)) {
                continue;
            }
            let is_it = match self.is_upvalue(reference, own, step.instruction.d()) {
                // A function that is no constant is the function of a frame, perhaps of another frame.
                None if self.functions.function(code.ins(reference).op1()).is_none() => {
                    is_sure &= self.is_outermost_function(stacks, step, code.ins(reference).op1());
                    code.ins(reference).op2() >> 8 == step.instruction.d()
                }
                None => {
                    is_sure = false;
                    true
                }
                Some(is_it) => is_it,
            };
            if !is_it {
                continue;
            }
            if at < until {
                last = Some((at, value));
            } else if let Some((before, _)) = last {
                // A store between them may have been dropped because a later one made it superfluous.
                is_sure &= !(before..until).any(|at| self.op(at) == Some(Ir::NOP));
            } else {
                (last, is_sure) = (Some((until, SlotValue::Any)), false);
            }
            if !references.contains(&reference) {
                references.push(reference);
            }
        }
        let (_, value) = last?;
        Some(if is_sure && references.len() == 1 { value } else { SlotValue::Any })
    }

    /// Whether a value is the function of a bytecode's frame, and this is the outermost frame, which the trace has not left.
    pub(super) fn is_outermost_function(&self, stacks: &Stacks, step: BytecodeStep, value: u16) -> bool {
        let first = if self.fr2 { 2 } else { 1 };
        stacks.get(step.stack).caller.is_none()
            && self.returns.is_empty()
            && self.op(value) == Some(Ir::SLOAD)
            && usize::from(self.body.code.ins(value).op1()) < first
    }

    /// Whether upvalues may be slots in frames of the trace: then a guard checks where the frames are.
    pub(super) fn aliases_slots(&self) -> bool {
        let code = &self.body.code;
        (FIRST..code.end())
            .any(|at| self.op(at) == Some(Ir::EQ) && [code.ins(at).op1(), code.ins(at).op2()].contains(&BIAS))
    }

    /// Whether a function in a frame of the trace has created the running function, so that its upvalues may be slots there.
    pub(super) fn is_inside(&self, stacks: &Stacks, place: &ReadingPlace) -> bool {
        let own = place.stack().and_then(|stack| stacks.get(stack).callee.prototype());
        let makes = |prototype: &Prototype| {
            (0..prototype.key.sizebc).filter_map(|position| prototype.instruction(position)).any(|ins| {
                ins.opcode(self.set).is_some_and(|opcode| opcode.op == Op::FNEW) && prototype.child(ins.d()) == own
            })
        };
        own.is_some()
            && place.frames.iter().any(|frame| {
                let prototype = stacks.get(frame.stack).callee.prototype();
                prototype
                    .and_then(|prototype| self.functions.prototype(prototype))
                    .is_some_and(|prototype| makes(prototype))
            })
    }
}
