//! The IR instructions that a bytecode must have emitted; without them a reading is refuted.
//!
//! LuaJIT's sources: [`rec_call_specialize`], [`lj_record_mm_lookup`], [`lj_record_ins`], [`lj_opt_fold`],
//! [`lj_opt_narrow_arith`], [`lj_opt_narrow_mod`].
//!
//! [`rec_call_specialize`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_record.c#L796-L828
//! [`lj_record_mm_lookup`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_record.c#L1111-L1135
//! [`lj_record_ins`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_record.c#L2335-L2346
//! [`lj_opt_fold`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_opt_fold.c#L2524-L2596
//! [`lj_opt_narrow_arith`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_opt_narrow.c#L526-L540
//! [`lj_opt_narrow_mod`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_opt_narrow.c#L559-L577

use std::collections::HashSet;
use std::ops::Range;

use super::kinds::is_arithmetic;
use super::tables::LENGTHS;
use super::{BytecodeStep, Constant, Phase, Reader, ReadingPlace, SlotValue, VmQueries};
use crate::bytecode::Op;
use crate::trace::functions::Callee;
use crate::trace::ir::{BIAS, FIRST, IrOp as Ir, irt, is_wide};
use crate::trace::stacks::Stacks;

impl<S: VmQueries> Reader<'_, S> {
    /// Whether a reading may leave a bytecode after it has emitted these instructions.
    pub(super) fn is_complete(
        &self,
        stacks: &Stacks,
        place: &ReadingPlace,
        step: BytecodeStep,
        made: Range<u16>,
    ) -> bool {
        match place.phase {
            Phase::Calling(callee) => return self.may_be_called(self.called_value(place, step), callee, made.end),
            Phase::Native(native) if !self.is_beside_dropped(&made) => {
                return self.has_left_its_operation(place, step, native, made);
            }
            _ => {}
        }
        if !matches!(place.phase, Phase::Start | Phase::Forced(_)) {
            return true;
        }
        // Guards and instructions with an effect are never dropped.
        if !leaves_what_stays(step.op) && self.is_beside_dropped(&made) {
            return true;
        }
        if matches!((place.phase, step.op), (Phase::Forced(_), Op::FORL | Op::IFORL | Op::JFORL)) {
            // The loop has counted before its snapshot was taken.
            return true;
        }
        if !self.ends_well(step, made.clone()) {
            return false;
        }
        // The first bytecode that reads a slot loads the slot's value at the start of the trace (`getslot`).
        let is_unloaded = |slot: usize| place.slot(slot) == SlotValue::Unloaded;
        if self.loaded_slots(stacks, place, step).into_iter().any(is_unloaded) && !self.is_beside_dropped(&made) {
            return false;
        }
        let has = |ops: &[Ir]| made.clone().any(|at| self.op(at).is_some_and(|op| ops.contains(&op)));
        let had = |ops: &[Ir]| (FIRST..made.end).any(|at| self.op(at).is_some_and(|op| ops.contains(&op)));
        match step.op {
            op if is_arithmetic(op) => self.is_computed(stacks, place, step, made),
            Op::UGET => {
                has(&[Ir::ULOAD])
                    || self.constant_upvalue(stacks, step).is_some()
                    || self.upvalue_before(stacks, step, made.end).is_some()
                    // If there are several closures, it is not known which one runs and which constants its upvalues hold.
                    || stacks.get(step.stack).callee.prototype().is_some_and(|prototype| {
                        let closures = self.functions.closures(prototype);
                        !closures.is_empty() && self.only_closure(prototype).is_none()
                    })
                    // An upvalue that is a slot in a frame of the trace.
                    || self.aliases_slots()
                    || self.is_inside(stacks, place)
            }
            // A repeated store is left out.
            Op::USETV | Op::USETS | Op::USETN | Op::USETP => {
                had(&[Ir::USTORE]) && (has(&[Ir::USTORE]) || self.is_stored_twice())
                    || self.aliases_slots()
                    || self.is_inside(stacks, place)
            }
            Op::TSETV | Op::TSETS | Op::TSETB | Op::TSETR | Op::GSET => {
                has(&[Ir::ASTORE, Ir::HSTORE, Ir::XSTORE, Ir::FSTORE])
                    || self.is_stored_before(stacks, place, step, made.end)
            }
            Op::TGETV | Op::TGETB | Op::TGETR => {
                has(&[Ir::ALOAD, Ir::HLOAD, Ir::XLOAD])
                    || self.powers.cdata
                    // The result may be a constant nil, or the content of a table that the trace has created.
                    || (self.body.code.references().start..BIAS).any(|at| self.op(at) == Some(Ir::KKPTR))
                    || had(&[Ir::TNEW, Ir::TDUP])
                    || self.is_accessed_before(stacks, place, step, made.end)
            }
            Op::LEN => has(LENGTHS) || self.powers.looks_for("__len") || self.is_measured_before(place, step, made.end),
            Op::MODVN | Op::MODNV | Op::MODVV => {
                has(REMAINDERS)
                    || had(REMAINDERS) && self.may_be_divided_before(place, step, made.end)
                    || self.powers.looks_for("__mod")
                    || self.powers.cdata
                    || self.computed_values(stacks, place, step).iter().all(|value| !matches!(value, SlotValue::Ref(_)))
            }
            // A return to a frame below the trace's is guarded.
            Op::RET | Op::RETM | Op::RET0 | Op::RET1 if self.is_outermost(stacks, place) => has(&[Ir::RETF]),
            Op::ISEQV | Op::ISNEV => self.is_compared_by_now(stacks, place, step, made),
            Op::GGET | Op::TGETS => {
                has(&[Ir::HREF, Ir::HREFK, Ir::HLOAD])
                    // The contents of a table that the trace has created are known.
                    || had(&[Ir::TNEW, Ir::TDUP])
                    || self.is_looked_up_before(stacks, place, step, made.end)
            }
            Op::ISLT | Op::ISGE | Op::ISLE | Op::ISGT | Op::ISEQN | Op::ISNEN => {
                self.is_compared_by_now(stacks, place, step, made)
            }
            Op::FORL | Op::IFORL | Op::JFORL => {
                let counts = |at: &u16| matches!(self.op(*at), Some(Ir::ADD | Ir::ADDOV));
                match place.slot(usize::from(step.instruction.a())) {
                    SlotValue::Number(_) => true,
                    SlotValue::Ref(index) => {
                        let adds = |at: u16| {
                            counts(&at) && [self.body.code.ins(at).op1(), self.body.code.ins(at).op2()].contains(&index)
                        };
                        made.clone().any(|at| counts(&at)) || (FIRST..made.end).any(adds)
                    }
                    _ => had(&[Ir::ADD, Ir::ADDOV]),
                }
            }
            _ => true,
        }
    }

    /// Whether a return leaves the frame in which the trace runs.
    fn is_outermost(&self, stacks: &Stacks, place: &ReadingPlace) -> bool {
        let lower = place.frames.iter().rev().skip(1);
        lower.map(|frame| stacks.get(frame.stack).callee).all(|callee| callee.prototype().is_none())
    }

    /// The slots that recording a bytecode loads.
    fn loaded_slots(&self, stacks: &Stacks, place: &ReadingPlace, step: BytecodeStep) -> Vec<usize> {
        let ins = step.instruction;
        let (a, b, c) = (usize::from(ins.a()), usize::from(ins.b()), usize::from(ins.c()));
        let d = usize::from(ins.d());
        let call = |count: usize| {
            let first = self.arguments(step);
            [a].into_iter().chain(first..first + count).collect()
        };
        match step.op {
            Op::TGETV | Op::TGETR => vec![b, c],
            Op::TGETS | Op::TGETB => vec![b],
            Op::TSETV | Op::TSETR => vec![a, b, c],
            Op::TSETS | Op::TSETB => vec![a, b],
            Op::GSET | Op::RET1 => vec![a],
            Op::USETV | Op::IST | Op::ISF | Op::ISTC | Op::ISFC => vec![d],
            Op::CAT => (b..=c).collect(),
            Op::CALL => call(c.saturating_sub(1)),
            Op::CALLM => call(c),
            Op::CALLT => call(d.saturating_sub(1)),
            Op::CALLMT => call(d),
            Op::ITERC => (a.saturating_sub(3)..a).collect(),
            Op::RET => (a..a + d.saturating_sub(1)).collect(),
            _ => self.read_slots(stacks, place, step).into_iter().map(usize::from).collect(),
        }
    }

    /// Whether a comparison of numbers has left its guard, here or before.
    fn is_compared_by_now(&self, stacks: &Stacks, place: &ReadingPlace, step: BytecodeStep, made: Range<u16>) -> bool {
        let compares = |at: &u16| {
            matches!(
                self.op(*at),
                Some(Ir::LT | Ir::GE | Ir::LE | Ir::GT | Ir::ULT | Ir::UGE | Ir::ULE | Ir::UGT | Ir::EQ | Ir::NE)
            )
        };
        let mut values: Vec<SlotValue> =
            self.read_slots(stacks, place, step).iter().map(|&slot| place.slot(usize::from(slot))).collect();
        if matches!(step.op, Op::ISEQN | Op::ISNEN) {
            values.push(self.constant(stacks, place, step.instruction.d()));
        }
        let is_number = |value: &SlotValue| match value {
            SlotValue::Ref(at) => self.body.code.ins(*at).kind_of_result() == irt::NUM,
            SlotValue::Number(_) => true,
            _ => false,
        };
        let computed: Vec<u16> =
            values.iter().filter_map(|value| if let SlotValue::Ref(at) = value { Some(*at) } else { None }).collect();
        if !values.iter().all(is_number) || computed.is_empty() || computed.len() == 2 && computed[0] == computed[1] {
            return true;
        }
        let is_same = |at: u16| {
            let ins = self.body.code.ins(at);
            compares(&at)
                && computed.iter().all(|&value| {
                    self.may_be(&[SlotValue::Ref(value)], ins.op1(), made.end)
                        || self.may_be(&[SlotValue::Ref(value)], ins.op2(), made.end)
                })
        };
        made.clone().any(|at| compares(&at)) || (FIRST..made.end).any(is_same)
    }

    /// Whether a call of `value` may enter this function: if the value is no constant, a guard before `until` must show
    /// it (`rec_call_specialize`, `lj_record.c`).
    pub(super) fn may_be_called(&self, value: SlotValue, callee: Callee, until: u16) -> bool {
        let is_open = value.is_open();
        let needs_none = match callee {
            Callee::Lua { .. } => false,
            // For functions with many instances, only the number is guarded. The VM's own metamethods of C data are
            // never looked up (`lj_record_mm_lookup`).
            Callee::Native { function, ffid } => {
                function == 0 || self.functions.may_iterate(ffid) || self.functions.is_metamethod_of_vm(ffid)
            }
        };
        let guards = |at: u16| {
            let ins = self.body.code.ins(at);
            self.op(at) == Some(Ir::EQ)
                && self.functions.guard(ins.op1(), ins.op2()).is_some_and(|guarded| guarded.same_code(callee))
        };
        !is_open || needs_none || self.floating.contains(&callee.code()) || (FIRST..until).any(guards)
    }

    /// Whether the constants of a bytecode are among those of the trace: recording the bytecode adds them (`lj_record_ins`).
    pub(super) fn has_constants(&self, stacks: &Stacks, place: &ReadingPlace, step: BytecodeStep) -> bool {
        let ins = step.instruction;
        let number = |index: u16| match self.constant(stacks, place, index) {
            SlotValue::Number(bits) => self.is_among_numbers(f64::from_bits(bits)),
            _ => true,
        };
        let string = |index: u16| {
            let own = self.prototype(stacks, place).and_then(|prototype| self.queries.string(prototype, index));
            own.is_none_or(|own| self.functions.has_string(own))
        };
        match step.op {
            Op::KSHORT => self.is_among_numbers(f64::from(ins.d() as i16)),
            Op::KNUM | Op::ISEQN | Op::ISNEN | Op::USETN => number(ins.d()),
            Op::ADDVN
            | Op::SUBVN
            | Op::MULVN
            | Op::DIVVN
            | Op::MODVN
            | Op::ADDNV
            | Op::SUBNV
            | Op::MULNV
            | Op::DIVNV
            | Op::MODNV => number(u16::from(ins.c())),
            Op::KSTR | Op::ISEQS | Op::ISNES | Op::USETS | Op::GGET | Op::GSET => string(ins.d()),
            Op::TGETS | Op::TSETS => string(u16::from(ins.c())),
            // The sum of two constants is a constant, too.
            Op::FORL | Op::IFORL | Op::JFORL => {
                let a = usize::from(ins.a());
                match (place.slot(a), place.slot(a + 2)) {
                    (SlotValue::Number(index), SlotValue::Number(by)) => {
                        self.is_among_numbers(f64::from_bits(index) + f64::from_bits(by))
                    }
                    _ => true,
                }
            }
            Op::TGETB | Op::TSETB => self.is_among_numbers(f64::from(ins.c())),
            Op::UGET => match self.constant_upvalue(stacks, step) {
                Some(Constant::Function(callee)) => self.functions.has_function(callee),
                Some(Constant::Number(bits)) => self.is_among_numbers(f64::from_bits(bits)),
                _ => true,
            },
            _ => true,
        }
    }

    fn is_among_numbers(&self, number: f64) -> bool {
        number.is_nan() || self.numbers.contains(&(number + 0.0).to_bits())
    }

    /// All numbers among the constants, as their bits, without the sign of zero.
    pub fn find_numbers(&self) -> HashSet<u64> {
        let mut numbers = HashSet::new();
        let mut at = self.body.code.references().start;
        while at < BIAS {
            numbers.extend(self.number(at).map(|number| (number + 0.0).to_bits()));
            let op = self.op(at);
            at += 1 + u16::from(is_wide(op, self.fr2));
        }
        numbers
    }

    /// Whether some value is stored twice, so that a third store may have been left out, or any instruction was dropped.
    fn is_stored_twice(&self) -> bool {
        let code = &self.body.code;
        let is_store = |at: &u16| matches!(self.op(*at), Some(Ir::USTORE | Ir::ASTORE | Ir::HSTORE));
        let mut places: Vec<u16> = Vec::new();
        (FIRST..code.end()).filter(is_store).any(|at| {
            let known = places.contains(&code.ins(at).op1());
            places.push(code.ins(at).op1());
            known
        }) || (FIRST..code.end()).any(|at| self.op(at) == Some(Ir::NOP))
    }

    /// Whether instructions were dropped next to these: then a missing one may have been among them.
    pub(super) fn is_beside_dropped(&self, made: &Range<u16>) -> bool {
        let is_dropped = |at: &u16| matches!(self.op(*at), Some(Ir::NOP));
        let before = (FIRST..made.start).rev().take_while(|at| super::emits::is_transparent(self.op(*at)));
        before.into_iter().any(|at| is_dropped(&at)) || made.clone().any(|at| is_dropped(&at))
    }

    /// Whether arithmetic has left its operation, unless that was done before or changes nothing.
    fn is_computed(&self, stacks: &Stacks, place: &ReadingPlace, step: BytecodeStep, made: Range<u16>) -> bool {
        let values = self.computed_values(stacks, place, step);
        let mut computed = false;
        for value in &values {
            match value {
                // Only values that are certainly numbers, not objects with a metamethod. Next to a floating-point
                // number an integer is converted (`lj_opt_narrow_arith`); if all are integers, much is folded.
                SlotValue::Ref(at) => match self.body.code.ins(*at).kind_of_result() {
                    irt::NUM => computed = true,
                    irt::INT => {}
                    _ => return true,
                },
                SlotValue::Number(bits) if changes_nothing(step.op, f64::from_bits(*bits)) => return true,
                SlotValue::Number(_) => {}
                _ => return true,
            }
        }
        // An operation on two constants is folded into one.
        !computed
            || made.clone().any(|at| self.op(at).is_some_and(|op| OPERATIONS.contains(&op)))
            || self.may_be_known(&values, made.end)
    }

    /// Whether a remainder of the same value may have been computed before, as far as that is known.
    fn may_be_divided_before(&self, place: &ReadingPlace, step: BytecodeStep, until: u16) -> bool {
        let code = &self.body.code;
        let SlotValue::Ref(mut value) = place.slot(usize::from(step.instruction.b())) else { return true };
        while self.op(value) == Some(Ir::CONV) {
            value = code.ins(value).op1();
        }
        let is_same = |at: u16| {
            let ins = code.ins(at);
            let of = ins.op1();
            match self.op(at) {
                Some(Ir::CALLN) => true,
                Some(op) if REMAINDERS.contains(&op) => {
                    of == value || of >= BIAS && self.op(of) == Some(Ir::CONV) && code.ins(of).op1() == value
                }
                _ => false,
            }
        };
        // The dividend of MODNV is a constant, and its remainder may take any form.
        step.op == Op::MODNV || (FIRST..until).any(is_same)
    }

    /// The operands of an arithmetic bytecode.
    pub(super) fn computed_values(&self, stacks: &Stacks, place: &ReadingPlace, step: BytecodeStep) -> Vec<SlotValue> {
        let mut values: Vec<SlotValue> =
            self.read_slots(stacks, place, step).iter().map(|&slot| place.slot(usize::from(slot))).collect();
        if matches!(
            step.op,
            Op::ADDVN | Op::SUBVN | Op::MULVN | Op::DIVVN | Op::ADDNV | Op::SUBNV | Op::MULNV | Op::DIVNV
        ) {
            values.push(self.constant(stacks, place, u16::from(step.instruction.c())));
        }
        values
    }

    /// An earlier instruction that computes the same value, which is emitted only once (CSE).
    pub(super) fn same_as_before(
        &self,
        stacks: &Stacks,
        place: &ReadingPlace,
        step: BytecodeStep,
        until: u16,
    ) -> Option<u16> {
        let values = self.computed_values(stacks, place, step);
        let [first, second] = values[..] else { return None };
        let is = |operand: u16, value: SlotValue| match value {
            SlotValue::Ref(at) => operand == at,
            SlotValue::Number(bits) => {
                operand < BIAS
                    && self
                        .number(operand)
                        .is_some_and(|number| super::operands::is_made_of(number, f64::from_bits(bits)))
            }
            _ => false,
        };
        (FIRST..until).find(|&at| {
            let ins = self.body.code.ins(at);
            self.op(at).is_some_and(|op| OPERATIONS.contains(&op))
                && (is(ins.op1(), first) && is(ins.op2(), second) || is(ins.op1(), second) && is(ins.op2(), first))
        })
    }

    /// Whether arithmetic may have left nothing, because its result exists already: as the same value, in any form that
    /// folding gives it (`lj_opt_fold.c`), or as a value that was negated twice.
    fn may_be_known(&self, values: &[SlotValue], until: u16) -> bool {
        let code = &self.body.code;
        let mut known: Vec<u16> = Vec::new();
        for value in values {
            let SlotValue::Ref(mut at) = *value else { continue };
            known.push(at);
            while matches!(self.op(at), Some(Ir::NEG | Ir::CONV)) {
                at = code.ins(at).op1();
                known.push(at);
            }
        }
        if known.len() > values.iter().filter(|value| matches!(value, SlotValue::Ref(_))).count() {
            return true;
        }
        // Integers, in the form of the floating-point numbers that they were converted to.
        let converted = |at: &u16| self.op(*at) == Some(Ir::CONV) && known.contains(&code.ins(*at).op1());
        let converted: Vec<u16> = (FIRST..until).filter(converted).collect();
        known.extend(converted);
        (FIRST..until).any(|at| {
            let ins = code.ins(at);
            let operands = if self.op(at) == Some(Ir::NEG) { &[ins.op1()][..] } else { &[ins.op1(), ins.op2()][..] };
            self.op(at).is_some_and(|op| OPERATIONS.contains(&op))
                && operands.iter().any(|&operand| operand >= BIAS)
                && operands.iter().all(|operand| *operand < BIAS || known.contains(operand))
        })
    }
}

