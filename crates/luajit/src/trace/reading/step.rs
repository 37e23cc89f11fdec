//! One step over one bytecode: the instructions that it emits, and where execution continues.
//!
//! LuaJIT's sources: [`lj_record_ins`], [`rec_upvalue`], [`lj_record_idx`], [`lj_opt_narrow_mod`].
//!
//! [`lj_opt_narrow_mod`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_opt_narrow.c#L559-L577
//! [`lj_record_ins`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_record.c#L2359-L2412
//! [`rec_upvalue`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_record.c#L1813-L1833
//! [`lj_record_idx`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_record.c#L1598-L1614

use super::branches::jump;
use super::kinds::{RESULTS, is_arithmetic, is_comparison};
use super::{BytecodeStep, Phase, Reader, ReadingPlace, SlotValue, VmQueries};
use crate::Prototype;
use crate::bytecode::{Metamethod, Op, OperandA};
use crate::trace::functions::Callee;
use crate::trace::ir::{IrOp as Ir, irt};
use crate::trace::stacks::Stacks;

impl<S: VmQueries> Reader<'_, S> {
    pub(super) fn prototype(&self, stacks: &Stacks, place: &ReadingPlace) -> Option<&Prototype> {
        let callee = stacks.get(place.stack()?).callee;
        self.functions.prototype(callee.prototype()?).map(|prototype| &**prototype)
    }

    /// The bytecode at a place.
    pub(super) fn step(&self, stacks: &Stacks, place: &ReadingPlace) -> Option<BytecodeStep> {
        let prototype = self.prototype(stacks, place)?;
        let mut instruction = prototype.instruction(place.position)?;
        let mut op = instruction.opcode(self.set)?.op;
        // At the start of a trace, the instruction that it has replaced counts, except for loops, which show enough themselves.
        if op == Op::JLOOP
            && let Some(original) = self.queries.start_instruction(prototype, place.position, instruction.d())
        {
            let original_op = original.opcode(self.set)?.op;
            if original_op != Op::LOOP {
                (instruction, op) = (original, original_op);
            }
        }
        Some(BytecodeStep { stack: place.stack()?, position: place.position, instruction, op })
    }

    /// The places after `step`, which has emitted the instructions `made`.
    pub(super) fn next(
        &self,
        stacks: &mut Stacks,
        place: &ReadingPlace,
        step: BytecodeStep,
        made: std::ops::Range<u16>,
    ) -> Vec<ReadingPlace> {
        let a = usize::from(step.instruction.a());
        let d = step.instruction.d();
        let after = step.position + 1;
        match place.phase {
            // Either the setup of a root trace was emitted, or nothing was.
            Phase::Setup => return vec![place.with(Phase::Start)],
            Phase::Forced(target) => return vec![self.branched(place, step, made).go(target)],
            Phase::Calling(callee) | Phase::Meta(callee) => return self.enter_called(stacks, place, step, callee),
            Phase::Native(callee) => return self.leave_native(stacks, place, step, callee, made),
            Phase::Start => {}
        }
        match step.op {
            Op::JMP | Op::ISNEXT => vec![place.go(jump(step.position, d))],
            Op::LOOP | Op::ILOOP | Op::JLOOP => vec![place.go(after)],
            Op::FUNCF | Op::IFUNCF | Op::JFUNCF | Op::FUNCV | Op::IFUNCV | Op::JFUNCV => vec![place.go(after)],
            op if is_comparison(op) || matches!(op, Op::FORI | Op::JFORI | Op::FORL | Op::IFORL | Op::JFORL) => {
                let Some((taken, other)) = self.ways(stacks, place, step) else { return Vec::new() };
                let mut places = self.metamethods_called(stacks, place, step);
                let branched = self.branched(place, step, made);
                let known = self.holds(place, step);
                for (target, holds) in [(other, false), (taken, true)] {
                    // A comparison of two constants is done while recording, and emits nothing (`lj_record_ins`).
                    if known.is_some_and(|known| known != holds) {
                        continue;
                    }
                    let mut next = branched.go(target);
                    if matches!(op, Op::ISTC | Op::ISFC) && target == taken {
                        let value = place.slot(usize::from(d));
                        next.set_slot(a, value);
                    }
                    places.push(next);
                }
                places
            }
            Op::ITERL | Op::IITERL | Op::JITERL => match self.iterator_body(stacks, place, step.position) {
                Some(body) => {
                    let mut again = place.go(body);
                    let key = again.slot(a);
                    again.set_slot(a.wrapping_sub(1), key);
                    vec![again, place.go(after)]
                }
                None => Vec::new(),
            },
            Op::ITERN => {
                let at_loop = place.go(after);
                let Some(body) = self.iterator_body(stacks, &at_loop, after) else { return Vec::new() };
                let mut again = place.go(body);
                again.set_slot(a.wrapping_sub(1), SlotValue::Any);
                again.forget_from(a);
                vec![again, place.go(after + 1)]
            }
            Op::CALL | Op::CALLM | Op::ITERC => {
                let mut callees = self.callees_of(self.called_value(place, step));
                callees.sort_unstable_by_key(|callee| callee.prototype().is_none());
                callees.into_iter().map(|callee| place.with(Phase::Calling(callee))).collect()
            }
            Op::CALLT | Op::CALLMT => {
                let callees = self.callees_of(place.slot(a));
                callees.into_iter().map(|callee| place.with(Phase::Calling(callee))).collect()
            }
            Op::RET | Op::RETM | Op::RET0 | Op::RET1 => {
                let values = match step.op {
                    Op::RET1 => vec![place.slot(a)],
                    Op::RET => (a..a + usize::from(d).saturating_sub(1)).map(|slot| place.slot(slot)).collect(),
                    _ => Vec::new(),
                };
                self.leave(stacks, place, &values)
            }
            _ => self.plain(stacks, place, step, made),
        }
    }

    /// Whether a comparison of constants holds, in the order of [`Self::ways`].
    fn holds(&self, place: &ReadingPlace, step: BytecodeStep) -> Option<bool> {
        let ins = step.instruction;
        let a = usize::from(ins.a());
        let number = |slot: usize| match place.slot(slot) {
            SlotValue::Number(bits) => Some(f64::from_bits(bits)),
            _ => None,
        };
        match step.op {
            Op::FORI | Op::JFORI | Op::FORL | Op::IFORL | Op::JFORL => {
                let (index, stop, by) = (number(a)?, number(a + 1)?, number(a + 2)?);
                let is_end = !matches!(step.op, Op::FORI | Op::JFORI);
                let index = if is_end { index + by } else { index };
                let goes_on = if by >= 0.0 { index <= stop } else { stop <= index };
                // The beginning jumps if there is nothing to do, the end then goes on: both are the first of the ways.
                Some(!goes_on)
            }
            Op::ISLT => Some(number(a)? < number(usize::from(ins.d()))?),
            Op::ISGE => Some(number(a)? >= number(usize::from(ins.d()))?),
            Op::ISLE => Some(number(a)? <= number(usize::from(ins.d()))?),
            Op::ISGT => Some(number(a)? > number(usize::from(ins.d()))?),
            _ => None,
        }
    }

    /// The place after a loop's instruction has updated its slots.
    fn branched(&self, place: &ReadingPlace, step: BytecodeStep, made: std::ops::Range<u16>) -> ReadingPlace {
        let mut next = place.clone();
        let a = usize::from(step.instruction.a());
        if matches!(step.op, Op::FORI | Op::JFORI | Op::FORL | Op::IFORL | Op::JFORL) {
            let added = made.rev().find(|&at| matches!(self.op(at), Some(Ir::ADD | Ir::ADDOV)));
            let is_end = matches!(step.op, Op::FORL | Op::IFORL | Op::JFORL);
            let counter = match (place.slot(a), place.slot(a + 2)) {
                (SlotValue::Number(index), SlotValue::Number(by)) if is_end => {
                    SlotValue::Number((f64::from_bits(index) + f64::from_bits(by)).to_bits())
                }
                (index @ SlotValue::Number(_), _) if !is_end => index,
                _ if is_end => added.map_or(SlotValue::Any, SlotValue::Ref),
                _ => SlotValue::Any,
            };
            next.set_slot(a, counter);
            next.set_slot(a + 3, counter);
        }
        next
    }

    /// The places after an instruction that continues with the next one, unless it calls a metamethod.
    fn plain(
        &self,
        stacks: &mut Stacks,
        place: &ReadingPlace,
        step: BytecodeStep,
        made: std::ops::Range<u16>,
    ) -> Vec<ReadingPlace> {
        let ins = step.instruction;
        let a = usize::from(ins.a());
        let Some(opcode) = ins.opcode(self.set) else { return Vec::new() };
        let mut places = self.metamethods_called(stacks, place, step);
        let mut next = place.go(step.position + 1);
        match opcode.a {
            OperandA::Destination => {
                let value = self.result(stacks, place, step, made);
                next.set_slot(a, value);
            }
            OperandA::Base if step.op == Op::KNIL => {
                (a..=usize::from(ins.d())).for_each(|slot| next.set_slot(slot, SlotValue::Constant));
            }
            OperandA::Base if step.op != Op::TSETM => next.forget_from(a),
            // The upvalue may be a slot in a frame of the trace (`rec_upvalue`, `lj_record.c`).
            _ if matches!(step.op, Op::USETV | Op::USETS | Op::USETN | Op::USETP)
                && !made.clone().any(|at| self.op(at) == Some(Ir::USTORE)) =>
            {
                next.forget_all();
            }
            _ => {}
        }
        places.push(next);
        places
    }

    /// Places in the metamethods that the instruction may call.
    pub(super) fn metamethods_called(
        &self,
        stacks: &mut Stacks,
        place: &ReadingPlace,
        step: BytecodeStep,
    ) -> Vec<ReadingPlace> {
        let Some(Metamethod::Named(name)) = step.instruction.opcode(self.set).map(|opcode| opcode.metamethod) else {
            return Vec::new();
        };
        if !self.powers.metamethods || !self.may_have_metamethods(stacks, place, step) {
            return Vec::new();
        }
        // `a <= b` may call `__lt`.
        let names: &[&str] = if name == "__le" { &["__le", "__lt"] } else { &[name] };
        let mut places = Vec::new();
        for callee in self.functions.callable() {
            let may_be = match callee {
                Callee::Lua { .. } => {
                    self.powers.metatypes || names.iter().any(|name| self.functions.may_be_metamethod(callee, name))
                }
                Callee::Native { .. } => {
                    self.powers.cdata || names.iter().any(|name| self.functions.may_be_native_metamethod(callee, name))
                }
            };
            if may_be {
                places.push(place.with(Phase::Meta(callee)));
            }
        }
        places
    }

    /// Whether an operand of the instruction may have metamethods: numbers and strings have none of their own.
    fn may_have_metamethods(&self, stacks: &Stacks, place: &ReadingPlace, step: BytecodeStep) -> bool {
        let ins = step.instruction;
        let slots: &[u8] = match step.op {
            Op::GGET | Op::GSET => return true,
            Op::TGETV | Op::TGETS | Op::TGETB | Op::TGETR | Op::TSETV | Op::TSETS | Op::TSETB | Op::TSETR => &[ins.b()],
            Op::CAT => return true,
            _ => &self.read_slots(stacks, place, step),
        };
        let plain = |value: SlotValue| match value {
            SlotValue::Number(_) => true,
            SlotValue::Ref(at) => self.body.code.ins(at).kind_of_result() >= irt::NUM,
            _ => false,
        };
        slots.is_empty() || !slots.iter().all(|&slot| plain(place.slot(usize::from(slot))))
    }

    /// The slots that a plain instruction uses as operands.
    pub(super) fn read_slots(&self, _: &Stacks, _: &ReadingPlace, step: BytecodeStep) -> Vec<u8> {
        let ins = step.instruction;
        match step.op {
            Op::ADDVN | Op::SUBVN | Op::MULVN | Op::DIVVN | Op::MODVN => vec![ins.b()],
            Op::ADDNV | Op::SUBNV | Op::MULNV | Op::DIVNV | Op::MODNV => vec![ins.b()],
            Op::ADDVV | Op::SUBVV | Op::MULVV | Op::DIVVV | Op::MODVV | Op::POW => vec![ins.b(), ins.c()],
            Op::BAND | Op::BOR | Op::BXOR | Op::BSHL | Op::BSHR | Op::BSAR => vec![ins.b(), ins.c()],
            Op::UNM | Op::LEN | Op::MOV | Op::NOT | Op::BNOT => vec![ins.d() as u8],
            Op::ISLT | Op::ISGE | Op::ISLE | Op::ISGT | Op::ISEQV | Op::ISNEV => vec![ins.a(), ins.d() as u8],
            Op::ISEQS | Op::ISNES | Op::ISEQN | Op::ISNEN | Op::ISEQP | Op::ISNEP => vec![ins.a()],
            _ => Vec::new(),
        }
    }

    /// The value that an instruction puts into its destination.
    pub(super) fn result(
        &self,
        stacks: &Stacks,
        place: &ReadingPlace,
        step: BytecodeStep,
        made: std::ops::Range<u16>,
    ) -> SlotValue {
        let ins = step.instruction;
        let last = |of: &[Ir]| made.clone().rev().find(|&at| self.op(at).is_some_and(|op| of.contains(&op)));
        match step.op {
            Op::MOV => match (place.slot(usize::from(ins.d())), last(&[Ir::SLOAD])) {
                (SlotValue::Any | SlotValue::Unloaded, Some(load)) => self.loaded_value(load),
                (SlotValue::Unloaded, None) => SlotValue::Any,
                (known, _) => known,
            },
            Op::KSHORT => SlotValue::Number(f64::from(ins.d() as i16).to_bits()),
            Op::KNUM => {
                let number =
                    self.prototype(stacks, place).and_then(|prototype| self.queries.number(prototype, ins.d()));
                number.map_or(SlotValue::Constant, |number| SlotValue::Number(number.to_bits()))
            }
            Op::KSTR | Op::KPRI | Op::KCDATA | Op::NOT => SlotValue::Constant,
            Op::UGET => self.upvalue(stacks, step, last(&[Ir::ULOAD]), made.end),
            op if is_arithmetic(op) || op == Op::UNM => {
                let is_arithmetic = |at: &u16| self.op(*at).is_some_and(|op| RESULTS.contains(&op));
                let end = made.end;
                let made = made.clone().next_back().filter(is_arithmetic);
                made.or_else(|| self.same_as_before(stacks, place, step, end)).map_or(SlotValue::Any, SlotValue::Ref)
            }
            // The last instruction is the result (`lj_opt_narrow_mod`); for powers of two it is a mask.
            Op::MODVN | Op::MODNV | Op::MODVV => {
                let is_result = |at: &u16| {
                    matches!(self.op(*at), Some(Ir::MOD | Ir::SUB | Ir::BAND))
                        && self.body.code.ins(*at).kind_of_result() >= irt::NUM
                };
                made.clone().next_back().filter(is_result).map_or(SlotValue::Any, SlotValue::Ref)
            }
            Op::GGET | Op::TGETS | Op::TGETV | Op::TGETB | Op::TGETR => {
                // Without `__index`, only the value itself is loaded. With it, the lookup ends at a value that is not
                // nil and not loaded by the name of a metamethod (`lj_record_idx`, `lj_record.c`).
                let looks = self.powers.looks_for("__index");
                let is_load = |at: &u16| matches!(self.op(*at), Some(Ir::ALOAD | Ir::HLOAD));
                let found = made.clone().rev().find(|at| if looks { self.is_found(*at) } else { is_load(at) });
                match found {
                    Some(load) => self.loaded_value(load),
                    // Operations on C data load in other ways.
                    None if looks && self.powers.cdata => SlotValue::Any,
                    None => self.loaded_before(stacks, place, step, made.end),
                }
            }
            Op::TNEW | Op::TDUP => last(&[Ir::TNEW, Ir::TDUP]).map_or(SlotValue::Any, SlotValue::Ref),
            _ => SlotValue::Any,
        }
    }

    /// The opcode at a reference.
    pub(super) fn op(&self, at: u16) -> Option<Ir> {
        self.numbering.opcode(self.body.code.ins(at).number()).map(|opcode| opcode.op)
    }
}
