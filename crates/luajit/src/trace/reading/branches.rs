//! The targets of comparisons and loops.
//!
//! LuaJIT's sources: [`rec_comp_fixup`], [`rec_for`].
//!
//! [`rec_comp_fixup`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_record.c#L2206-L2224
//! [`rec_for`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_record.c#L567-L585

use super::kinds::is_comparison;
use super::{BytecodeStep, Reader, ReadingPlace, VmQueries};
use crate::bytecode::Op;
use crate::trace::stacks::Stacks;

impl<S: VmQueries> Reader<'_, S> {
    /// The targets of a branching bytecode: if its comparison holds, and if not. The snapshot of its guard has the
    /// target that it does not go to (`rec_comp_fixup`, `rec_for`, `lj_record.c`).
    pub(super) fn ways(&self, stacks: &Stacks, place: &ReadingPlace, step: BytecodeStep) -> Option<(u32, u32)> {
        let after = step.position + 1;
        match step.op {
            Op::FORI | Op::JFORI => Some((jump(step.position, step.instruction.d()), after)),
            Op::FORL | Op::IFORL | Op::JFORL => Some((after, self.loop_body(stacks, place)?)),
            op if is_comparison(op) => {
                let jump_after = self.prototype(stacks, place)?.instruction(after)?;
                Some((jump(after, jump_after.d()), after + 1))
            }
            _ => None,
        }
    }

    /// First instruction of the numeric loop that ends at `place`. A trace's number may replace the jump at the loop's
    /// end, but not the jump at its beginning, which leads to the instruction after the loop.
    pub(super) fn loop_body(&self, stacks: &Stacks, place: &ReadingPlace) -> Option<u32> {
        self.beginning(stacks, place, place.position + 1, &[Op::FORI, Op::JFORI])
    }

    /// First instruction of the generic loop that ends at `end` with an `ITERL`: its beginning jumps to the iterator's
    /// call, which is right before the `ITERL`.
    pub(super) fn iterator_body(&self, stacks: &Stacks, place: &ReadingPlace, end: u32) -> Option<u32> {
        self.beginning(stacks, place, end.wrapping_sub(1), &[Op::JMP, Op::ISNEXT])
    }

    /// The position after the first instruction that is one of `ops` and jumps to `target`. The loop's body may have
    /// such instructions, too, but they come after its beginning.
    fn beginning(&self, stacks: &Stacks, place: &ReadingPlace, target: u32, ops: &[Op]) -> Option<u32> {
        let prototype = self.prototype(stacks, place)?;
        let begins = |at: &u32| {
            let Some(ins) = prototype.instruction(*at) else { return false };
            let is_one = ins.opcode(self.set).is_some_and(|opcode| ops.contains(&opcode.op));
            is_one && jump(*at, ins.d()) == target
        };
        (0..place.position).find(begins).map(|at| at + 1)
    }
}

/// The target of a jump at `from`.
pub(super) fn jump(from: u32, d: u16) -> u32 {
    from.wrapping_add(1).wrapping_add(u32::from(d)).wrapping_sub(0x8000)
}
