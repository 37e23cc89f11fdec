//! Kinds of bytecodes, and the results of those that compute.

use crate::bytecode::Op;
use crate::trace::ir::IrOp as Ir;

/// The IR operations with which arithmetic ends.
pub(super) const RESULTS: [Ir; 8] = [Ir::ADD, Ir::SUB, Ir::MUL, Ir::DIV, Ir::NEG, Ir::ADDOV, Ir::SUBOV, Ir::MULOV];

/// Whether an instruction looks something up in a table.
pub(super) fn is_lookup(op: Op) -> bool {
    matches!(op, Op::TGETV | Op::TGETS | Op::TGETB | Op::TGETR | Op::GGET)
}

/// Whether an instruction stores into a table.
pub(super) fn is_store(op: Op) -> bool {
    matches!(op, Op::TSETV | Op::TSETS | Op::TSETB | Op::TSETR | Op::GSET)
}

/// Whether an instruction adds, subtracts, multiplies or divides.
pub(super) fn is_arithmetic(op: Op) -> bool {
    matches!(
        op,
        Op::ADDVN
            | Op::ADDNV
            | Op::ADDVV
            | Op::SUBVN
            | Op::SUBNV
            | Op::SUBVV
            | Op::MULVN
            | Op::MULNV
            | Op::MULVV
            | Op::DIVVN
            | Op::DIVNV
            | Op::DIVVV
    )
}

/// Whether an instruction compares two values, and a jump follows it.
pub(super) fn compares_two(op: Op) -> bool {
    matches!(
        op,
        Op::ISLT
            | Op::ISGE
            | Op::ISLE
            | Op::ISGT
            | Op::ISEQV
            | Op::ISNEV
            | Op::ISEQS
            | Op::ISNES
            | Op::ISEQN
            | Op::ISNEN
            | Op::ISEQP
            | Op::ISNEP
    )
}

/// Whether an instruction compares, and a jump follows it.
pub(super) fn is_comparison(op: Op) -> bool {
    compares_two(op) || matches!(op, Op::ISTC | Op::ISFC | Op::IST | Op::ISF)
}
