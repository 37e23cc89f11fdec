//! The intermediate code that a bytecode can emit (`lj_record.c`, `lj_ffrecord.c`, `lj_crecord.c`), in any form that
//! `lj_opt_fold.c` and `lj_opt_narrow.c` can give it. This may allow more than LuaJIT emits, but never less.
//!
//! LuaJIT's sources: [`lj_record_ins`], [`lj_ffrecord_func`], [`recff_cdata_index`], [`lj_opt_fold`],
//! [`lj_opt_narrow_arith`], [`rec_comp_prep`], [`rec_upvalue`], [`rec_mm_arith`], [`lj_record_idx`],
//! [`lj_ir_ggfload`].
//!
//! [`lj_record_ins`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_record.c#L2227-L2793
//! [`lj_ffrecord_func`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_ffrecord.c#L1651-L1664
//! [`recff_cdata_index`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_crecord.c#L813-L955
//! [`lj_opt_fold`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_opt_fold.c#L2524-L2596
//! [`lj_opt_narrow_arith`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_opt_narrow.c#L526-L540
//! [`rec_comp_prep`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_record.c#L2197-L2203
//! [`rec_upvalue`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_record.c#L1794-L1805
//! [`rec_mm_arith`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_record.c#L1161-L1187
//! [`lj_record_idx`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_record.c#L1544-L1562
//! [`lj_ir_ggfload`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_ir.c#L151-L159

use super::kinds::compares_two;
use super::{BytecodeStep, Phase, Reader, ReadingPlace, SlotValue, VmQueries};
use crate::bytecode::{Metamethod, Op};
use crate::trace::functions::Callee;
use crate::trace::ir::{Ins, IrOp as Ir, NIL, irt};
use crate::trace::stacks::Stacks;

/// Whether no bytecode emits this instruction: it comes from an optimization, or marks a place.
pub(super) fn is_transparent(op: Option<Ir>) -> bool {
    matches!(
        op,
        None | Some(Ir::NOP | Ir::BASE | Ir::LOOP | Ir::PHI | Ir::USE | Ir::RENAME | Ir::PROF | Ir::GCSTEP | Ir::PVAL)
    )
}

/// Instructions that find an upvalue, and check that it is still open or in its place.
const UPVALUES: &[Ir] = &[Ir::UREFC, Ir::UREFO, Ir::SUB, Ir::ADD, Ir::ULT, Ir::UGT, Ir::ULE, Ir::UGE, Ir::EQ, Ir::NE];

/// Instructions of number conversions.
pub(super) const CONVERSIONS: &[Ir] = &[Ir::CONV, Ir::STRTO, Ir::TOBIT, Ir::TOSTR];
/// Instructions of arithmetic.
pub(super) const ARITHMETIC: &[Ir] = &[
    Ir::ADD,
    Ir::SUB,
    Ir::MUL,
    Ir::DIV,
    Ir::MOD,
    Ir::POW,
    Ir::NEG,
    Ir::ABS,
    Ir::LDEXP,
    Ir::MIN,
    Ir::MAX,
    Ir::FPMATH,
    Ir::ADDOV,
    Ir::SUBOV,
    Ir::MULOV,
    Ir::ATAN2,
];
/// Instructions of bit operations.
pub(super) const BITS: &[Ir] =
    &[Ir::BNOT, Ir::BSWAP, Ir::BAND, Ir::BOR, Ir::BXOR, Ir::BSHL, Ir::BSHR, Ir::BSAR, Ir::BROL, Ir::BROR];
pub(super) const COMPARISONS: &[Ir] =
    &[Ir::LT, Ir::GE, Ir::LE, Ir::GT, Ir::ULT, Ir::UGE, Ir::ULE, Ir::UGT, Ir::EQ, Ir::NE, Ir::ABC];
