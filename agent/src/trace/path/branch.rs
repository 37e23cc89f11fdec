//! Comparisons and loops: where they go.

use super::step::Next;
use super::{Aim, Place, Surroundings, Walker};
use crate::trace::stacks::Stacks;
use crate::vm::bytecode::Op;

impl<S: Surroundings> Walker<'_, S> {
    /// A comparison: `targets` are where it goes if it holds and if it does not. A snapshot at one of them was taken
    /// before the comparison, which went the other way.
    pub(super) fn branch(&self, place: &Place, targets: (u32, u32), aim: Aim, more: Vec<Place>) -> Next {
        let go = |position: u32| {
            let mut next = place.clone();
            next.position = position;
            next.forced = None;
            next
        };
        if let Some(forced) = place.forced {
            return Next::One(go(forced));
        }
        if place.stack() == Some(aim.stack) {
            let forced = match aim.position {
                position if position == targets.0 => Some(targets.1),
                position if position == targets.1 => Some(targets.0),
                _ => None,
            };
            if let Some(forced) = forced {
                let mut end = place.clone();
                end.forced = Some(forced);
                return Next::Aim(end);
            }
        }
        Next::Either([vec![go(targets.1), go(targets.0)], more].concat())
    }

    /// Where the comparison at `place` goes if it holds, and if not: a jump follows it.
    pub(super) fn targets(&self, stacks: &Stacks, place: &Place) -> Option<(u32, u32)> {
        let after = place.position + 1;
        let jump = self.prototype(stacks, place)?.instruction(after)?;
        let target = after.wrapping_add(1).wrapping_add(u32::from(jump.d())).wrapping_sub(0x8000);
        Some((target, after + 1))
    }

    /// First instruction of the numeric loop that ends at `place`. The loop's own jump may be replaced by a trace's
    /// number, but not that of its beginning, which leads behind it.
    pub(super) fn loop_body(&self, stacks: &Stacks, place: &Place) -> Option<u32> {
        let prototype = self.prototype(stacks, place)?;
        let begins = |at: &u32| {
            let Some(ins) = prototype.instruction(*at) else { return false };
            let leads = at.wrapping_add(1).wrapping_add(u32::from(ins.d())).wrapping_sub(0x8000);
            matches!(ins.opcode(self.set).map(|opcode| opcode.op), Some(Op::FORI | Op::JFORI))
                && leads == place.position + 1
        };
        (0..place.position).rev().find(begins).map(|at| at + 1)
    }

    /// First instruction of the generic loop that ends at `place`: its beginning jumps to the iterator's call.
    pub(super) fn iterator_body(&self, stacks: &Stacks, place: &Place) -> Option<u32> {
        let prototype = self.prototype(stacks, place)?;
        let begins = |at: &u32| {
            let Some(ins) = prototype.instruction(*at) else { return false };
            let leads = at.wrapping_add(1).wrapping_add(u32::from(ins.d())).wrapping_sub(0x8000);
            matches!(ins.opcode(self.set).map(|opcode| opcode.op), Some(Op::JMP | Op::ISNEXT))
                && leads == place.position.wrapping_sub(1)
        };
        (0..place.position).rev().find(begins).map(|at| at + 1)
    }
}
