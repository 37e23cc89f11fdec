//! The JIT compiler's intermediate code ([`IRIns`], `lj_ir.h`): its format, and the opcodes of all numberings.
//!
//! Releases number the opcodes differently, and nothing in a layout shows which numbering a build uses: OpenResty and
//! Tarantool took some changes and not others. So the numbering is found from the code itself: with a wrong numbering
//! some operand makes no sense ([`Numbering::fits`]).
//!
//! LuaJIT's sources: [`REF_BIAS`], [`IRT_*`], [`IRDEF`].
//!
//! [`IRIns`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_ir.h#L541-L580
//! [`REF_BIAS`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_ir.h#L463-L471
//! [`IRT_*`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_ir.h#L320-L327
//! [`IRDEF`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_ir.h#L14-L150

use std::sync::LazyLock;

/// References below this are constants; from here on they are instructions (`REF_BIAS`, `lj_ir.h`).
pub const BIAS: u16 = 0x8000;

/// The first recorded instruction (`REF_FIRST`).
pub const FIRST: u16 = BIAS + 1;

/// `nil`; as the owner of a field, the VM itself (`REF_NIL`).
pub const NIL: u16 = BIAS - 1;

/// Flag next to the type: the instruction may leave the trace (`IRT_GUARD`).
const GUARD: u8 = 0x80;

/// Types of results, as far as they matter here (`IRT_*`, `lj_ir.h`, the same since 2.0).
pub mod irt {
    /// Nil.
    pub const NIL: u8 = 0;
    /// True; nil and false come before it.
    pub const TRUE: u8 = 2;
    /// A string.
    pub const STR: u8 = 4;
    /// A pointer of 32 bits.
    pub const P32: u8 = 5;
    /// A function.
    pub const FUNC: u8 = 8;
    /// A pointer of 64 bits.
    pub const P64: u8 = 9;
    /// C data.
    pub const CDATA: u8 = 10;
    /// A table.
    pub const TAB: u8 = 11;
    /// Userdata.
    pub const UDATA: u8 = 12;
    /// A floating-point number; from here on all types are numbers.
    pub const NUM: u8 = 14;
    /// An integer of 32 bits.
    pub const INT: u8 = 19;
}

/// One instruction: two operands, type, opcode, register and spill slot of its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ins(pub u64);

impl Ins {
    /// The first operand.
    pub const fn op1(self) -> u16 {
        self.0 as u16
    }

    /// The second operand.
    pub const fn op2(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// Both operands as one number, in a constant.
    pub const fn literal(self) -> u32 {
        self.0 as u32
    }

    /// The type of its result, without flags.
    pub const fn kind_of_result(self) -> u8 {
        (self.0 >> 32) as u8 & 0x1f
    }

    /// Whether it is a guard: it leaves the trace if what it asserts does not hold.
    pub const fn is_guard(self) -> bool {
        (self.0 >> 32) as u8 & GUARD != 0
    }

    /// The number of its opcode.
    pub const fn number(self) -> u8 {
        (self.0 >> 40) as u8
    }

    /// The register of its result: 0 to 15 are general registers, 16 is `xmm0`; [`None`] if it has none.
    pub const fn register(self) -> Option<u8> {
        let register = (self.0 >> 48) as u8;
        if register & 0x80 == 0 { Some(register) } else { None }
    }

    /// Whether its result is kept in a spill slot.
    pub const fn is_spilled(self) -> bool {
        (self.0 >> 56) as u8 != 0
    }

    /// Whether it was sunk: it only runs when the trace is left (`RID_SINK`, `RID_SUNK`).
    pub const fn is_sunk(self) -> bool {
        matches!((self.0 >> 48) as u8, 0xfd | 0xfe)
    }
}

/// The kind of an operand (`IRMode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// Another instruction, or a constant.
    Ref,
    /// A number.
    Literal,
    /// Part of a constant.
    Constant,
    /// Unused.
    Nothing,
}

/// The effect of an opcode on memory (`IRM_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    Normal,
    /// It allocates.
    Allocation,
    /// It reads.
    Load,
    /// It writes, or has another effect: it is never dropped.
    Store,
}

