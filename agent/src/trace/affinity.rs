//! Which bytecodes make which intermediate code (`lj_record.c`), as far as it tells them apart.

use super::ir::{Ins, Op as Ir, irt};
use crate::vm::bytecode::Op;

/// Whether a bytecode makes this instruction at most once (`lj_opt_narrow_arith`, `lj_opt_narrow.c`): not so those of
/// `POW`, which may be several multiplications, nor those of `MOD`.
pub fn is_made_once(bytecode: Op, ir: Option<Ir>) -> bool {
    let makes = match bytecode {
        Op::ADDVN | Op::ADDNV | Op::ADDVV => [Ir::ADD, Ir::ADDOV],
        Op::SUBVN | Op::SUBNV | Op::SUBVV => [Ir::SUB, Ir::SUBOV],
        Op::MULVN | Op::MULNV | Op::MULVV => [Ir::MUL, Ir::MULOV],
        Op::DIVVN | Op::DIVNV | Op::DIVVV => [Ir::DIV, Ir::MUL],
        _ => return false,
    };
    ir.is_some_and(|ir| makes.contains(&ir))
}

/// What the recorder makes of a bytecode.
fn makes(bytecode: Op, ir: Ir, ins: Ins) -> Making {
    use Making::{Never, Often, Own};
    let is_func = ins.kind_of_result() == irt::FUNC;
    let any = |list: &[Ir], making| if list.contains(&ir) { Some(making) } else { None };
    let operand = any(&[Ir::SLOAD, Ir::CONV], Often);
    let index = || {
        any(
            &[
                Ir::AREF,
                Ir::HREFK,
                Ir::HREF,
                Ir::ABC,
                Ir::FLOAD,
                Ir::NE,
                Ir::UGT,
                Ir::ULE,
                Ir::ULT,
                Ir::UGE,
                Ir::FREF,
                Ir::CALLN,
                Ir::CALLL,
                Ir::CALLS,
                Ir::CNEW,
                Ir::CNEWI,
                Ir::XLOAD,
                Ir::ADD,
                Ir::STRREF,
                Ir::BAND,
            ],
            Often,
        )
    };
    match bytecode {
        Op::ADDVN | Op::ADDNV | Op::ADDVV => arithmetic(ir, &[Ir::ADD, Ir::ADDOV]),
        Op::SUBVN | Op::SUBNV | Op::SUBVV => arithmetic(ir, &[Ir::SUB, Ir::SUBOV, Ir::ADD, Ir::ADDOV]),
        Op::MULVN | Op::MULNV | Op::MULVV => arithmetic(ir, &[Ir::MUL, Ir::MULOV, Ir::ADD]),
        Op::DIVVN | Op::DIVNV | Op::DIVVV => arithmetic(ir, &[Ir::DIV, Ir::MUL]),
        Op::MODVN | Op::MODNV | Op::MODVV => {
            arithmetic(ir, &[Ir::MOD, Ir::BAND, Ir::FPMATH, Ir::DIV, Ir::MUL, Ir::SUB, Ir::CALLN, Ir::NE])
        }
        Op::POW => arithmetic(ir, &[Ir::POW, Ir::MUL, Ir::FPMATH, Ir::CALLN, Ir::LDEXP]),
        Op::UNM => arithmetic(ir, &[Ir::NEG, Ir::SUB, Ir::SUBOV, Ir::NE]),
        Op::TGETV | Op::TGETS | Op::TGETB | Op::TGETR | Op::GGET => {
            any(&[Ir::ALOAD, Ir::HLOAD, Ir::XLOAD], Own).or_else(index).or(operand).unwrap_or(Never)
        }
        Op::TSETV | Op::TSETS | Op::TSETB | Op::TSETR | Op::TSETM | Op::GSET => {
            any(&[Ir::ASTORE, Ir::HSTORE, Ir::XSTORE, Ir::FSTORE, Ir::NEWREF, Ir::TBAR], Own)
                .or_else(index)
                .or_else(|| any(&[Ir::ALOAD, Ir::HLOAD, Ir::EQ], Often))
                .or(operand)
                .unwrap_or(Never)
        }
        Op::UGET => any(&[Ir::ULOAD, Ir::UREFC, Ir::UREFO], Own)
            .or(if is_func && ir == Ir::EQ { Some(Often) } else { None })
            .or_else(|| any(&[Ir::SLOAD, Ir::SUB, Ir::ADD, Ir::ULT, Ir::UGT, Ir::EQ], Often))
            .unwrap_or(Never),
        Op::USETV | Op::USETS | Op::USETN | Op::USETP => {
            any(&[Ir::USTORE, Ir::OBAR], Own).or_else(|| any(&[Ir::UREFC, Ir::UREFO], Own)).or(operand).unwrap_or(Never)
        }
        Op::ISLT | Op::ISGE | Op::ISLE | Op::ISGT | Op::FORL | Op::IFORL | Op::JFORL | Op::FORI | Op::JFORI => {
            let is_loop = matches!(bytecode, Op::FORL | Op::IFORL | Op::JFORL | Op::FORI | Op::JFORI);
            any(&[Ir::LT, Ir::GE, Ir::LE, Ir::GT, Ir::ULT, Ir::UGE, Ir::ULE, Ir::UGT], Own)
                .or(if is_loop && matches!(ir, Ir::ADD | Ir::ADDOV) { Some(Own) } else { None })
                .or_else(|| any(&[Ir::CALLN, Ir::FLOAD, Ir::EQ, Ir::NE], Often))
                .or(operand)
                .unwrap_or(Never)
        }
        Op::ISEQV | Op::ISNEV | Op::ISEQS | Op::ISNES | Op::ISEQN | Op::ISNEN | Op::ISEQP | Op::ISNEP => {
            any(&[Ir::EQ, Ir::NE], if is_func { Often } else { Own })
                .or_else(|| any(&[Ir::FLOAD, Ir::CALLN], Often))
                .or(operand)
                .unwrap_or(Never)
        }
        Op::IST | Op::ISF | Op::ISTC | Op::ISFC | Op::MOV | Op::NOT => any(&[Ir::SLOAD], Often).unwrap_or(Never),
        Op::LEN => any(&[Ir::ALEN, Ir::FLOAD, Ir::CALLL], Own).or(operand).unwrap_or(Never),
        Op::CAT => any(&[Ir::BUFHDR, Ir::BUFPUT, Ir::BUFSTR, Ir::TOSTR, Ir::CALLL, Ir::CALLA], Own)
            .or(operand)
            .unwrap_or(Never),
        Op::TNEW => any(&[Ir::TNEW], Own).unwrap_or(Never),
        Op::TDUP => any(&[Ir::TDUP], Own).unwrap_or(Never),
        Op::FNEW => any(&[Ir::CALLL, Ir::CALLA, Ir::CALLS], Own).unwrap_or(Never),
        Op::ITERN | Op::ISNEXT => any(&[Ir::VLOAD, Ir::CALLL, Ir::HIOP, Ir::LREF, Ir::TMPREF, Ir::CALLN], Own)
            .or_else(|| any(&[Ir::NE, Ir::EQ, Ir::FLOAD, Ir::ADD], Often))
            .or(operand)
            .unwrap_or(Never),
        Op::VARG => any(&[Ir::VLOAD], Own)
            .or_else(|| any(&[Ir::SUB, Ir::ADD, Ir::AREF, Ir::EQ, Ir::GE, Ir::LT, Ir::GT, Ir::LE, Ir::BSHR], Often))
            .or(operand)
            .unwrap_or(Never),
        Op::RET | Op::RETM | Op::RET0 | Op::RET1 => any(&[Ir::RETF], Own).or(operand).unwrap_or(Never),
        // A call of a Lua function guards which one it is; what it may be else is told by `calls`.
        Op::CALL | Op::CALLM | Op::CALLT | Op::CALLMT | Op::ITERC => {
            if is_func && matches!(ir, Ir::EQ) {
                Own
            } else {
                any(&[Ir::EQ, Ir::FLOAD, Ir::SLOAD], Often).unwrap_or(Never)
            }
        }
        Op::ISTYPE | Op::ISNUM => any(&[Ir::CONV, Ir::TOSTR, Ir::STRTO, Ir::SLOAD], Often).unwrap_or(Never),
        Op::BNOT | Op::BAND | Op::BOR | Op::BXOR | Op::BSHL | Op::BSHR | Op::BSAR => {
            any(&[Ir::BNOT, Ir::BAND, Ir::BOR, Ir::BXOR, Ir::BSHL, Ir::BSHR, Ir::BSAR, Ir::TOBIT], Own)
                .or(operand)
                .unwrap_or(Never)
        }
        _ => Never,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Making {
    /// What the bytecode is for.
    Own,
    /// What it may need.
    Often,
    /// Nothing of the kind.
    Never,
}

fn arithmetic(ir: Ir, own: &[Ir]) -> Making {
    if own.contains(&ir) {
        Making::Own
    } else if matches!(ir, Ir::SLOAD | Ir::CONV | Ir::STRTO) {
        Making::Often
    } else {
        Making::Never
    }
}

/// How well an instruction fits a bytecode. `is_native` tells whether the bytecode calls a library function: what
/// that is compiled to is not known.
pub fn affinity(bytecode: Op, is_native: bool, ir: Ir, ins: Ins) -> f32 {
    if is_native && !matches!(ir, Ir::RETF | Ir::ULOAD | Ir::UREFC | Ir::UREFO) {
        return 1.0;
    }
    match makes(bytecode, ir, ins) {
        Making::Own => 3.0,
        Making::Often => 1.0,
        // Coercions, FFI objects and the like may need anything.
        Making::Never => -3.0,
    }
}

/// What it costs if a bytecode has made nothing: it was known before, or is the same as something earlier.
pub fn absence(bytecode: Op) -> f32 {
    match bytecode {
        Op::MOV
        | Op::JMP
        | Op::KSTR
        | Op::KCDATA
        | Op::KSHORT
        | Op::KNUM
        | Op::KPRI
        | Op::KNIL
        | Op::LOOP
        | Op::RET
        | Op::RET0
        | Op::RET1
        | Op::RETM
        | Op::IST
        | Op::ISF
        | Op::ISTC
        | Op::ISFC
        | Op::NOT
        | Op::FUNCF
        | Op::FUNCV
        | Op::JFUNCF
        | Op::IFUNCF
        | Op::CALL
        | Op::CALLT
        | Op::UGET
        | Op::GGET => 0.0,
        Op::TSETV | Op::TSETS | Op::TSETB | Op::TSETR | Op::USETV | Op::USETN | Op::TNEW | Op::TDUP => 1.5,
        _ => 0.6,
    }
}
