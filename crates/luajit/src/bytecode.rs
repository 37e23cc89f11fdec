//! Bytecode instructions: format, names and modes of all three numberings (`lj_bc.h`, [`BCDEF`]).
//!
//! LuaJIT's sources: [`BCDEF` of 2.0].
//!
//! [`BCDEF`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_bc.h#L71-L206
//! [`BCDEF` of 2.0]: https://github.com/LuaJIT/LuaJIT/blob/71797fa75ffa1ddbd9b41bbd55d6c2d4236164b0/src/lj_bc.h#L71-L193

use std::sync::LazyLock;

use lj_trace_common::layout::BytecodeSet;

/// One instruction (`BCIns`): `OP A C B` or `OP A D`, from the lowest byte up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction(pub u32);

impl Instruction {
    /// The opcode's number, which depends on the build.
    pub const fn op(self) -> u8 {
        self.0 as u8
    }

    /// Operand A.
    pub const fn a(self) -> u8 {
        (self.0 >> 8) as u8
    }

    /// Operand B.
    pub const fn b(self) -> u8 {
        (self.0 >> 24) as u8
    }

    /// Operand C.
    pub const fn c(self) -> u8 {
        (self.0 >> 16) as u8
    }

    /// Operand D, which takes the place of B and C.
    pub const fn d(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// What the opcode means in builds of numbering `set`; `None` for a number that it does not have.
    pub fn opcode(self, set: BytecodeSet) -> Option<&'static Opcode> {
        /// Opcodes by number, for each numbering.
        static NUMBERED: LazyLock<[Vec<&'static Opcode>; 3]> = LazyLock::new(|| {
            [BytecodeSet::V20, BytecodeSet::V21, BytecodeSet::V21Jul2026].map(|set| opcodes(set).collect())
        });
        NUMBERED[set as usize].get(usize::from(self.op())).copied()
    }
}

/// What operand A of an opcode is (`bcmode_a`), as far as it matters for naming slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperandA {
    /// A slot that is written (`BCMdst`).
    Destination,
    /// The first of several slots that the opcode uses (`BCMbase`).
    Base,
    /// Anything else.
    Other,
}

/// Which metamethod an opcode may call (`bcmode_mm`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metamethod {
    /// None (`MM__MAX`).
    None,
    /// `__call`: the opcode calls a function.
    Call,
    /// Another one.
    Named(&'static str),
}

/// An opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opcode {
    /// Which one.
    pub op: Op,
    /// What operand A is.
    pub a: OperandA,
    /// Which metamethod it may call.
    pub metamethod: Metamethod,
    /// The first numbering that has it.
    since: BytecodeSet,
}

/// All opcodes of a numbering, in the order of their numbers.
pub fn opcodes(set: BytecodeSet) -> impl Iterator<Item = &'static Opcode> {
    OPCODES.iter().filter(move |opcode| opcode.since as u8 <= set as u8)
}

macro_rules! opcodes {
    ($(($op:ident, $since:ident, $a:ident, $metamethod:expr),)*) => {
        /// The opcodes of all builds, by their names in `lj_bc.h`.
        #[expect(missing_docs, reason = "LuaJIT's own names; `lj_bc.h` describes them")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Op {
            $($op,)*
        }

        const OPCODES: &[Opcode] = &[
            $(Opcode { op: Op::$op, a: $a, metamethod: $metamethod, since: BytecodeSet::$since },)*
        ];
    };
}

use Metamethod::{Call, Named, None};
use OperandA::{Base, Destination as Dst, Other};

