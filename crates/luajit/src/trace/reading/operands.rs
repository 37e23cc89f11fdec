//! Which operands an instruction that a bytecode emitted can have.
//!
//! LuaJIT's sources: [`lj_opt_narrow_arith`], [`narrow_conv_emit`], [`rec_for_loop`], [`rec_for`].
//!
//! [`lj_opt_narrow_arith`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_opt_narrow.c#L526-L540
//! [`narrow_conv_emit`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_opt_narrow.c#L357-L402
//! [`rec_for_loop`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_record.c#L480-L518
//! [`rec_for`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_record.c#L521-L588

use super::kinds::{is_arithmetic, is_comparison, is_lookup, is_store};
use super::{BytecodeStep, Reader, ReadingPlace, SlotValue, VmQueries};
use crate::bytecode::Op;
use crate::trace::ir::{BIAS, Ins, IrOp as Ir, Operand, irt};
use crate::trace::stacks::Stacks;

/// How many steps operands are followed back: an operand further away may be anything.
const MAX_DEPTH: usize = 12;

impl<S: VmQueries> Reader<'_, S> {
    /// Whether the operands of the instruction at `at` can come from the operands of the bytecode. The bytecode's own
    /// instructions start at `begin`.
    pub(super) fn operands_fit(
        &self,
        stacks: &Stacks,
        place: &ReadingPlace,
        step: BytecodeStep,
        ins: Ins,
        at: u16,
        begin: u16,
    ) -> bool {
        let Some(op) = self.op(at) else { return false };
        let kind = ins.kind_of_result();
        if !self.is_of_table(place, step, at, begin) {
            return false;
        }
        let is_upvalue = matches!(step.op, Op::UGET | Op::USETV | Op::USETS | Op::USETN | Op::USETP);
        match op {
            Ir::UREFC | Ir::UREFO | Ir::ULOAD | Ir::USTORE | Ir::EQ | Ir::UGT | Ir::SUB | Ir::ADD if is_upvalue => {
                return self.is_of_upvalue(stacks, place, step, op, ins, at)
                    && (op != Ir::USTORE
                        || step.op != Op::USETV
                        || self.may_be(&[place.slot(usize::from(step.instruction.d()))], ins.op2(), begin));
            }
            Ir::ASTORE | Ir::HSTORE => {
                let value = match step.op {
                    Op::TSETV | Op::TSETS | Op::TSETB | Op::TSETR | Op::GSET => {
                        place.slot(usize::from(step.instruction.a()))
                    }
                    _ => return true,
                };
                return self.has_key(stacks, place, step, ins.op1(), begin) && self.may_be(&[value], ins.op2(), begin);
            }
            Ir::AREF | Ir::HREF | Ir::HREFK | Ir::NEWREF => return self.has_key(stacks, place, step, at, begin),
            Ir::ALOAD | Ir::HLOAD => return self.has_key(stacks, place, step, ins.op1(), begin),
            // Sums of table indexes are integers, and so are sums of string pointers.
            Ir::ADD | Ir::SUB if is_lookup(step.op) || is_store(step.op) => {
                return kind != irt::NUM;
            }
            Ir::LT | Ir::GE | Ir::LE | Ir::GT | Ir::ULT | Ir::UGE | Ir::ULE | Ir::UGT
                if matches!(kind, irt::P32 | irt::P64) && is_comparison(step.op) =>
            {
                return false;
            }
            Ir::CONV | Ir::LT | Ir::GE | Ir::LE | Ir::GT | Ir::ULT | Ir::UGE | Ir::ULE | Ir::UGT => {
                let slots = match step.op {
                    Op::ISLT | Op::ISGE | Op::ISLE | Op::ISGT => self.read_slots(stacks, place, step),
                    bytecode if is_arithmetic(bytecode) && op == Ir::CONV => self.read_slots(stacks, place, step),
                    Op::FORL | Op::IFORL | Op::JFORL | Op::FORI | Op::JFORI => {
                        let operands = if op == Ir::CONV { &[ins.op1()][..] } else { &[ins.op1(), ins.op2()][..] };
                        // Integers are converted to numbers at the end of a trace (`canonicalize_slots`).
                        if op == Ir::CONV && kind == irt::NUM {
                            return true;
                        }
                        let counts = |&operand: &u16| self.is_of_loop(place, step, operand, begin);
                        return kind >= irt::NUM && operands.iter().all(counts);
                    }
                    _ => return true,
                };
                if kind < irt::NUM {
                    return false;
                }
                let values: Vec<SlotValue> = slots.iter().map(|&slot| place.slot(usize::from(slot))).collect();
                let operands = if op == Ir::CONV { &[ins.op1()][..] } else { &[ins.op1(), ins.op2()][..] };
                // Constants are converted, too; a call compares strings.
                let fits = |operand: u16| {
                    operand < BIAS
                        || matches!(self.op(operand), Some(Ir::CALLN | Ir::CALLL))
                        || self.may_be(&values, operand, begin)
                };
                return operands.iter().all(|&operand| fits(operand));
            }
            // Addresses are only compared in searches for upvalues and in tables.
            Ir::EQ | Ir::NE if matches!(kind, irt::P32 | irt::P64) => return !is_comparison(step.op),
            _ => {}
        }
        let arithmetic =
            matches!(op, Ir::ADD | Ir::SUB | Ir::MUL | Ir::DIV | Ir::NEG | Ir::ADDOV | Ir::SUBOV | Ir::MULOV);
        if !arithmetic {
            return true;
        }
        // Pointers are only added in accesses to upvalues and tables.
        if kind < irt::NUM {
            return !is_arithmetic(step.op)
                && !matches!(step.op, Op::UNM | Op::FORL | Op::JFORL | Op::IFORL | Op::FORI | Op::JFORI);
        }
        let values: Vec<SlotValue> = match step.op {
            Op::ADDVN | Op::SUBVN | Op::MULVN | Op::DIVVN | Op::ADDNV | Op::SUBNV | Op::MULNV | Op::DIVNV => {
                let number = self.constant(stacks, place, u16::from(step.instruction.c()));
                vec![place.slot(usize::from(step.instruction.b())), number]
            }
            Op::ADDVV | Op::SUBVV | Op::MULVV | Op::DIVVV => {
                vec![place.slot(usize::from(step.instruction.b())), place.slot(usize::from(step.instruction.c()))]
            }
            Op::UNM => vec![place.slot(usize::from(step.instruction.d()))],
            // The counter and the step. In a root trace's own loop, they are replaced by values that are in no slot.
            Op::FORL | Op::IFORL | Op::JFORL if op == Ir::ADD => {
                // The bytecode adds only once (`rec_for`, `rec_for_loop`).
                if (begin..at).any(|before| self.op(before) == Some(Ir::ADD)) {
                    return false;
                }
                let a = usize::from(step.instruction.a());
                let values = [place.slot(a), place.slot(a + 2)];
                return match values {
                    [SlotValue::Number(_), SlotValue::Number(_)] => false,
                    [index, _] => [ins.op1(), ins.op2()]
                        .iter()
                        .any(|&operand| operand >= BIAS && self.may_be(&[index], operand, begin)),
                };
            }
            _ => return true,
        };
        let has_constant = matches!(
            step.op,
            Op::ADDVN | Op::SUBVN | Op::MULVN | Op::DIVVN | Op::ADDNV | Op::SUBNV | Op::MULNV | Op::DIVNV
        );
        // The second operand of `NEG` is a mask; an operation on two values uses both.
        let operands = if op == Ir::NEG { &[ins.op1()][..] } else { &[ins.op1(), ins.op2()][..] };
        if has_constant && ins.kind_of_result() == irt::NUM && op != Ir::NEG {
            // Two constants would be folded. So one operand is no constant, and the other comes from the bytecode's
            // constant (only `x*2` and `x/0.5` become `x+x`). Sums of floating-point numbers are never combined.
            let is_doubled = op == Ir::ADD && matches!(step.op, Op::MULVN | Op::MULNV | Op::DIVVN);
            let constants = operands.iter().filter(|&&operand| operand < BIAS);
            let mut constants = constants.map(|&operand| self.number(operand));
            return match (constants.next(), values[1]) {
                (Some(Some(found)), SlotValue::Number(own)) => {
                    is_made_of(found, f64::from_bits(own))
                        && operands.iter().filter(|&&at| at >= BIAS).all(|&at| self.may_be(&values[..1], at, begin))
                }
                (Some(_), _) => true,
                (None, _) => is_doubled && operands.iter().all(|&at| self.may_be(&values[..1], at, begin)),
            };
        }
        operands.iter().all(|&operand| self.may_be(&values, operand, begin))
    }

    /// Whether a numeric loop may compare a value: its counter, its end, its step, or a load of one of them.
    fn is_of_loop(&self, place: &ReadingPlace, step: BytecodeStep, operand: u16, begin: u16) -> bool {
        let a = usize::from(step.instruction.a());
        let values = [place.slot(a), place.slot(a + 1), place.slot(a + 2)];
        let ins = self.body.code.ins(operand);
        operand < BIAS
            || self.may_be(&values, operand, begin)
            || match self.op(operand) {
                Some(Ir::SLOAD) => true,
                // One bytecode increments the counter, and another compares it.
                Some(Ir::ADD | Ir::ADDOV) => [ins.op1(), ins.op2()]
                    .iter()
                    .any(|&at| at >= BIAS && (self.op(at) == Some(Ir::SLOAD) || self.may_be(&values[..1], at, begin))),
                _ => false,
            }
    }

    pub(super) fn constant(&self, stacks: &Stacks, place: &ReadingPlace, index: u16) -> SlotValue {
        let prototype = self.prototype(stacks, place);
        let number = prototype.and_then(|prototype| self.queries.number(prototype, index));
        number.map_or(SlotValue::Any, |number| SlotValue::Number(number.to_bits()))
    }

    /// Whether an operand can be one of these values, or can be derived from one.
    pub(super) fn may_be(&self, values: &[SlotValue], operand: u16, begin: u16) -> bool {
        if operand >= begin && operand >= BIAS {
            return true;
        }
        if operand < BIAS {
            let Some(number) = self.number(operand) else {
                return values.iter().any(|value| !matches!(value, SlotValue::Number(_) | SlotValue::Ref(_)));
            };
            return values.iter().any(|value| match value {
                SlotValue::Any | SlotValue::Unloaded | SlotValue::Field(_) | SlotValue::Upvalue(..) => true,
                SlotValue::Number(bits) => is_made_of(number, f64::from_bits(*bits)),
                // Sums with constants are combined.
                SlotValue::Ref(at) => self.has_constant(*at),
                SlotValue::Constant | SlotValue::Function(_) => false,
            });
        }
        values.iter().any(|value| match value {
            value if value.is_open() => true,
            SlotValue::Ref(at) => self.is_made_from(operand, *at),
            _ => false,
        })
    }

    /// Whether `operand` is `of`, a conversion of it, a value that `of` was derived from, or a sum of integers that
    /// replaces a sum of numbers (`lj_opt_narrow.c`).
    fn is_made_from(&self, operand: u16, of: u16) -> bool {
        self.is_made_from_within(operand, of, 0)
    }

    fn is_made_from_within(&self, operand: u16, of: u16, depth: usize) -> bool {
        if depth >= MAX_DEPTH || self.is_within(of, operand, 0) {
            return true;
        }
        let ins = self.body.code.ins(operand);
        match self.op(operand) {
            Some(Ir::CONV | Ir::STRTO | Ir::TOBIT | Ir::NEG) => self.is_made_from_within(ins.op1(), of, depth + 1),
            Some(Ir::ADD | Ir::SUB | Ir::ADDOV | Ir::SUBOV) if ins.kind_of_result() > irt::NUM => {
                let operands = [ins.op1(), ins.op2()];
                let mut computed = operands.iter().filter(|&&at| at >= BIAS).peekable();
                computed.peek().is_some() && computed.all(|&at| self.is_made_from_within(at, of, depth + 1))
            }
            _ => false,
        }
    }

    /// Whether an instruction or one of its direct or indirect operands is `sought`.
    fn is_within(&self, at: u16, sought: u16, depth: usize) -> bool {
        if at == sought || depth >= MAX_DEPTH {
            return true;
        }
        if at < BIAS {
            return false;
        }
        let ins = self.body.code.ins(at);
        let Some(opcode) = self.numbering.opcode(ins.number()) else { return true };
        let computes = matches!(
            opcode.op,
            Ir::ADD
                | Ir::SUB
                | Ir::MUL
                | Ir::DIV
                | Ir::NEG
                | Ir::ADDOV
                | Ir::SUBOV
                | Ir::MULOV
                | Ir::CONV
                | Ir::STRTO
                | Ir::TOBIT
                | Ir::POW
        ) || super::emits::BITS.contains(&opcode.op);
        // A dropped instruction shows nothing any more.
        if opcode.op == Ir::NOP {
            return true;
        }
        computes
            && (opcode.operands.0 == Operand::Ref && self.is_within(ins.op1(), sought, depth + 1)
                || opcode.operands.1 == Operand::Ref && self.is_within(ins.op2(), sought, depth + 1))
    }

    /// Whether an integer sum has a constant that may have been combined with another one.
    fn has_constant(&self, at: u16) -> bool {
        let ins = self.body.code.ins(at);
        match self.op(at) {
            Some(Ir::NOP) => true,
            Some(Ir::CONV | Ir::TOBIT) => self.has_constant_below(ins.op1()),
            _ => ins.kind_of_result() > irt::NUM && (ins.op1() < BIAS || ins.op2() < BIAS),
        }
    }

    fn has_constant_below(&self, at: u16) -> bool {
        let ins = self.body.code.ins(at);
        at >= BIAS && ins.kind_of_result() > irt::NUM && (ins.op1() < BIAS || ins.op2() < BIAS)
    }

    /// The number in a constant.
    pub(super) fn number(&self, at: u16) -> Option<f64> {
        match self.op(at).filter(|_| at < BIAS)? {
            Ir::KNUM => Some(f64::from_bits(self.body.code.word(at + 1))),
            Ir::KINT => Some(f64::from(self.body.code.ins(at).literal() as i32)),
            _ => None,
        }
    }
}

/// Whether folding can turn the constant `of` into `number`: its negative, its reciprocal or the negative of that, or
/// its value as an integer.
pub(super) fn is_made_of(number: f64, of: f64) -> bool {
    let same = |a: f64, b: f64| a.to_bits() == b.to_bits() || a == b;
    same(number, of)
        || same(number, -of)
        || same(number, 1.0 / of)
        || same(number, -1.0 / of)
        || same(number, f64::from(of as i64 as i32))
        || same(number, f64::from((of as i64 as i32).wrapping_neg()))
        // `x*2^k` is a shift.
        || of.is_finite() && of > 0.0 && same(number, of.log2())
}
