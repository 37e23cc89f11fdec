//! The lower frames that a trace returns to (`RETF`). After each such return, `jit_base` is the base of the lower frame.
//!
//! LuaJIT's sources: [`asm_retf`], [`asm_tail_link`].
//!
//! [`asm_retf`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_asm_x86.h#L791-L811
//! [`asm_tail_link`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_asm.c#L2166-L2169

use lj_trace_common::layout::VmLayout;

use crate::trace::body::TraceBody;
use crate::trace::functions::{Callee, TraceFunctions, object};
use crate::trace::ir::{FIRST, IrOp as Ir, Numbering};

/// The returns of a trace, in the order in which it makes them.
#[derive(Clone, Debug)]
pub(in crate::trace) struct LowerFrames {
    returns: Vec<Return>,
    /// For each return, the offset in the machine code after which `jit_base` is the lower frame's; [`None`] if the
    /// code does not have as many stores as there are returns.
    offsets: Option<Vec<u32>>,
    /// The same for the trace that follows, if that has another base.
    moved: Option<u32>,
}

/// A return to a lower frame.
#[derive(Clone, Copy, Debug)]
struct Return {
    /// Its reference in the intermediate code.
    at: u16,
    /// The function that it returns to, and the position after the call there; [`None`] if they are not known.
    to: Option<(Callee, u32)>,
}

impl LowerFrames {
    /// The returns of a trace. `base_stores` are the offsets in its machine code after each store of `jit_base`
    /// ([`base_stores`](crate::arch::base_stores)). Each return has one (`asm_retf`, `lj_asm_x86.h`), in the order of
    /// the intermediate code, and the end of the trace may have one (`asm_tail_link`, `lj_asm.c`).
    pub fn read(
        layout: &VmLayout,
        body: &TraceBody,
        functions: &TraceFunctions,
        numbering: Numbering,
        base_stores: Vec<u32>,
    ) -> Self {
        let is_return =
            |at: &u16| numbering.opcode(body.code.ins(*at).number()).is_some_and(|opcode| opcode.op == Ir::RETF);
        let target = |at: u16| {
            let ins = body.code.ins(at);
            let prototype = functions.function(ins.op1())?.prototype()?;
            let pc = object(layout, body, ins.op2());
            let position = functions.position(functions.prototype(prototype)?, pc)?;
            Some((functions.owner(pc).unwrap_or(Callee::Lua { prototype, function: None }), position))
        };
        let returns = (FIRST..body.code.end()).filter(is_return).map(|at| Return { at, to: target(at) });
        Self::new(returns.collect(), base_stores)
    }

    fn new(returns: Vec<Return>, mut base_stores: Vec<u32>) -> Self {
        let moved = if base_stores.len() > returns.len() { base_stores.pop() } else { None };
        let offsets = (base_stores.len() == returns.len()).then_some(base_stores);
        Self { returns, offsets, moved }
    }

    /// The offset from which on `jit_base` belongs to the trace that follows.
    pub fn moved(&self) -> Option<u32> {
        self.moved
    }

    /// The function that each return leads to, and the position after the call there, up to the first unknown one.
    pub fn targets(&self) -> Vec<(Callee, u32)> {
        self.returns.iter().map_while(|one| one.to).collect()
    }

    /// Whether the trace makes no such return.
    pub fn is_empty(&self) -> bool {
        self.returns.is_empty()
    }

    /// Where the code after each return begins, in the intermediate code and in the machine code; [`None`] if that is
    /// not known. The assembler emits machine code in the order of the instructions, and a return sets `jit_base` as
    /// the last thing that it does.
    pub fn bounds(&self) -> Option<Vec<(u16, u32)>> {
        let offsets = self.offsets.as_ref()?.iter();
        Some(self.returns.iter().zip(offsets).map(|(one, &offset)| (one.at + 1, offset)).collect())
    }

    /// The function whose base is in `jit_base` at an offset of the machine code; [`None`] if the trace has not
    /// returned by then, or if it is not known.
    pub fn base_at(&self, offset: u32) -> Option<Callee> {
        let last = self.offsets.as_ref()?.partition_point(|from| *from <= offset).checked_sub(1)?;
        self.returns[last].to.map(|(callee, _)| callee)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: Callee = Callee::Lua { prototype: 0x10, function: None };
    const ROW: Callee = Callee::Lua { prototype: 0x20, function: None };

    /// A trace that returns to ROW, and then to PAGE.
    fn lower(base_stores: &[u32]) -> LowerFrames {
        let returns = [(0x8005, (ROW, 5)), (0x8009, (PAGE, 8))].map(|(at, to)| Return { at, to: Some(to) });
        LowerFrames::new(returns.to_vec(), base_stores.to_vec())
    }

    #[test]
    fn the_base_is_that_of_the_last_return() {
        let bases = [0, 0x3f, 0x40, 0x5f, 0x60].map(|offset| lower(&[0x40, 0x60]).base_at(offset));
        assert_eq!(bases, [None, None, Some(ROW), Some(ROW), Some(PAGE)]);
    }

    #[test]
    fn one_more_store_is_that_of_the_end() {
        let both = [lower(&[0x40, 0x60]), lower(&[0x40, 0x60, 0x80])];
        assert_eq!(both.each_ref().map(LowerFrames::moved), [None, Some(0x80)]);
        both.iter().for_each(|lower| assert_eq!(lower.bounds(), Some(vec![(0x8006, 0x40), (0x800a, 0x60)])));
    }

    #[test]
    fn stores_that_do_not_fit_tell_nothing() {
        for stores in [&[][..], &[0x40], &[0x40, 0x60, 0x70, 0x80]] {
            assert_eq!((lower(stores).bounds(), lower(stores).base_at(0x90)), (None, None), "{stores:?}");
        }
    }
}