pub(super) const CALLS: &[Ir] = &[Ir::CALLN, Ir::CALLA, Ir::CALLL, Ir::CALLS, Ir::CARG];
/// Instructions of table lookups, with bounds checks and keys.
const INDEX: &[Ir] = &[
    Ir::AREF,
    Ir::HREFK,
    Ir::HREF,
    Ir::FREF,
    Ir::TMPREF,
    Ir::ALOAD,
    Ir::HLOAD,
    Ir::FLOAD,
    Ir::ADD,
    Ir::SUB,
    Ir::ADDOV,
    Ir::SUBOV,
    Ir::MUL,
    Ir::BAND,
    Ir::XLOAD,
    Ir::STRREF,
    Ir::SNEW,
    Ir::ALEN,
];
const STRINGS: &[Ir] = &[
    Ir::BUFHDR,
    Ir::BUFPUT,
    Ir::BUFSTR,
    Ir::SNEW,
    Ir::XSNEW,
    Ir::STRREF,
    Ir::FLOAD,
    Ir::CALLA,
    Ir::CALLL,
    Ir::CALLN,
    Ir::CALLS,
    Ir::CARG,
    Ir::TMPREF,
];
const VARARGS: &[Ir] = &[Ir::VLOAD, Ir::SUB, Ir::ADD, Ir::AREF, Ir::BSHR, Ir::FLOAD, Ir::ALOAD, Ir::XLOAD];

