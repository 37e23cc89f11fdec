//! Loops: the recorder emits the body once, then copies it without the invariant instructions ([`loop_unroll`],
//! `lj_opt_loop.c`). The copy is what runs.
//!
//! Each recorded instruction is emitted again with the substitutes of its operands, in order. If all substitutes are
//! known, so is the form of the copy. If not (the copy was replaced by an earlier instruction, or by a value that was
//! stored), each copy up to the next known one may come from any instruction in between that can turn into it.
//!
//! LuaJIT's sources: [`fwd_ahload`], [`lj_opt_fwd_uload`].
//!
//! [`loop_unroll`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_opt_loop.c#L265-L381
//! [`fwd_ahload`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_opt_mem.c#L162-L255
//! [`lj_opt_fwd_uload`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_opt_mem.c#L511-L541

use std::collections::HashMap;
use std::ops::Range;

use super::ir::{Effect, FIRST, Ins, IrCode, IrOp, Numbering, Operand};

/// For each instruction after the `LOOP` at `loop_at`, the recorded instructions of which it may be the copy. `slots`
/// are the entries of the loop's snapshot, with the contents of each slot when the loop begins again.
pub fn originals(code: &IrCode, numbering: Numbering, loop_at: u16, slots: &[u32]) -> HashMap<u16, Vec<u16>> {
    let mut copies = Copies { code, numbering, substitute: HashMap::new() };
    let end = (loop_at + 1..code.end()).find(|&at| copies.op(at) == Some(IrOp::PHI)).unwrap_or(code.end());
    for at in FIRST..loop_at {
        // Forwarded from the slot's contents at the end of the iteration before.
        let Some((IrOp::SLOAD, ins)) = copies.get(at) else { continue };
        let left = slots.iter().find(|entry| *entry >> 24 == u32::from(ins.op1()));
        copies.substitute.insert(at, left.map_or(at, |entry| *entry as u16));
    }
    let mut originals = HashMap::new();
    // Results for one gap may help to close others.
    for _ in 0..MAX_ROUNDS {
        let before = copies.substitute.len();
        originals = copies.round(loop_at, end);
        if copies.substitute.len() == before {
            break;
        }
    }
    originals
}

/// How often new results are used to find more.
const MAX_ROUNDS: usize = 8;
/// Gaps with more cells than this are not closed.
const MAX_CELLS: usize = 1 << 18;

struct Copies<'a> {
    code: &'a IrCode,
    numbering: Numbering,
    /// The substitute of each recorded instruction.
    substitute: HashMap<u16, u16>,
}

