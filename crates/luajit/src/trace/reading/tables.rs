//! Tables: which lookups and stores belong to a bytecode, and which may have been optimized away.
//!
//! LuaJIT's sources: [`fwd_ahload`].
//!
//! [`fwd_ahload`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_opt_mem.c#L162-L242

use super::{BytecodeStep, Reader, ReadingPlace, SlotValue, VmQueries};
use crate::bytecode::Op;
use crate::trace::ir::{BIAS, FIRST, IrOp as Ir, irt};
use crate::trace::stacks::Stacks;

impl<S: VmQueries> Reader<'_, S> {
    /// Whether an instruction that accesses a table may access the table of a bytecode, whose own instructions start at
    /// `begin`. A search for metamethods may access other tables.
    pub(super) fn is_of_table(&self, place: &ReadingPlace, step: BytecodeStep, at: u16, begin: u16) -> bool {
        let is_lookup = matches!(
            step.op,
            Op::TGETV | Op::TGETS | Op::TGETB | Op::TGETR | Op::TSETV | Op::TSETS | Op::TSETB | Op::TSETR
        );
        if !is_lookup || self.powers.cdata {
            return true;
        }
        let found = match self.op(at) {
            Some(Ir::FLOAD | Ir::FREF | Ir::HREF | Ir::NEWREF | Ir::TBAR) => Some(self.body.code.ins(at).op1()),
            Some(Ir::AREF | Ir::HREFK) => self.table_of(at),
            _ => return true,
        };
        // A metatable, or a table that it leads to.
        let is_elsewhere = |table: u16| match self.op(table) {
            Some(Ir::FLOAD) => true,
            Some(Ir::HLOAD) => self.is_metamethod_name(self.body.code.ins(table).op1()),
            _ => table < BIAS,
        };
        found.is_none_or(|found| found >= begin || is_elsewhere(found) || self.may_be_table(place, step, found))
    }

    /// The key of a reference into a table.
    fn key(&self, reference: u16) -> u16 {
        let key = self.body.code.ins(reference).op2();
        if self.op(key) == Some(Ir::KSLOT) { self.body.code.ins(key).op1() } else { key }
    }

    /// Whether a reference is into the hash part of a table by this string, or by an unknown string.
    pub(super) fn may_be_by_string(&self, reference: u16, string: u64) -> bool {
        if !matches!(self.op(reference), Some(Ir::HREF | Ir::HREFK | Ir::NEWREF)) {
            return false;
        }
        let key = self.key(reference);
        match self.functions.string(key) {
            Some((address, _)) => address == string,
            None => {
                matches!(self.op(key), None | Some(Ir::NOP)) || self.body.code.ins(key).kind_of_result() == irt::STR
            }
        }
    }

    /// Whether a reference into a table is by a string that may be the name of a metamethod.
    pub(super) fn is_metamethod_name(&self, reference: u16) -> bool {
        matches!(self.op(reference), Some(Ir::HREF | Ir::HREFK))
            && self.functions.string(self.key(reference)).is_some_and(|(_, is_name)| is_name)
    }

    /// Whether a table may be the one that a bytecode accesses.
    pub(super) fn may_be_table(&self, place: &ReadingPlace, step: BytecodeStep, table: u16) -> bool {
        match place.slot(usize::from(step.instruction.b())) {
            SlotValue::Ref(own) => own == table || [own, table].iter().any(|&at| self.op(at) == Some(Ir::NOP)),
            SlotValue::Constant => table < BIAS,
            _ => true,
        }
    }

    /// The table of a reference.
    pub(super) fn table_of(&self, reference: u16) -> Option<u16> {
        let first = self.body.code.ins(reference).op1();
        match self.op(reference)? {
            Ir::HREF | Ir::NEWREF => Some(first),
            Ir::AREF | Ir::HREFK if self.op(first) == Some(Ir::FLOAD) => Some(self.body.code.ins(first).op1()),
            _ => None,
        }
    }

    /// Whether a reference into a table may use the key of a bytecode, or the name of a metamethod. The bytecode's own
    /// instructions start at `begin`.
    pub(super) fn has_key(
        &self,
        stacks: &Stacks,
        place: &ReadingPlace,
        step: BytecodeStep,
        reference: u16,
        begin: u16,
    ) -> bool {
        if !matches!(self.op(reference), Some(Ir::AREF | Ir::HREF | Ir::HREFK | Ir::NEWREF)) {
            return true;
        }
        let key = self.key(reference);
        let string = self.functions.string(key);
        if string.is_some_and(|(_, is_name)| is_name) {
            return true;
        }
        let index = match step.op {
            Op::TGETS | Op::TSETS => u16::from(step.instruction.c()),
            Op::GGET | Op::GSET => step.instruction.d(),
            Op::TGETB | Op::TSETB => {
                let own = f64::from(step.instruction.c());
                return self.may_be(&[SlotValue::Number(own.to_bits())], key, begin);
            }
            Op::TGETV | Op::TSETV | Op::TGETR | Op::TSETR => {
                let own = place.slot(usize::from(step.instruction.c()));
                return match (own, string) {
                    (SlotValue::Number(_) | SlotValue::Function(_), Some(_)) => false,
                    // A value that is no constant cannot be a constant key of its kind.
                    (SlotValue::Ref(at), Some(_)) => at >= begin || self.op(at) == Some(Ir::NOP),
                    (SlotValue::Constant, _) => key < BIAS,
                    _ => self.may_be(&[own], key, begin),
                };
            }
            _ => return true,
        };
        let own = self.prototype(stacks, place).and_then(|prototype| self.queries.string(prototype, index));
        match (own, string) {
            (Some(own), Some((address, _))) => own == address,
            (None, _) => true,
            // The reference has another kind of key.
            (Some(_), None) => false,
        }
    }

    /// Whether a reference may lead to the element that a bytecode accesses.
    pub(super) fn is_same_place(
        &self,
        stacks: &Stacks,
        place: &ReadingPlace,
        step: BytecodeStep,
        reference: u16,
        until: u16,
    ) -> bool {
        let is_table = matches!(step.op, Op::GGET | Op::GSET)
            || self.table_of(reference).is_none_or(|table| self.may_be_table(place, step, table));
        is_table && self.has_key(stacks, place, step, reference, until)
    }

    /// Whether a store can have left nothing, because the same value was stored there before.
    pub(super) fn is_stored_before(
        &self,
        stacks: &Stacks,
        place: &ReadingPlace,
        step: BytecodeStep,
        until: u16,
    ) -> bool {
        let value = place.slot(usize::from(step.instruction.a()));
        self.powers.looks_for("__newindex")
            || self.powers.cdata
            || (FIRST..self.body.code.end()).any(|at| {
                let ins = self.body.code.ins(at);
                // A store that is overwritten later may leave nothing.
                matches!(self.op(at), Some(Ir::ASTORE | Ir::HSTORE | Ir::XSTORE | Ir::FSTORE))
                    && self.is_same_place(stacks, place, step, ins.op1(), until)
                    && (at >= until || self.may_be(&[value], ins.op2(), until))
            })
    }

    /// Whether the result of a lookup may be known from an earlier access.
    pub(super) fn is_accessed_before(
        &self,
        stacks: &Stacks,
        place: &ReadingPlace,
        step: BytecodeStep,
        until: u16,
    ) -> bool {
        let is_own = !self.powers.looks_for("__index") || self.is_known_table(place, step);
        !is_own
            || (FIRST..self.body.code.end()).any(|at| {
                // A dropped store had a later one to the same element.
                let accesses = match self.op(at) {
                    Some(Ir::ALOAD | Ir::HLOAD | Ir::XLOAD) => at < until,
                    Some(Ir::ASTORE | Ir::HSTORE | Ir::XSTORE) => true,
                    _ => false,
                };
                accesses && self.is_same_place(stacks, place, step, self.body.code.ins(at).op1(), until)
            })
    }

    /// Whether a length may be known already.
    pub(super) fn is_measured_before(&self, place: &ReadingPlace, step: BytecodeStep, until: u16) -> bool {
        let value = place.slot(usize::from(step.instruction.d()));
        let measures = |at: u16| {
            let first = self.body.code.ins(at).op1();
            self.op(at).is_some_and(|op| LENGTHS.contains(&op))
                && match value {
                    SlotValue::Ref(of) => first == of || self.op(first) == Some(Ir::CARG),
                    _ => true,
                }
        };
        !matches!(value, SlotValue::Ref(_)) || (FIRST..until).any(measures)
    }

    /// Whether a reference may lead into the very table that a bytecode accesses, where a lookup always begins. A value
    /// that is no table has no such reference.
    fn may_be_in_own_table(&self, place: &ReadingPlace, step: BytecodeStep, reference: u16) -> bool {
        if step.op != Op::TGETS {
            return true;
        }
        !self.is_known_table(place, step)
            || self.table_of(reference).is_none_or(|table| self.may_be_table(place, step, table))
    }

    /// Whether the value that a bytecode accesses is known to be a table. Strings and numbers have no tables of their
    /// own, but their metatables may be accessed.
    fn is_known_table(&self, place: &ReadingPlace, step: BytecodeStep) -> bool {
        matches!(place.slot(usize::from(step.instruction.b())),
            SlotValue::Ref(own) if self.body.code.ins(own).kind_of_result() == irt::TAB)
    }

    /// Whether a lookup by a constant string can have left nothing: it was done before, it finds nothing in an empty
    /// table (whose element is a constant pointer to nil), or it is a lookup in an object.
    pub(super) fn is_looked_up_before(
        &self,
        stacks: &Stacks,
        place: &ReadingPlace,
        step: BytecodeStep,
        until: u16,
    ) -> bool {
        let code = &self.body.code;
        let index = if step.op == Op::TGETS { u16::from(step.instruction.c()) } else { step.instruction.d() };
        let own = self.prototype(stacks, place).and_then(|prototype| self.queries.string(prototype, index));
        let Some(own) = own else { return true };
        self.powers.cdata && self.powers.looks_for("__index")
            || (code.references().start..BIAS).any(|at| self.op(at) == Some(Ir::KKPTR))
            || (FIRST..until).any(|at| self.may_be_by_string(at, own) && self.may_be_in_own_table(place, step, at))
    }

    /// The result of a lookup by a constant string that has left nothing: the same as an earlier one, or nil, or a
    /// constant with which the table was created (`fwd_ahload`, `lj_opt_mem.c`).
    pub(super) fn loaded_before(
        &self,
        stacks: &Stacks,
        place: &ReadingPlace,
        step: BytecodeStep,
        until: u16,
    ) -> SlotValue {
        let index = match step.op {
            Op::TGETS => u16::from(step.instruction.c()),
            Op::GGET => step.instruction.d(),
            _ => return SlotValue::Any,
        };
        let own = self.prototype(stacks, place).and_then(|prototype| self.queries.string(prototype, index));
        let Some(own) = own else { return SlotValue::Any };
        let code = &self.body.code;
        // A dropped store had a later one to the same element. With `__index`, the reference may belong to another table.
        let may_be_it = |reference: u16| {
            self.may_be_by_string(reference, own)
                && (self.powers.looks_for("__index") || self.may_be_in_own_table(place, step, reference))
        };
        let accesses = (FIRST..code.end()).filter(|&at| match self.op(at) {
            Some(Ir::HLOAD) => at < until && may_be_it(code.ins(at).op1()),
            Some(Ir::HSTORE) => may_be_it(code.ins(at).op1()),
            _ => false,
        });
        let accesses: Vec<u16> = accesses.collect();
        // The contents of a table that the trace has created are known without a load.
        let is_same = |load: u16| {
            let table = self.table_of(code.ins(load).op1());
            !(FIRST..until).any(|at| matches!(self.op(at), Some(Ir::TNEW | Ir::TDUP | Ir::NOP)))
                || table.is_some_and(|table| place.slot(usize::from(step.instruction.b())) == SlotValue::Ref(table))
        };
        // If another reference has no load, no value is there.
        let is_only = |load: u16| {
            let loaded = code.ins(load).op1();
            (FIRST..until).all(|at| at == loaded || !may_be_it(at))
        };
        match accesses[..] {
            [load] if self.op(load) == Some(Ir::HLOAD) && is_only(load) && (step.op == Op::GGET || is_same(load)) => {
                self.loaded_value(load)
            }
            _ => SlotValue::Field(own),
        }
    }
}

/// Instructions that get a length.
pub(super) const LENGTHS: &[Ir] = &[Ir::FLOAD, Ir::ALEN, Ir::CALLL, Ir::CALLN];