impl<S: VmQueries> Reader<'_, S> {
    /// Whether the bytecode at a place can have emitted the instruction at `at`; its own instructions start at `begin`.
    pub(super) fn can_make(
        &self,
        stacks: &Stacks,
        place: &ReadingPlace,
        step: BytecodeStep,
        at: u16,
        begin: u16,
    ) -> bool {
        let ins = self.body.code.ins(at);
        let Some(op) = self.op(at) else { return false };
        if self.is_finished(place, step, begin..at, op) {
            return false;
        }
        if op == Ir::SLOAD {
            return self.can_load(stacks, place, step, ins);
        }
        let callee = self.guarded_function(op, ins);
        match place.phase {
            Phase::Setup => {
                any(op, &[CONVERSIONS, COMPARISONS, &[Ir::ADD, Ir::ADDOV, Ir::SUB, Ir::SUBOV]]) && callee.is_none()
            }
            Phase::Calling(called) => match callee {
                Some(guarded) => guarded.same_code(called) || self.is_late_guard(stacks, step, guarded),
                // Checks which function is called, or looks up the object's `__call`.
                None => {
                    let may_look_up = any(op, &[INDEX, COMPARISONS, CALLS]) && ins.kind_of_result() != irt::NUM;
                    matches!(op, Ir::FLOAD | Ir::EQ) || self.powers.looks_for("__call") && may_look_up
                }
            },
            Phase::Meta(called) => match callee {
                Some(guarded) => guarded.same_code(called) || self.is_late_guard(stacks, step, guarded),
                None => self.can_step_make(stacks, place, step, op, ins, at, begin),
            },
            Phase::Native(native) => self.can_native_make(place, step, native, ins, op, callee, begin),
            // The guard of a comparison comes after the snapshot by which it leaves (`rec_comp_prep`).
            Phase::Start if is_compared(step.op, op, ins) => false,
            Phase::Start | Phase::Forced(_) => match callee {
                // Functions are compared by comparisons, and checked where one of their upvalues is read.
                Some(guarded) => match step.op {
                    Op::ISEQV | Op::ISNEV => {
                        let slots = [usize::from(step.instruction.a()), usize::from(step.instruction.d())];
                        self.may_be(&slots.map(|slot| place.slot(slot)), ins.op1().max(ins.op2()), begin)
                    }
                    Op::ISNEXT | Op::ITERN => true,
                    _ => self.is_late_guard(stacks, step, guarded),
                },
                None => self.can_step_make(stacks, place, step, op, ins, at, begin),
            },
        }
    }

    /// The function with which a guard compares a value, if it does.
    fn guarded_function(&self, op: Ir, ins: Ins) -> Option<Callee> {
        if op != Ir::EQ || !ins.is_guard() {
            return None;
        }
        self.functions.guard(ins.op1(), ins.op2())
    }

    /// Whether the guard checks the running function late. The recorder checks it only where one of its upvalues is read
    /// (`rec_upvalue`), and only if it was running when the trace began: the functions that the trace has called are known.
    fn is_late_guard(&self, stacks: &Stacks, step: BytecodeStep, guarded: Callee) -> bool {
        step.op == Op::UGET && self.begins_with(stacks, step.stack) && stacks.get(step.stack).callee.same_code(guarded)
    }

    /// Whether a load of a slot can be here: slots are loaded where they are read, and only in frames that the trace
    /// has not entered itself.
    fn can_load(&self, stacks: &Stacks, place: &ReadingPlace, step: BytecodeStep, ins: Ins) -> bool {
        if place.phase == Phase::Setup {
            return true;
        }
        let is_known = self.begins_with(stacks, step.stack);
        let Some((depth, slot)) = self.loaded(place, ins.op1()) else {
            // The function of the frame, to reach its upvalues, environment or constants.
            let reads_own = matches!(
                step.op,
                Op::UGET | Op::USETV | Op::USETS | Op::USETN | Op::USETP | Op::GGET | Op::GSET | Op::FNEW
            );
            return is_known && (reads_own || matches!(place.phase, Phase::Native(_) | Phase::Calling(_)));
        };
        // Open upvalues and variable arguments may be slots of any frame.
        let may_be_any = matches!(step.op, Op::UGET | Op::VARG) || matches!(place.phase, Phase::Native(_));
        may_be_any || is_known && depth + 1 == place.frames.len() && reads_slot(step, slot)
    }

    /// The frame (counted from the outermost) and its slot that a load reads; [`None`] if it reads no slot.
    pub(super) fn loaded(&self, place: &ReadingPlace, slot: u16) -> Option<(usize, usize)> {
        let slot = usize::from(slot);
        let first = if self.fr2 { 2 } else { 1 };
        // After a return, the frame that was returned to counts as the first one.
        let shown = self.frames.first().and_then(Option::as_ref).filter(|_| place.returns == 0);
        let Some(shown) = shown.filter(|frames| frames.len() > 1 && place.frames.len() >= frames.len()) else {
            return slot.checked_sub(first).map(|slot| (0, slot));
        };
        let frame = shown.iter().position(|frame| frame.base <= slot)?;
        Some((shown.len() - 1 - frame, slot - shown[frame].base))
    }

    /// Whether a frame existed when the trace began, or when the trace returned to it.
    fn begins_with(&self, stacks: &Stacks, stack: super::StackIndex) -> bool {
        if stacks.get(stack).caller.is_none() {
            return true;
        }
        let mut shown = self.aims.first().copied().flatten().map(|aim| aim.stack);
        while let Some(known) = shown {
            if known == stack {
                return true;
            }
            shown = stacks.get(known).caller;
        }
        false
    }

    #[expect(clippy::too_many_arguments, reason = "the instruction, and where it may come from")]
    fn can_step_make(
        &self,
        stacks: &Stacks,
        place: &ReadingPlace,
        step: BytecodeStep,
        op: Ir,
        ins: Ins,
        at: u16,
        begin: u16,
    ) -> bool {
        // Operations on C data may emit anything, and so may a search for metamethods.
        let name = step.instruction.opcode(self.set).map(|opcode| opcode.metamethod);
        if let Some(Metamethod::Named(name)) = name {
            let looks = self.powers.looks_for(name) || name == "__le" && self.powers.looks_for("__lt");
            let reference = if matches!(op, Ir::ALOAD | Ir::HLOAD) { ins.op1() } else { at };
            if looks
                && any(op, &[INDEX, COMPARISONS, CALLS])
                && self.operands_may_be_objects(stacks, place, step)
                && self.has_key(stacks, place, step, reference, begin)
            {
                return true;
            }
            // Metamethods of C data are called by a library function (`rec_mm_arith`, `lj_record_idx`).
            let is_called = matches!(place.phase, Phase::Meta(_));
            if is_called && self.powers.cdata && self.operands_may_be_objects(stacks, place, step) {
                return !matches!(op, Ir::ULOAD | Ir::UREFC | Ir::UREFO | Ir::USTORE | Ir::RETF);
            }
        }
        // Signs are changed with a mask that is loaded from the VM's own state (`lj_ir_ggfload`, `lj_ir.c`).
        let is_mask = op == Ir::FLOAD && ins.op1() == NIL;
        let makes = match step.op {
            Op::UNM
            | Op::SUBNV
            | Op::SUBVN
            | Op::SUBVV
            | Op::MULVN
            | Op::MULNV
            | Op::MULVV
            | Op::DIVVN
            | Op::DIVNV
            | Op::DIVVV
            | Op::ADDVN
            | Op::ADDNV
            | Op::ADDVV
                if is_mask =>
            {
                return true;
            }
            Op::ADDVN | Op::ADDNV | Op::ADDVV | Op::SUBVN | Op::SUBNV | Op::SUBVV => {
                any(op, &[CONVERSIONS, &[Ir::ADD, Ir::SUB, Ir::NEG, Ir::ADDOV, Ir::SUBOV, Ir::BSHL, Ir::BNOT]])
            }
            Op::MULVN | Op::MULNV | Op::MULVV => {
                any(op, &[CONVERSIONS, &[Ir::MUL, Ir::MULOV, Ir::ADD, Ir::NEG, Ir::BSHL, Ir::SUB]])
            }
            Op::DIVVN | Op::DIVNV | Op::DIVVV => any(op, &[CONVERSIONS, &[Ir::DIV, Ir::MUL, Ir::NEG, Ir::ADD]]),
            Op::MODVN | Op::MODNV | Op::MODVV | Op::POW => {
                any(op, &[CONVERSIONS, ARITHMETIC, BITS, CALLS, COMPARISONS])
            }
            Op::UNM => any(op, &[CONVERSIONS, &[Ir::NEG, Ir::SUB, Ir::SUBOV, Ir::NE, Ir::EQ, Ir::MUL]]),
            Op::BNOT | Op::BAND | Op::BOR | Op::BXOR | Op::BSHL | Op::BSHR | Op::BSAR => {
                any(op, &[CONVERSIONS, BITS, &[Ir::ADD, Ir::SUB, Ir::ADDOV, Ir::SUBOV]])
            }
            Op::LEN => any(op, &[&[Ir::FLOAD, Ir::ALEN, Ir::CALLL, Ir::CALLN, Ir::CARG]]),
            Op::CAT => any(op, &[STRINGS, CONVERSIONS]),
            Op::ISLT | Op::ISGE | Op::ISLE | Op::ISGT => {
                any(op, &[COMPARISONS, &[Ir::CONV, Ir::STRTO, Ir::CALLN, Ir::CALLL, Ir::CARG]])
            }
            Op::ISEQV | Op::ISNEV | Op::ISEQS | Op::ISNES | Op::ISEQN | Op::ISNEN | Op::ISEQP | Op::ISNEP => {
                // For tables, `__eq` is looked up even if there is none. A part of a string is compared with a constant
                // in place.
                any(op, &[COMPARISONS, STRINGS, &[Ir::CONV, Ir::FLOAD, Ir::XLOAD, Ir::BAND, Ir::BOR, Ir::ADD]])
            }
            Op::FORI | Op::JFORI => any(op, &[COMPARISONS, CONVERSIONS, &[Ir::ADDOV, Ir::SUBOV]]),
            Op::FORL | Op::IFORL | Op::JFORL => any(op, &[COMPARISONS, CONVERSIONS, &[Ir::ADD, Ir::ADDOV, Ir::SUBOV]]),
            Op::TGETV | Op::TGETS | Op::TGETB | Op::TGETR | Op::GGET => {
                any(op, &[INDEX, COMPARISONS, CONVERSIONS, CALLS])
            }
            Op::TSETV | Op::TSETS | Op::TSETB | Op::TSETR | Op::TSETM | Op::GSET => any(
                op,
                &[
                    INDEX,
                    COMPARISONS,
                    CONVERSIONS,
                    CALLS,
                    &[Ir::ASTORE, Ir::HSTORE, Ir::FSTORE, Ir::NEWREF, Ir::TBAR, Ir::OBAR, Ir::XSTORE],
                ],
            ),
            Op::UGET => any(op, &[UPVALUES, &[Ir::ULOAD]]),
            Op::USETV | Op::USETS | Op::USETN | Op::USETP => any(op, &[UPVALUES, &[Ir::USTORE, Ir::OBAR, Ir::CONV]]),
            Op::TNEW | Op::TDUP => any(op, &[&[Ir::TNEW, Ir::TDUP]]),
            Op::FNEW => any(op, &[CALLS, &[Ir::FLOAD]]),
            Op::ITERN => {
                any(op, &[INDEX, COMPARISONS, CONVERSIONS, CALLS, &[Ir::VLOAD, Ir::HIOP, Ir::LREF, Ir::TMPREF]])
            }
            Op::ITERL | Op::IITERL | Op::JITERL => op == Ir::CONV,
            Op::ISNEXT => any(op, &[&[Ir::FLOAD, Ir::EQ, Ir::NE]]),
            Op::VARG => any(op, &[VARARGS, COMPARISONS, CONVERSIONS]),
            Op::RET | Op::RETM | Op::RET0 | Op::RET1 => {
                op == Ir::RETF || op == Ir::CONV || self.powers.metamethods && any(op, &[STRINGS, CONVERSIONS])
            }
            // Integers are converted to numbers at the end of a trace (`canonicalize_slots`).
            Op::LOOP
            | Op::ILOOP
            | Op::JLOOP
            | Op::FUNCF
            | Op::JFUNCF
            | Op::IFUNCF
            | Op::FUNCV
            | Op::JFUNCV
            | Op::IFUNCV => op == Ir::CONV,
            Op::ISTYPE | Op::ISNUM => any(op, &[CONVERSIONS]),
            // All instructions of a call are emitted while it is set up, or by the callee.
            _ => false,
        };
        makes && self.operands_fit(stacks, place, step, ins, at, begin)
    }

    /// Whether an operand of the bytecode may be something else than a number.
    fn operands_may_be_objects(&self, stacks: &Stacks, place: &ReadingPlace, step: BytecodeStep) -> bool {
        let ins = step.instruction;
        let slots: Vec<u8> = match step.op {
            Op::TGETV | Op::TGETS | Op::TGETB | Op::TGETR | Op::TSETV | Op::TSETS | Op::TSETB | Op::TSETR => {
                vec![ins.b()]
            }
            _ => self.read_slots(stacks, place, step),
        };
        let is_number = |value: SlotValue| match value {
            SlotValue::Number(_) => true,
            SlotValue::Ref(at) => self.body.code.ins(at).kind_of_result() >= irt::NUM,
            _ => false,
        };
        slots.is_empty() || !slots.iter().all(|&slot| is_number(place.slot(usize::from(slot))))
    }
}