impl Copies<'_> {
    /// Goes through all recorded instructions once.
    fn round(&mut self, loop_at: u16, end: u16) -> HashMap<u16, Vec<u16>> {
        let mut originals = HashMap::new();
        let mut next = self.past_nops(loop_at + 1, end);
        // Recorded instructions since the last known copy that may have left a copy.
        let mut loose: Vec<u16> = Vec::new();
        // Known contents of memory that the trace has loaded or stored, by the reference of its address.
        let mut held: HashMap<(IrOp, u16), u16> = HashMap::new();
        for at in FIRST..loop_at {
            self.hold(&mut held, at);
        }
        for at in FIRST..loop_at {
            let Some((op, ins)) = self.get(at) else { continue };
            if matches!(op, IrOp::NOP | IrOp::SLOAD) {
                continue;
            }
            let operands = self.operands(at, ins);
            let unchanged = operands == (Some(ins.op1()), Some(ins.op2()));
            if unchanged && self.effect(at) == Some(Effect::Normal) {
                self.substitute.insert(at, at);
                continue;
            }
            let (Some(first), Some(second)) = operands else {
                loose.push(at);
                continue;
            };
            // If there are several equal loads, one may have been left out and another one copied. If none was copied
            // at all, each load's substitute is the known contents of memory.
            let is_load = matches!(memory_of(op), Some((_, true)));
            let is_same = |other: u16| {
                let found = self.get(other).filter(|(known, _)| *known == op);
                found.is_some_and(|(_, ins)| self.operands(other, ins).0.is_none_or(|operand| operand == first))
            };
            let is_made = |at: u16| self.is_copy(at, op, ins, (first, second));
            if is_load && (FIRST..loop_at).any(|other| other != at && is_same(other)) && (loop_at..end).any(is_made) {
                loose.push(at);
                continue;
            }
            let until = if loose.is_empty() { end.min(next.saturating_add(1)) } else { end };
            let copy = (next..until).find(|&copy| self.is_copy(copy, op, ins, (first, second)));
            let Some(copy) = copy else {
                // It was replaced by an earlier instruction, or by something else.
                let is_left_out = !(next..end).any(|copy| self.is_copy(copy, op, ins, (first, second)));
                let same = is_left_out.then(|| match memory_of(op) {
                    Some((memory, true)) => held.get(&(memory, first)).copied(),
                    Some((_, false)) => None,
                    None if self.effect(at) == Some(Effect::Normal)
                        || matches!(op, IrOp::UREFO | IrOp::UREFC | IrOp::HREF) =>
                    {
                        (FIRST..next).find(|&before| self.is_copy(before, op, ins, (first, second)))
                    }
                    None => None,
                });
                if let (Some((memory, false)), true) = (memory_of(op), is_left_out) {
                    // Another store makes this store superfluous, but memory holds its value all the same.
                    held.insert((memory, first), second);
                    continue;
                }
                match same.flatten() {
                    Some(same) => drop(self.substitute.insert(at, same)),
                    None => loose.push(at),
                }
                continue;
            };
            self.hold(&mut held, copy);
            self.close(&mut originals, next..copy, &loose);
            loose.clear();
            originals.insert(copy, vec![at]);
            self.substitute.insert(at, copy);
            next = self.past_nops(copy + 1, end);
        }
        self.close(&mut originals, next..end, &loose);
        originals
    }

    /// Notes the contents of memory after an instruction.
    fn hold(&self, held: &mut HashMap<(IrOp, u16), u16>, now: u16) {
        let Some((op, ins)) = self.get(now) else { return };
        match memory_of(op) {
            Some((memory, true)) => drop(held.insert((memory, ins.op1()), now)),
            Some((memory, false)) => drop(held.insert((memory, ins.op1()), ins.op2())),
            None => {}
        }
    }

    /// Closes the gap between two known copies: each copy in it comes from one of `loose`, in order.
    fn close(&mut self, originals: &mut HashMap<u16, Vec<u16>>, gap: Range<u16>, loose: &[u16]) {
        let copies: Vec<u16> = gap.filter(|&at| self.op(at) != Some(IrOp::NOP)).collect();
        if copies.is_empty() {
            return;
        }
        let (items, places) = (copies.len(), loose.len());
        if places == 0 || items * places > MAX_CELLS {
            return;
        }
        let can = |item: usize, place: usize| self.can_become(loose[place], copies[item]);
        let mut forward = vec![false; items * places];
        for item in 0..items {
            let mut any_before = item == 0;
            for place in 0..places {
                any_before |= item > 0 && forward[(item - 1) * places + place];
                forward[item * places + place] = any_before && can(item, place);
            }
        }
        let mut backward = vec![false; items * places];
        for item in (0..items).rev() {
            let mut any_after = item + 1 == items;
            for place in (0..places).rev() {
                any_after |= item + 1 < items && backward[(item + 1) * places + place];
                backward[item * places + place] = any_after && can(item, place);
            }
        }
        for (item, &copy) in copies.iter().enumerate() {
            let cell = |place: &usize| forward[item * places + place] && backward[item * places + place];
            let of: Vec<u16> = (0..places).filter(cell).map(|place| loose[place]).collect();
            if let [only] = of[..]
                && self.op(only) == self.op(copy)
            {
                self.substitute.insert(only, copy);
            }
            originals.insert(copy, of);
        }
    }

    fn past_nops(&self, mut at: u16, end: u16) -> u16 {
        while at < end && self.op(at) == Some(IrOp::NOP) {
            at += 1;
        }
        at
    }

    fn get(&self, at: u16) -> Option<(IrOp, Ins)> {
        let ins = self.code.ins(at);
        Some((self.numbering.opcode(ins.number())?.op, ins))
    }

    fn op(&self, at: u16) -> Option<IrOp> {
        self.get(at).map(|(op, _)| op)
    }

    fn effect(&self, at: u16) -> Option<Effect> {
        self.numbering.opcode(self.code.ins(at).number()).map(|opcode| opcode.effect)
    }

    /// The operands of the copy; [`None`] for an unknown one.
    fn operands(&self, at: u16, ins: Ins) -> (Option<u16>, Option<u16>) {
        let Some(opcode) = self.numbering.opcode(self.code.ins(at).number()) else { return (None, None) };
        let operand = |kind: Operand, value: u16| {
            if kind == Operand::Ref && value >= FIRST { self.substitute.get(&value).copied() } else { Some(value) }
        };
        (operand(opcode.operands.0, ins.op1()), operand(opcode.operands.1, ins.op2()))
    }

    fn is_copy(&self, copy: u16, op: IrOp, ins: Ins, (first, second): (u16, u16)) -> bool {
        let Some((other, copied)) = self.get(copy) else { return false };
        let operands = (copied.op1(), copied.op2());
        let same = operands == (first, second) || operands == (second, first);
        other == op && copied.kind_of_result() == ins.kind_of_result() && same
    }

    /// Whether a recorded instruction can turn into this one when it is emitted again.
    fn can_become(&self, at: u16, copy: u16) -> bool {
        let (Some((op, ins)), Some((other, copied))) = (self.get(at), self.get(copy)) else { return true };
        // Conversions between integers and numbers are added at the end.
        if other == IrOp::CONV {
            return true;
        }
        if op != other {
            return family(op).is_some() && family(op) == family(other);
        }
        let operands = self.operands(at, ins);
        let fits = |known: Option<u16>, found: u16| known.is_none_or(|known| known == found);
        family(op).is_some()
            || fits(operands.0, copied.op1()) && fits(operands.1, copied.op2())
            || fits(operands.0, copied.op2()) && fits(operands.1, copied.op1())
    }
}

