//! The order in which a bytecode emits its instructions: which come last, and after which no other may come.
//!
//! LuaJIT's sources: [`fwd_ahload`].
//!
//! [`fwd_ahload`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_opt_mem.c#L180-L242

use std::ops::Range;

use super::emits::is_transparent;
use super::kinds::{RESULTS, is_arithmetic, is_lookup, is_store};
use super::{BytecodeStep, Phase, Reader, ReadingPlace, VmQueries};
use crate::bytecode::Op;
use crate::trace::ir::{FIRST, IrOp as Ir, irt};

impl<S: VmQueries> Reader<'_, S> {
    /// Whether a bytecode that has emitted these instructions emits no more, except for `next` if that may follow.
    pub(super) fn is_finished(&self, place: &ReadingPlace, step: BytecodeStep, made: Range<u16>, next: Ir) -> bool {
        if !matches!(place.phase, Phase::Start | Phase::Forced(_)) || self.powers.cdata {
            return false;
        }
        let Some(last) = self.last(made) else { return false };
        let Some(op) = self.op(last) else { return false };
        match step.op {
            op_ if is_lookup(op_) => self.is_found(last),
            op_ if is_store(op_) => {
                matches!(op, Ir::ASTORE | Ir::HSTORE | Ir::TBAR)
                    && !matches!(next, Ir::TBAR | Ir::OBAR | Ir::FREF | Ir::FSTORE)
            }
            Op::UGET => op == Ir::ULOAD,
            Op::USETV | Op::USETS | Op::USETN | Op::USETP => op == Ir::USTORE && next != Ir::OBAR,
            op_ if is_arithmetic(op_) => RESULTS.contains(&op) && self.body.code.ins(last).kind_of_result() >= irt::NUM,
            _ => false,
        }
    }

    /// Whether these may be all instructions of a bytecode: their results are used.
    pub(super) fn ends_well(&self, step: BytecodeStep, made: Range<u16>) -> bool {
        if self.powers.cdata || self.is_beside_dropped(&made) {
            return true;
        }
        // If the trace has created the table itself, the load is known, and only a reference remains (`fwd_ahload`,
        // `lj_opt_mem.c`).
        let is_known =
            is_lookup(step.op) && (FIRST..made.end).any(|at| matches!(self.op(at), Some(Ir::TNEW | Ir::TDUP)));
        let Some(op) = self.last(made).and_then(|last| self.op(last)).filter(|_| !is_known) else { return true };
        // The first instructions of a lookup lead to its last one: a load, or a guard that nothing is there.
        let leads_on = matches!(
            op,
            Ir::SLOAD | Ir::FLOAD | Ir::FREF | Ir::AREF | Ir::HREFK | Ir::HREF | Ir::CONV | Ir::ADD | Ir::SUB
        );
        match step.op {
            op_ if is_lookup(op_) => !leads_on,
            op_ if is_store(op_) => !leads_on && !matches!(op, Ir::ABC | Ir::NEWREF),
            _ => true,
        }
    }

    /// Whether a load is the result of a lookup: a value, and not the place of the next lookup.
    pub(super) fn is_found(&self, load: u16) -> bool {
        let ins = self.body.code.ins(load);
        matches!(self.op(load), Some(Ir::ALOAD | Ir::HLOAD))
            && ins.kind_of_result() != irt::NIL
            && !self.is_metamethod_name(ins.op1())
    }

    /// The last instruction in a range that was emitted by some bytecode.
    fn last(&self, made: Range<u16>) -> Option<u16> {
        made.rev().find(|&at| !is_transparent(self.op(at)))
    }
}
