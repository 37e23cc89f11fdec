//! The lower frames that a trace returns to (`RETF`): from each such return on, `jit_base` is that frame's.

use crate::trace::functions::Callee;

/// The returns of a trace, in the order in which it makes them.
#[derive(Clone, Debug, Default)]
pub(in crate::trace) struct LowerFrames {
    returns: Vec<Return>,
}

/// A return to a lower frame.
#[derive(Clone, Copy, Debug)]
pub(in crate::trace) struct Return {
    /// Its reference in the intermediate code.
    pub at: u16,
    /// The function that it returns to, and the position after the call there; [`None`] if they cannot be told.
    pub to: Option<(Callee, u32)>,
    /// The offset in the machine code from which on `jit_base` is that frame's.
    pub offset: u32,
}

impl LowerFrames {
    /// The frames of these returns.
    pub fn new(returns: Vec<Return>) -> Self {
        Self { returns }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.returns.len()
    }

    /// Whether it makes none.
    pub fn is_empty(&self) -> bool {
        self.returns.is_empty()
    }

    /// Where the code behind each return begins: in the intermediate code, and in the machine code. What the assembler
    /// emits for an instruction lies behind all that it emits for those before, and setting `jit_base` is the last that
    /// a return does (`asm_retf`, `lj_asm_x86.h`).
    pub fn bounds(&self) -> impl Iterator<Item = (u16, u32)> {
        self.returns.iter().map(|passed| (passed.at + 1, passed.offset))
    }

    /// The function whose frame `jit_base` is at an offset of the machine code; [`None`] if the trace has not returned by
    /// then, or if it cannot be told.
    pub fn base_at(&self, offset: u32) -> Option<Callee> {
        let last = self.returns.partition_point(|passed| passed.offset <= offset).checked_sub(1)?;
        self.returns[last].to.map(|(callee, _)| callee)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: Callee = Callee::Lua { prototype: 0x10, function: None };
    const ROW: Callee = Callee::Lua { prototype: 0x20, function: None };

    /// A trace that returns to ROW, and from there to PAGE.
    fn lower() -> LowerFrames {
        let to_row = Return { at: 0x8005, to: Some((ROW, 5)), offset: 0x40 };
        let to_page = Return { at: 0x8009, to: Some((PAGE, 8)), offset: 0x60 };
        LowerFrames::new(vec![to_row, to_page])
    }

    #[test]
    fn the_base_is_that_of_the_last_return() {
        let base = |offset| lower().base_at(offset);
        assert_eq!(
            [base(0), base(0x3f), base(0x40), base(0x5f), base(0x60)],
            [None, None, Some(ROW), Some(ROW), Some(PAGE)]
        );
    }
}