/// The kind of memory that an instruction works on, and whether it loads (`true`) or stores (`false`). A stored value
/// is not loaded again, but used directly (`lj_opt_mem.c`).
fn memory_of(op: IrOp) -> Option<(IrOp, bool)> {
    match op {
        IrOp::ULOAD => Some((IrOp::ULOAD, true)),
        IrOp::USTORE => Some((IrOp::ULOAD, false)),
        IrOp::ALOAD => Some((IrOp::ALOAD, true)),
        IrOp::ASTORE => Some((IrOp::ALOAD, false)),
        IrOp::HLOAD => Some((IrOp::HLOAD, true)),
        IrOp::HSTORE => Some((IrOp::HLOAD, false)),
        _ => None,
    }
}

/// Groups of opcodes that folding can turn into each other.
fn family(op: IrOp) -> Option<u8> {
    match op {
        IrOp::ADD
        | IrOp::SUB
        | IrOp::MUL
        | IrOp::DIV
        | IrOp::MOD
        | IrOp::POW
        | IrOp::NEG
        | IrOp::ABS
        | IrOp::LDEXP
        | IrOp::MIN
        | IrOp::MAX
        | IrOp::FPMATH
        | IrOp::ADDOV
        | IrOp::SUBOV
        | IrOp::MULOV
        | IrOp::CONV
        | IrOp::TOBIT
        | IrOp::STRTO
        | IrOp::BNOT
        | IrOp::BSWAP
        | IrOp::BAND
        | IrOp::BOR
        | IrOp::BXOR
        | IrOp::BSHL
        | IrOp::BSHR
        | IrOp::BSAR
        | IrOp::BROL
        | IrOp::BROR => Some(0),
        IrOp::LT
        | IrOp::GE
        | IrOp::LE
        | IrOp::GT
        | IrOp::ULT
        | IrOp::UGE
        | IrOp::ULE
        | IrOp::UGT
        | IrOp::EQ
        | IrOp::NE
        | IrOp::ABC => Some(1),
        IrOp::HREF | IrOp::HREFK | IrOp::NEWREF => Some(2),
        IrOp::BUFHDR
        | IrOp::BUFPUT
        | IrOp::BUFSTR
        | IrOp::TOSTR
        | IrOp::SNEW
        | IrOp::XSNEW
        | IrOp::CALLL
        | IrOp::CALLN
        | IrOp::CALLA
        | IrOp::CARG => Some(3),
        IrOp::FLOAD | IrOp::ALEN => Some(4),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::ir::BIAS;
    use super::*;

    fn ins(op: IrOp, op1: u16, op2: u16) -> u64 {
        let is_it = |number: &u8| Numbering::TmpRef.opcode(*number).is_some_and(|opcode| opcode.op == op);
        let number = (0..=u8::MAX).find(is_it).unwrap();
        u64::from(op1) | u64::from(op2) << 16 | u64::from(number) << 40
    }

    fn at(index: u16) -> u16 {
        BIAS + index
    }

    /// The originals in code that begins with `BASE`.
    fn found(code: &[u64], loop_at: u16, slots: &[u32]) -> Vec<(u16, Vec<u16>)> {
        let words = [&[ins(IrOp::BASE, 0, 0)], code].concat();
        let found = originals(&IrCode::new(BIAS, words), Numbering::TmpRef, at(loop_at), slots);
        let mut found: Vec<_> = found.into_iter().collect();
        found.sort();
        found
    }

    /// A constant.
    const K: u16 = BIAS - 2;

    #[test]
    fn what_a_slot_holds_takes_the_place_of_its_load() {
        let code = [
            ins(IrOp::SLOAD, 1, 0),
            ins(IrOp::ADD, at(1), K),
            ins(IrOp::LOOP, 0, 0),
            ins(IrOp::ADD, at(2), K),
            ins(IrOp::PHI, at(2), at(4)),
        ];
        // Slot 1 holds the sum when the loop begins again.
        assert_eq!(found(&code, 3, &[1 << 24 | u32::from(at(2))]), [(at(4), vec![at(2)])]);
    }

    #[test]
    fn what_does_not_change_has_no_copy_and_what_is_new_is_of_what_changes() {
        let code = [
            ins(IrOp::SLOAD, 1, 0),
            ins(IrOp::SLOAD, 2, 0),
            ins(IrOp::MUL, at(2), at(2)),
            ins(IrOp::ADD, at(1), at(3)),
            ins(IrOp::LOOP, 0, 0),
            ins(IrOp::ABS, at(4), K),
            ins(IrOp::ADD, at(4), at(3)),
            ins(IrOp::PHI, at(4), at(7)),
        ];
        // Folding may have created both from the sum.
        let slots = [1 << 24 | u32::from(at(4))];
        assert_eq!(found(&code, 5, &slots), [(at(6), vec![at(4)]), (at(7), vec![at(4)])]);
    }

    #[test]
    fn operands_may_be_swapped_but_not_others() {
        let code = |first, second| {
            [
                ins(IrOp::SLOAD, 1, 0),
                ins(IrOp::SLOAD, 2, 0),
                ins(IrOp::MUL, at(1), at(2)),
                ins(IrOp::ADD, at(3), K),
                ins(IrOp::LOOP, 0, 0),
                ins(IrOp::MUL, first, second),
            ]
        };
        let slots = [1 << 24 | u32::from(at(4))];
        assert_eq!(found(&code(at(2), at(4)), 5, &slots), [(at(6), vec![at(3)])]);
        let all = vec![at(3), at(4)];
        assert_eq!(found(&code(at(2), at(3)), 5, &slots), [(at(6), all)], "it is no copy of the product");
    }
}
