//! Library functions: what they emit for given arguments, what they must have emitted, and where execution continues.
//!
//! LuaJIT's sources: [`lj_ffrecord_func`], [`recff_pcall`], [`recff_metacall`], [`crec_tailcall`].
//!
//! [`lj_ffrecord_func`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_ffrecord.c#L1651-L1664
//! [`recff_pcall`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_ffrecord.c#L528-L575
//! [`recff_metacall`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_ffrecord.c#L452-L476
//! [`crec_tailcall`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_crecord.c#L733-L743

use std::ops::Range;

use super::calls::{MAX_DEPTH, MAX_RECURSION};
use super::emits::{ARITHMETIC, BITS, CALLS, COMPARISONS, CONVERSIONS, any};
use super::{BytecodeStep, Phase, Reader, ReadingPlace, SlotValue, VmQueries};
use crate::bytecode::Op;
use crate::trace::functions::Callee;
use crate::trace::ir::{BIAS, FIRST, Ins, IrOp as Ir, irt};
use crate::trace::stacks::{NOWHERE, Stacks};

impl<S: VmQueries> Reader<'_, S> {
    /// Whether a library function can have emitted an instruction (`lj_ffrecord.c`).
    #[expect(clippy::too_many_arguments, reason = "the instruction, and where it may come from")]
    pub(super) fn can_native_make(
        &self,
        place: &ReadingPlace,
        step: BytecodeStep,
        native: Callee,
        ins: Ins,
        op: Ir,
        callee: Option<Callee>,
        begin: u16,
    ) -> bool {
        let Callee::Native { ffid, .. } = native else { return false };
        if callee.is_some() {
            return self.functions.protects(ffid) != Some(false) || !self.powers.names.is_empty();
        }
        if matches!(op, Ir::ULOAD | Ir::USTORE | Ir::UREFC | Ir::UREFO) {
            return false;
        }
        match self.functions.library(ffid) {
            Some("bit") => any(op, OF_BIT) && (self.powers.cdata || self.is_of_arguments(place, step, op, ins, begin)),
            Some("math") => {
                any(op, OF_MATH) && (self.powers.cdata || self.is_of_arguments(place, step, op, ins, begin))
            }
            Some("string") => {
                self.powers.cdata
                    || !any(
                        op,
                        &[&[Ir::ASTORE, Ir::HSTORE, Ir::FSTORE, Ir::TNEW, Ir::TDUP, Ir::TBAR, Ir::OBAR, Ir::NEWREF]],
                    )
            }
            _ => true,
        }
    }

    /// Whether an operation on numbers works on the library function's arguments, or on values that the function has computed.
    pub(super) fn is_of_arguments(
        &self,
        place: &ReadingPlace,
        step: BytecodeStep,
        op: Ir,
        ins: Ins,
        begin: u16,
    ) -> bool {
        let operands = match op {
            // Integers are converted to numbers at the end of a trace (`canonicalize_slots`).
            Ir::CONV if ins.kind_of_result() == irt::NUM => return true,
            Ir::CONV | Ir::STRTO | Ir::BNOT | Ir::BSWAP | Ir::FPMATH | Ir::ABS | Ir::NEG | Ir::TOBIT => {
                &[ins.op1()][..]
            }
            op if any(op, &[BITS, ARITHMETIC]) => &[ins.op1(), ins.op2()][..],
            _ => return true,
        };
        let Some(values) = self.passed(place, step) else { return true };
        operands.iter().all(|&operand| operand < BIAS || self.may_be(&values, operand, begin))
    }

    /// The values that a call passes to a library function; [`None`] if their number is not known.
    pub(super) fn passed(&self, place: &ReadingPlace, step: BytecodeStep) -> Option<Vec<SlotValue>> {
        let first = self.arguments(step);
        let count = match step.op {
            Op::CALL => usize::from(step.instruction.c()).saturating_sub(1),
            Op::CALLT => usize::from(step.instruction.d()).saturating_sub(1),
            // All results of the call before it follow: one result, if it is known.
            Op::CALLM => {
                let fixed = usize::from(step.instruction.c());
                matches!(place.slot(first + fixed), SlotValue::Ref(_)).then_some(fixed + 1)?
            }
            _ => return None,
        };
        Some((first..first + count).map(|slot| place.slot(slot)).collect())
    }

    /// The places after a library function has run: after the call, or in a Lua function that it calls.
    pub(super) fn leave_native(
        &self,
        stacks: &mut Stacks,
        place: &ReadingPlace,
        step: BytecodeStep,
        native: Callee,
        made: Range<u16>,
    ) -> Vec<ReadingPlace> {
        let is_call = matches!(step.op, Op::CALL | Op::CALLM | Op::ITERC);
        let is_tail = matches!(step.op, Op::CALLT | Op::CALLMT);
        let mut places = Vec::new();
        let (caller, call) = if is_tail {
            let current = stacks.get(step.stack);
            (current.caller, current.call)
        } else {
            (Some(step.stack), step.position)
        };
        // `pcall` and `xpcall` call a function above their own frame (`recff_pcall`). Metamethods of a library
        // function's arguments replace its frame (`recff_metacall`, `crec_tailcall`).
        let protects = match native {
            Callee::Native { ffid, .. } => self.functions.protects(ffid),
            Callee::Lua { .. } => None,
        };
        let may_tail = self.powers.metatypes || self.powers.names.iter().any(|name| CALLED.contains(&name.as_str()));
        let function = place.slot(self.arguments(step));
        let given = self.callees_of(function);
        for callee in self.functions.callable() {
            let Some(prototype) = callee.prototype() else { continue };
            if self.functions.prototype(prototype).is_none() || place.frames.len() + 2 >= MAX_DEPTH {
                continue;
            }
            let runs = place.frames.iter().filter(|frame| stacks.get(frame.stack).callee.same_code(callee)).count();
            if runs > MAX_RECURSION {
                continue;
            }
            let mut begin = place.with(Phase::Start);
            begin.position = 0;
            if is_tail {
                begin.frames.pop();
            }
            if protects != Some(false)
                && given.iter().any(|known| known.same_code(callee))
                && self.may_be_called(function, callee, made.end)
            {
                let protected = stacks.intern(caller, native, call);
                let stack = stacks.intern(Some(protected), callee, NOWHERE);
                let mut inside = begin.clone();
                inside.push(protected);
                inside.push(stack);
                places.push(inside);
            }
            let is_named = CALLED.iter().any(|name| self.functions.may_be_metamethod(callee, name));
            if may_tail && (self.powers.metatypes || is_named) {
                let stack = stacks.intern(caller, callee, call);
                begin.push(stack);
                places.push(begin);
            }
        }
        if protects == Some(true) && given.iter().all(|callee| callee.prototype().is_some() || *callee == native) {
            return places;
        }
        if is_tail {
            places.extend(self.leave(stacks, place, &[]));
            return places;
        }
        if is_call {
            let mut next = place.go(step.position + 1);
            next.forget_from(usize::from(step.instruction.a()));
            // One result, or as many as there are: these functions have one.
            if step.op != Op::ITERC && matches!(step.instruction.b(), 0 | 2) {
                next.set_slot(usize::from(step.instruction.a()), self.native_result(native, made));
            }
            places.push(next);
            return places;
        }
        // The library function was called as a metamethod.
        let value = if self.functions.is_c_library_index(native) { SlotValue::Constant } else { SlotValue::Any };
        places.extend(self.back(stacks, place, step, value));
        places
    }

    /// The result of a library function that ends with its main operation.
    pub(super) fn native_result(&self, native: Callee, made: Range<u16>) -> SlotValue {
        let Callee::Native { ffid, .. } = native else { return SlotValue::Any };
        let ends_with =
            |ops: &[Ir]| made.clone().next_back().filter(|&at| self.op(at).is_some_and(|op| ops.contains(&op)));
        let result = match self.functions.library(ffid) {
            Some("bit") => ends_with(BITS),
            Some("math") => ends_with(&[Ir::FPMATH, Ir::ABS, Ir::MIN, Ir::MAX]),
            _ => None,
        };
        result.map_or(SlotValue::Any, SlotValue::Ref)
    }

    /// Whether a bit operation has left its main instruction.
    pub(super) fn has_left_its_operation(
        &self,
        place: &ReadingPlace,
        step: BytecodeStep,
        native: Callee,
        made: Range<u16>,
    ) -> bool {
        let Callee::Native { ffid, .. } = native else { return true };
        if self.functions.library(ffid) != Some("bit") || self.functions.is_named(ffid, "bit.tobit") {
            return true;
        }
        let Some(values) = self.passed(place, step) else { return true };
        // With zero, minus one, or a shift by nothing, only the other operand may remain.
        let is_known = |value: &SlotValue| match value {
            SlotValue::Ref(at) => self.body.code.ins(*at).kind_of_result() >= irt::NUM,
            SlotValue::Number(bits) => f64::from_bits(*bits) != -1.0 && f64::from_bits(*bits) as i64 % 32 != 0,
            _ => false,
        };
        let is_bit = |at: u16| self.op(at).is_some_and(|op| BITS.contains(&op));
        if !values.iter().all(is_known) || !values.iter().any(|value| matches!(value, SlotValue::Ref(_))) {
            return true;
        }
        let is_same = |at: u16| {
            let ins = self.body.code.ins(at);
            is_bit(at)
                && [ins.op1(), ins.op2()].iter().all(|&operand| operand == 0 || self.may_be(&values, operand, made.end))
        };
        made.clone().any(is_bit) || (FIRST..made.end).any(is_same)
    }
}

/// Instructions of bit operations, also on C data.
const OF_BIT: &[&[Ir]] = &[
    BITS,
    CONVERSIONS,
    CALLS,
    COMPARISONS,
    &[
        Ir::ADD,
        Ir::SUB,
        Ir::ADDOV,
        Ir::SUBOV,
        Ir::CNEWI,
        Ir::FLOAD,
        Ir::XLOAD,
        Ir::RETF,
        Ir::CNEW,
        Ir::HIOP,
        Ir::TMPREF,
        Ir::STRREF,
        Ir::BUFHDR,
        Ir::BUFPUT,
        Ir::BUFSTR,
        Ir::SNEW,
        Ir::XSNEW,
    ],
];

/// Instructions of mathematical functions.
const OF_MATH: &[&[Ir]] = &[
    ARITHMETIC,
    CONVERSIONS,
    CALLS,
    COMPARISONS,
    BITS,
    &[Ir::FLOAD, Ir::XLOAD, Ir::RETF, Ir::TMPREF, Ir::HIOP, Ir::LREF],
];

/// Metamethods that library functions call in their own place.
const CALLED: [&str; 6] = ["__tostring", "__pairs", "__ipairs", "__index", "__newindex", "__len"];