/// Whether a bytecode emits guards or other effects, which are never dropped as unused.
fn leaves_what_stays(op: Op) -> bool {
    matches!(
        op,
        Op::UGET
            | Op::GGET
            | Op::TGETV
            | Op::TGETS
            | Op::TGETB
            | Op::TGETR
            | Op::RET
            | Op::RETM
            | Op::RET0
            | Op::RET1
            | Op::ISLT
            | Op::ISGE
            | Op::ISLE
            | Op::ISGT
            | Op::ISEQV
            | Op::ISNEV
            | Op::ISEQN
            | Op::ISNEN
    )
}

/// Whether an operation with a constant leaves its other operand as it is.
fn changes_nothing(op: Op, constant: f64) -> bool {
    match op {
        Op::ADDVN | Op::ADDNV | Op::ADDVV | Op::SUBVN | Op::SUBVV => constant == 0.0,
        Op::MULVN | Op::MULNV | Op::MULVV | Op::DIVVN | Op::DIVVV => constant == 1.0,
        _ => false,
    }
}

/// Instructions that compute a remainder.
const REMAINDERS: &[Ir] = &[Ir::MOD, Ir::SUB, Ir::BAND, Ir::CALLN];

/// The instructions that arithmetic on numbers turns into.
const OPERATIONS: [Ir; 5] = [Ir::ADD, Ir::SUB, Ir::MUL, Ir::DIV, Ir::NEG];