// From `lj_bc.h` of LuaJIT 1ee778a4 (2026-08), compared with 2.0 head (71797fa7) and 2.1.0-beta3 (8271c643):
// the older numberings only lack opcodes. The second column is the first numbering that has the opcode.
opcodes! {
    (ISLT, V20, Other, Named("__lt")),
    (ISGE, V20, Other, Named("__lt")),
    (ISLE, V20, Other, Named("__le")),
    (ISGT, V20, Other, Named("__le")),
    (ISEQV, V20, Other, Named("__eq")),
    (ISNEV, V20, Other, Named("__eq")),
    (ISEQS, V20, Other, Named("__eq")),
    (ISNES, V20, Other, Named("__eq")),
    (ISEQN, V20, Other, Named("__eq")),
    (ISNEN, V20, Other, Named("__eq")),
    (ISEQP, V20, Other, Named("__eq")),
    (ISNEP, V20, Other, Named("__eq")),
    (ISTC, V20, Dst, None),
    (ISFC, V20, Dst, None),
    (IST, V20, Other, None),
    (ISF, V20, Other, None),
    (ISTYPE, V21, Other, None),
    (ISNUM, V21, Other, None),
    (MOV, V20, Dst, None),
    (NOT, V20, Dst, None),
    (UNM, V20, Dst, Named("__unm")),
    (LEN, V20, Dst, Named("__len")),
    (ADDVN, V20, Dst, Named("__add")),
    (SUBVN, V20, Dst, Named("__sub")),
    (MULVN, V20, Dst, Named("__mul")),
    (DIVVN, V20, Dst, Named("__div")),
    (MODVN, V20, Dst, Named("__mod")),
    (ADDNV, V20, Dst, Named("__add")),
    (SUBNV, V20, Dst, Named("__sub")),
    (MULNV, V20, Dst, Named("__mul")),
    (DIVNV, V20, Dst, Named("__div")),
    (MODNV, V20, Dst, Named("__mod")),
    (ADDVV, V20, Dst, Named("__add")),
    (SUBVV, V20, Dst, Named("__sub")),
    (MULVV, V20, Dst, Named("__mul")),
    (DIVVV, V20, Dst, Named("__div")),
    (MODVV, V20, Dst, Named("__mod")),
    (POW, V20, Dst, Named("__pow")),
    (CAT, V20, Dst, Named("__concat")),
    (KSTR, V20, Dst, None),
    (KCDATA, V20, Dst, None),
    (KSHORT, V20, Dst, None),
    (KNUM, V20, Dst, None),
    (KPRI, V20, Dst, None),
    (KNIL, V20, Base, None),
    (UGET, V20, Dst, None),
    (USETV, V20, Other, None),
    (USETS, V20, Other, None),
    (USETN, V20, Other, None),
    (USETP, V20, Other, None),
    (UCLO, V20, Other, None),
    (FNEW, V20, Dst, Named("__gc")),
    (TNEW, V20, Dst, Named("__gc")),
    (TDUP, V20, Dst, Named("__gc")),
    (GGET, V20, Dst, Named("__index")),
    (GSET, V20, Other, Named("__newindex")),
    (TGETV, V20, Dst, Named("__index")),
    (TGETS, V20, Dst, Named("__index")),
    (TGETB, V20, Dst, Named("__index")),
    (TGETR, V21, Dst, Named("__index")),
    (TSETV, V20, Other, Named("__newindex")),
    (TSETS, V20, Other, Named("__newindex")),
    (TSETB, V20, Other, Named("__newindex")),
    (TSETM, V20, Base, Named("__newindex")),
    (TSETR, V21, Other, Named("__newindex")),
    (CALLM, V20, Base, Call),
    (CALL, V20, Base, Call),
    (CALLMT, V20, Base, Call),
    (CALLT, V20, Base, Call),
    (ITERC, V20, Base, Call),
    (ITERN, V20, Base, Call),
    (VARG, V20, Base, None),
    (ISNEXT, V20, Base, None),
    (RETM, V20, Base, None),
    (RET, V20, Other, None),
    (RET0, V20, Other, None),
    (RET1, V20, Other, None),
    (FORI, V20, Base, None),
    (JFORI, V20, Base, None),
    (FORL, V20, Base, None),
    (IFORL, V20, Base, None),
    (JFORL, V20, Base, None),
    (ITERL, V20, Base, None),
    (IITERL, V20, Base, None),
    (JITERL, V20, Base, None),
    (LOOP, V20, Other, None),
    (ILOOP, V20, Other, None),
    (JLOOP, V20, Other, None),
    (JMP, V20, Other, None),
    (BNOT, V21Jul2026, Dst, None),
    (BAND, V21Jul2026, Dst, None),
    (BOR, V21Jul2026, Dst, None),
    (BXOR, V21Jul2026, Dst, None),
    (BSHL, V21Jul2026, Dst, None),
    (BSHR, V21Jul2026, Dst, None),
    (BSAR, V21Jul2026, Dst, None),
    (FUNCF, V20, Other, None),
    (IFUNCF, V20, Other, None),
    (JFUNCF, V20, Other, None),
    (FUNCV, V20, Other, None),
    (IFUNCV, V20, Other, None),
    (JFUNCV, V20, Other, None),
    (FUNCC, V20, Other, None),
    (FUNCCW, V20, Other, None),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layouts::known_layouts;
    use crate::prove::bytecode_set;

    fn number(set: BytecodeSet, op: Op) -> Option<u16> {
        opcodes(set).position(|opcode| opcode.op == op).map(|number| number as u16)
    }

    #[test]
    fn numbers_are_those_that_were_compiled() {
        for known in known_layouts() {
            let set = bytecode_set(&known.layout);
            assert_eq!(number(set, Op::FUNCF), Some(known.layout.bc_funcf), "{}", known.builds);
            assert_eq!(number(set, Op::FUNCC), Some(known.layout.bc_funcc), "{}", known.builds);
        }
        // BC_CALLM, CALL, CALLT, ITERC, ITERN, VARG, JLOOP of 2.0, 2.1 and head, as compiled.
        let compiled = [
            (BytecodeSet::V20, [61, 62, 64, 65, 66, 67, 83]),
            (BytecodeSet::V21, [65, 66, 68, 69, 70, 71, 87]),
            (BytecodeSet::V21Jul2026, [65, 66, 68, 69, 70, 71, 87]),
        ];
        for (set, numbers) in compiled {
            let ops = [Op::CALLM, Op::CALL, Op::CALLT, Op::ITERC, Op::ITERN, Op::VARG, Op::JLOOP];
            assert_eq!(ops.map(|op| number(set, op)), numbers.map(Some), "{set:?}");
        }
    }

    #[test]
    fn takes_instructions_apart() {
        // TGETS A=3 B=0 C=7 in 2.1 is number 57 (0x39).
        let instruction = Instruction(0x0007_0339);
        assert_eq!((instruction.a(), instruction.b(), instruction.c(), instruction.d()), (3, 0, 7, 7));
        assert_eq!(instruction.opcode(BytecodeSet::V21).map(|opcode| opcode.op), Some(Op::TGETS));
        assert_eq!(Instruction(97).opcode(BytecodeSet::V21), Option::None);
        assert_eq!(opcodes(BytecodeSet::V20).count(), 93);
    }
}
