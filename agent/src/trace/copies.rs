//! Loops: their body is recorded once and copied once, with what does not change left out (`loop_unroll`,
//! `lj_opt_loop.c`). The copy is what runs.

use std::collections::HashMap;

use super::ir::{Code, Effect, FIRST, Ins, Numbering, Op, Operand};

/// For each instruction behind the `LOOP` at `loop_at`: the recorded ones that it may be the copy of. `slots` are the
/// entries of the loop's snapshot, with what is in each slot when the loop begins anew.
pub fn originals(code: &Code, numbering: Numbering, loop_at: u16, slots: &[u32]) -> HashMap<u16, Vec<u16>> {
    let mut originals: HashMap<u16, Vec<u16>> = HashMap::new();
    let mut copies = Copies { code, numbering, substitute: HashMap::new() };
    let end = (loop_at + 1..code.end()).find(|&at| copies.op(at) == Some(Op::PHI)).unwrap_or(code.end());
    let mut next = loop_at + 1;
    let mut last_matched = FIRST;
    for at in FIRST..loop_at {
        let Some((opcode, ins)) = copies.get(at) else { continue };
        if opcode == Op::NOP {
            continue;
        }
        if opcode == Op::SLOAD {
            // Forwarded from what the iteration before has left there.
            let left = slots.iter().find(|entry| *entry >> 24 == u32::from(ins.op1()));
            copies.substitute.insert(at, left.map_or(at, |entry| *entry as u16));
            continue;
        }
        let operands = copies.operands(at, ins);
        let unchanged = operands == (Some(ins.op1()), Some(ins.op2()));
        if unchanged && copies.effect(at) == Some(Effect::Normal) {
            copies.substitute.insert(at, at);
            continue;
        }
        /// Instructions that may have become something else in between.
        const AHEAD: u16 = 4;
        let matching =
            (next..end.min(next.saturating_add(AHEAD))).find(|&copy| copies.is_copy(copy, opcode, ins, operands));
        // Otherwise it became something that was there before, or what was stored where it loads from.
        let Some(copy) = matching else { continue };
        for unknown in (next..copy).filter(|&at| copies.op(at) != Some(Op::NOP)) {
            originals.insert(unknown, (last_matched..=at).collect());
        }
        originals.insert(copy, vec![at]);
        copies.substitute.insert(at, copy);
        next = copy + 1;
        last_matched = at;
    }
    for unknown in next..end {
        originals.insert(unknown, (last_matched..loop_at).collect());
    }
    originals
}

struct Copies<'a> {
    code: &'a Code,
    numbering: Numbering,
    /// What recorded instructions became.
    substitute: HashMap<u16, u16>,
}

impl Copies<'_> {
    fn get(&self, at: u16) -> Option<(Op, Ins)> {
        let ins = self.code.ins(at);
        Some((self.numbering.opcode(ins.number())?.op, ins))
    }

    fn op(&self, at: u16) -> Option<Op> {
        self.get(at).map(|(op, _)| op)
    }

    fn effect(&self, at: u16) -> Option<Effect> {
        self.numbering.opcode(self.code.ins(at).number()).map(|opcode| opcode.effect)
    }

    /// The operands that a copy has; none where that is not known.
    fn operands(&self, at: u16, ins: Ins) -> (Option<u16>, Option<u16>) {
        let Some(opcode) = self.numbering.opcode(self.code.ins(at).number()) else { return (None, None) };
        let operand = |kind: Operand, value: u16| {
            if kind == Operand::Ref && value >= FIRST { self.substitute.get(&value).copied() } else { Some(value) }
        };
        (operand(opcode.operands.0, ins.op1()), operand(opcode.operands.1, ins.op2()))
    }

    fn is_copy(&self, copy: u16, op: Op, ins: Ins, operands: (Option<u16>, Option<u16>)) -> bool {
        let Some((other, copied)) = self.get(copy) else { return false };
        let same = |expected: Option<u16>, found: u16| expected.is_none_or(|expected| expected == found);
        let straight = same(operands.0, copied.op1()) && same(operands.1, copied.op2());
        let swapped = same(operands.0, copied.op2()) && same(operands.1, copied.op1());
        other == op && copied.kind_of_result() == ins.kind_of_result() && (straight || swapped)
    }
}

#[cfg(test)]
mod tests {
    use super::super::ir::BIAS;
    use super::*;

    fn ins(op: Op, op1: u16, op2: u16) -> u64 {
        let is_it = |number: &u8| Numbering::TmpRef.opcode(*number).is_some_and(|opcode| opcode.op == op);
        let number = (0..=u8::MAX).find(is_it).unwrap();
        u64::from(op1) | u64::from(op2) << 16 | u64::from(number) << 40
    }

    fn at(index: u16) -> u16 {
        BIAS + index
    }

    /// The originals of a code that begins with `BASE`.
    fn found(code: &[u64], loop_at: u16, slots: &[u32]) -> Vec<(u16, Vec<u16>)> {
        let words = [&[ins(Op::BASE, 0, 0)], code].concat();
        let found = originals(&Code::new(BIAS, words), Numbering::TmpRef, at(loop_at), slots);
        let mut found: Vec<_> = found.into_iter().collect();
        found.sort();
        found
    }

    /// A constant.
    const K: u16 = BIAS - 2;

    #[test]
    fn what_a_slot_holds_takes_the_place_of_its_load() {
        let code = [
            ins(Op::SLOAD, 1, 0),
            ins(Op::ADD, at(1), K),
            ins(Op::LOOP, 0, 0),
            ins(Op::ADD, at(2), K),
            ins(Op::PHI, at(2), at(4)),
        ];
        // Slot 1 holds the sum when the loop begins anew.
        assert_eq!(found(&code, 3, &[1 << 24 | u32::from(at(2))]), [(at(4), vec![at(2)])]);
    }

    #[test]
    fn what_does_not_change_has_no_copy_and_what_is_new_may_be_of_all_before() {
        let code = [
            ins(Op::SLOAD, 1, 0),
            ins(Op::SLOAD, 2, 0),
            ins(Op::MUL, at(2), at(2)),
            ins(Op::ADD, at(1), at(3)),
            ins(Op::LOOP, 0, 0),
            ins(Op::ABS, at(4), K),
            ins(Op::ADD, at(4), at(3)),
            ins(Op::PHI, at(4), at(7)),
        ];
        let before = (1..=4).map(at).collect();
        assert_eq!(found(&code, 5, &[1 << 24 | u32::from(at(4))]), [(at(6), before), (at(7), vec![at(4)])]);
    }

    #[test]
    fn operands_may_be_swapped_but_not_others() {
        let code = |first, second| {
            [
                ins(Op::SLOAD, 1, 0),
                ins(Op::SLOAD, 2, 0),
                ins(Op::MUL, at(1), at(2)),
                ins(Op::ADD, at(3), K),
                ins(Op::LOOP, 0, 0),
                ins(Op::MUL, first, second),
            ]
        };
        let slots = [1 << 24 | u32::from(at(4))];
        assert_eq!(found(&code(at(2), at(4)), 5, &slots), [(at(6), vec![at(3)])]);
        let all = (1..=4).map(at).collect();
        assert_eq!(found(&code(at(2), at(3)), 5, &slots), [(at(6), all)], "it is no copy of the product");
    }
}