/// A numbering of opcodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbering {
    /// 2.0.
    V20 = 0,
    /// 2.1 until 2020-05, OpenResty until 2020-01, Tarantool 2.5 to 2.8: with `ATAN2`.
    V21,
    /// 2.1 from 2020-05 to 2021-06, OpenResty of 2020-10 and 2020-12: with `ALEN`, without `ATAN2`.
    Alen,
    /// 2.1 since 2021-06, OpenResty since 2023: `TMPREF` too.
    TmpRef,
    /// Tarantool 1.10, and since 2.10: none of these.
    Tarantool,
}

impl Numbering {
    /// All numberings, the most common first.
    pub const ALL: [Self; 5] = [Self::TmpRef, Self::Tarantool, Self::V21, Self::Alen, Self::V20];

    /// What the opcode of this number means.
    pub fn opcode(self, number: u8) -> Option<&'static IrOpcode> {
        static TABLES: LazyLock<Vec<Vec<&'static IrOpcode>>> = LazyLock::new(|| {
            let table = |numbering: u8| OPCODES.iter().filter(|op| op.numberings >> numbering & 1 != 0).collect();
            (0..5).map(table).collect()
        });
        TABLES[self as usize].get(usize::from(number)).copied()
    }

    /// Whether `code` can have this numbering: all operands make sense.
    pub fn fits(self, code: &IrCode) -> bool {
        code.references().filter(|&at| at >= FIRST).all(|at| {
            let ins = code.ins(at);
            let Some(opcode) = self.opcode(ins.number()) else { return false };
            let operand = |mode, value: u16| match mode {
                Operand::Ref => value >= code.start && value < at,
                Operand::Literal => true,
                Operand::Constant => false,
                Operand::Nothing => value == 0,
            };
            // Slots of a frame, and modes of a few bits.
            let literals = match opcode.op {
                IrOp::SLOAD => ins.op1() < 256 && ins.op2() < 0x80,
                // Without an object (`REF_NIL`), it is a field of the VM itself.
                IrOp::FLOAD => ins.op2() < 64 || ins.op1() == NIL,
                IrOp::FREF => ins.op2() < 64,
                IrOp::XLOAD => ins.op2() < 8,
                _ => true,
            };
            // Instructions that the assembler adds have special operands.
            matches!(opcode.op, IrOp::RENAME | IrOp::NOP | IrOp::PHI | IrOp::LOOP | IrOp::ABC)
                || literals && operand(opcode.operands.0, ins.op1()) && operand(opcode.operands.1, ins.op2())
        })
    }
}

/// The intermediate code of one trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IrCode {
    start: u16,
    words: Vec<u64>,
}

impl IrCode {
    /// Code whose first word has the reference `start`.
    pub fn new(start: u16, words: Vec<u64>) -> Self {
        Self { start, words }
    }

    /// The instruction at a reference; all zeros where there is none.
    pub fn ins(&self, at: u16) -> Ins {
        Ins(self.word(at))
    }

    /// The word at a reference: a 64-bit constant has its value in the next word.
    pub fn word(&self, at: u16) -> u64 {
        at.checked_sub(self.start).and_then(|index| self.words.get(usize::from(index))).copied().unwrap_or(0)
    }

    /// All references, with constants and their values.
    pub fn references(&self) -> std::ops::Range<u16> {
        self.start..self.end()
    }

    /// First reference after the last.
    pub fn end(&self) -> u16 {
        self.start.saturating_add(u16::try_from(self.words.len()).unwrap_or(u16::MAX))
    }
}

/// Whether a constant takes two words: the second one is its value.
pub fn is_wide(op: Option<IrOp>, gc64: bool) -> bool {
    match op {
        Some(IrOp::KNUM | IrOp::KINT64) => true,
        Some(IrOp::KGC | IrOp::KPTR | IrOp::KKPTR) => gc64,
        _ => false,
    }
}

/// An opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IrOpcode {
    /// The opcode.
    pub op: IrOp,
    /// Its effect on memory.
    pub effect: Effect,
    /// The kinds of its operands.
    pub operands: (Operand, Operand),
    /// The numberings that have it, one bit for each.
    numberings: u8,
}