/// Whether an instruction is the guard of a comparison of numbers or strings.
fn is_compared(bytecode: Op, op: Ir, ins: Ins) -> bool {
    let kind = ins.kind_of_result();
    ins.is_guard() && any(op, &[COMPARISONS]) && (kind == irt::STR || kind >= irt::NUM) && compares_two(bytecode)
}

/// Whether a bytecode reads a slot of its frame.
fn reads_slot(step: BytecodeStep, slot: usize) -> bool {
    let ins = step.instruction;
    let (a, b, c, d) = (usize::from(ins.a()), usize::from(ins.b()), usize::from(ins.c()), usize::from(ins.d()));
    match step.op {
        Op::KSTR
        | Op::KCDATA
        | Op::KSHORT
        | Op::KNUM
        | Op::KPRI
        | Op::KNIL
        | Op::JMP
        | Op::GGET
        | Op::TNEW
        | Op::TDUP
        | Op::RET0
        | Op::USETS
        | Op::USETN
        | Op::USETP
        | Op::LOOP
        | Op::ILOOP => false,
        Op::ISLT | Op::ISGE | Op::ISLE | Op::ISGT | Op::ISEQV | Op::ISNEV => slot == a || slot == d,
        Op::ISEQS | Op::ISNES | Op::ISEQN | Op::ISNEN | Op::ISEQP | Op::ISNEP | Op::ISTYPE | Op::ISNUM | Op::RET1 => {
            slot == a
        }
        Op::ISTC | Op::ISFC | Op::IST | Op::ISF | Op::MOV | Op::NOT | Op::UNM | Op::LEN | Op::BNOT | Op::USETV => {
            slot == d
        }
        Op::ADDVN
        | Op::SUBVN
        | Op::MULVN
        | Op::DIVVN
        | Op::MODVN
        | Op::ADDNV
        | Op::SUBNV
        | Op::MULNV
        | Op::DIVNV
        | Op::MODNV
        | Op::TGETS
        | Op::TGETB => slot == b,
        Op::ADDVV
        | Op::SUBVV
        | Op::MULVV
        | Op::DIVVV
        | Op::MODVV
        | Op::POW
        | Op::TGETV
        | Op::TGETR
        | Op::BAND
        | Op::BOR
        | Op::BXOR
        | Op::BSHL
        | Op::BSHR
        | Op::BSAR => slot == b || slot == c,
        Op::TSETS | Op::TSETB => slot == a || slot == b,
        Op::TSETV | Op::TSETR => slot == a || slot == b || slot == c,
        Op::GSET => slot == a,
        Op::CAT => (b..=c).contains(&slot),
        Op::CALL => (a..=a + 1 + c).contains(&slot),
        Op::CALLT => (a..=a + 1 + d).contains(&slot),
        Op::RET => (a..=a + d).contains(&slot),
        Op::FORI | Op::JFORI | Op::FORL | Op::IFORL | Op::JFORL => (a..=a + 3).contains(&slot),
        _ => true,
    }
}

pub(super) fn any(op: Ir, lists: &[&[Ir]]) -> bool {
    lists.iter().any(|list| list.contains(&op))
}