const ALL: u8 = 0b1_1111;
const NOT_V20: u8 = 0b1_1110;
const OLD: u8 = 0b0_0011;
const WITH_ALEN: u8 = 0b0_1100;
const NEWEST: u8 = 0b0_1000;

macro_rules! opcodes {
    ($(($op:ident, $effect:ident, $op1:ident, $op2:ident, $numberings:ident),)*) => {
        /// The opcodes of all builds, by their names in `lj_ir.h`.
        #[expect(missing_docs, reason = "LuaJIT's own names; `lj_ir.h` describes them")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum IrOp {
            $($op,)*
        }

        const OPCODES: &[IrOpcode] = &[
            $(IrOpcode {
                op: IrOp::$op,
                effect: Effect::$effect,
                operands: (Operand::$op1, Operand::$op2),
                numberings: $numberings,
            },)*
        ];
    };
}

// `IRDEF` of `lj_ir.h` of LuaJIT 1ee778a4 (2026-08), compared with 2.0.1, 2.1 of 2021-03 and 2022-03, OpenResty
// 2cf51864, Tarantool's 1.10, 2.6 and of 2026: the order is the same everywhere.
opcodes! {
    (LT, Normal, Ref, Ref, ALL),
    (GE, Normal, Ref, Ref, ALL),
    (LE, Normal, Ref, Ref, ALL),
    (GT, Normal, Ref, Ref, ALL),
    (ULT, Normal, Ref, Ref, ALL),
    (UGE, Normal, Ref, Ref, ALL),
    (ULE, Normal, Ref, Ref, ALL),
    (UGT, Normal, Ref, Ref, ALL),
    (EQ, Normal, Ref, Ref, ALL),
    (NE, Normal, Ref, Ref, ALL),
    (ABC, Normal, Ref, Ref, ALL),
    (RETF, Store, Ref, Ref, ALL),
    (NOP, Normal, Nothing, Nothing, ALL),
    (BASE, Normal, Literal, Literal, ALL),
    (PVAL, Normal, Literal, Nothing, ALL),
    (GCSTEP, Store, Nothing, Nothing, ALL),
    (HIOP, Store, Ref, Ref, ALL),
    (LOOP, Store, Nothing, Nothing, ALL),
    (USE, Store, Ref, Nothing, ALL),
    (PHI, Store, Ref, Ref, ALL),
    (RENAME, Store, Ref, Literal, ALL),
    (PROF, Store, Nothing, Nothing, NOT_V20),
    (KPRI, Normal, Nothing, Nothing, ALL),
    (KINT, Normal, Constant, Nothing, ALL),
    (KGC, Normal, Constant, Nothing, ALL),
    (KPTR, Normal, Constant, Nothing, ALL),
    (KKPTR, Normal, Constant, Nothing, ALL),
    (KNULL, Normal, Constant, Nothing, ALL),
    (KNUM, Normal, Constant, Nothing, ALL),
    (KINT64, Normal, Constant, Nothing, ALL),
    (KSLOT, Normal, Ref, Literal, ALL),
    (BNOT, Normal, Ref, Nothing, ALL),
    (BSWAP, Normal, Ref, Nothing, ALL),
    (BAND, Normal, Ref, Ref, ALL),
    (BOR, Normal, Ref, Ref, ALL),
    (BXOR, Normal, Ref, Ref, ALL),
    (BSHL, Normal, Ref, Ref, ALL),
    (BSHR, Normal, Ref, Ref, ALL),
    (BSAR, Normal, Ref, Ref, ALL),
    (BROL, Normal, Ref, Ref, ALL),
    (BROR, Normal, Ref, Ref, ALL),
    (ADD, Normal, Ref, Ref, ALL),
    (SUB, Normal, Ref, Ref, ALL),
    (MUL, Normal, Ref, Ref, ALL),
    (DIV, Normal, Ref, Ref, ALL),
    (MOD, Normal, Ref, Ref, ALL),
    (POW, Normal, Ref, Ref, ALL),
    (NEG, Normal, Ref, Ref, ALL),
    (ABS, Normal, Ref, Ref, ALL),
    (ATAN2, Normal, Ref, Ref, OLD),
    (LDEXP, Normal, Ref, Ref, ALL),
    (MIN, Normal, Ref, Ref, ALL),
    (MAX, Normal, Ref, Ref, ALL),
    (FPMATH, Normal, Ref, Literal, ALL),
    (ADDOV, Normal, Ref, Ref, ALL),
    (SUBOV, Normal, Ref, Ref, ALL),
    (MULOV, Normal, Ref, Ref, ALL),
    (AREF, Normal, Ref, Ref, ALL),
    (HREFK, Normal, Ref, Ref, ALL),
    (HREF, Load, Ref, Ref, ALL),
    (NEWREF, Store, Ref, Ref, ALL),
    (UREFO, Load, Ref, Literal, ALL),
    (UREFC, Load, Ref, Literal, ALL),
    (FREF, Normal, Ref, Literal, ALL),
    (TMPREF, Store, Ref, Literal, NEWEST),
    (STRREF, Normal, Ref, Ref, ALL),
    (LREF, Load, Nothing, Nothing, NOT_V20),
    (ALOAD, Load, Ref, Nothing, ALL),
    (HLOAD, Load, Ref, Nothing, ALL),
    (ULOAD, Load, Ref, Nothing, ALL),
    (FLOAD, Load, Ref, Literal, ALL),
    (XLOAD, Load, Ref, Literal, ALL),
    (SLOAD, Load, Literal, Literal, ALL),
    (VLOAD, Load, Ref, Literal, ALL),
    (ALEN, Load, Ref, Ref, WITH_ALEN),
    (ASTORE, Store, Ref, Ref, ALL),
    (HSTORE, Store, Ref, Ref, ALL),
    (USTORE, Store, Ref, Ref, ALL),
    (FSTORE, Store, Ref, Ref, ALL),
    (XSTORE, Store, Ref, Ref, ALL),
    (SNEW, Normal, Ref, Ref, ALL),
    (XSNEW, Allocation, Ref, Ref, ALL),
    (TNEW, Allocation, Literal, Literal, ALL),
    (TDUP, Allocation, Ref, Nothing, ALL),
    (CNEW, Allocation, Ref, Ref, ALL),
    (CNEWI, Normal, Ref, Ref, ALL),
    (BUFHDR, Load, Ref, Literal, NOT_V20),
    (BUFPUT, Load, Ref, Ref, NOT_V20),
    (BUFSTR, Allocation, Ref, Ref, NOT_V20),
    (TBAR, Store, Ref, Nothing, ALL),
    (OBAR, Store, Ref, Ref, ALL),
    (XBAR, Store, Nothing, Nothing, ALL),
    (CONV, Normal, Ref, Literal, ALL),
    (TOBIT, Normal, Ref, Ref, ALL),
    (TOSTR, Normal, Ref, Literal, ALL),
    (STRTO, Normal, Ref, Nothing, ALL),
    (CALLN, Normal, Ref, Literal, ALL),
    (CALLA, Allocation, Ref, Literal, NOT_V20),
    (CALLL, Load, Ref, Literal, ALL),
    (CALLS, Store, Ref, Literal, ALL),
    (CALLXS, Store, Ref, Ref, ALL),
    (CARG, Normal, Ref, Ref, ALL),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(numbering: Numbering, op: IrOp) -> Option<u8> {
        (0..=u8::MAX).find(|&number| numbering.opcode(number).is_some_and(|opcode| opcode.op == op))
    }

    #[test]
    fn numbers_are_those_of_the_sources() {
        // KGC, SLOAD, CONV, CARG, counted in `lj_ir.h` of each.
        let counted = [
            (Numbering::V20, [23, 69, 85, 93]),
            (Numbering::V21, [24, 71, 90, 99]),
            (Numbering::Alen, [24, 70, 90, 99]),
            (Numbering::TmpRef, [24, 71, 91, 100]),
            (Numbering::Tarantool, [24, 70, 89, 98]),
        ];
        for (numbering, numbers) in counted {
            let ops = [IrOp::KGC, IrOp::SLOAD, IrOp::CONV, IrOp::CARG];
            assert_eq!(ops.map(|op| number(numbering, op)), numbers.map(Some), "{numbering:?}");
        }
    }
}
