//! The part of a function that a root trace records, and the bytecodes in it that cannot be recorded.
//!
//! An abort leaves its number behind, not the bytecode. These are therefore facts about the code, not what was reached:
//! `FNEW` and `UCLO` cannot be recorded in any build, `CAT` and `TSETM` not in 2.0 ([`lj_record_ins`], `lj_record.c`).
//!
//! LuaJIT's sources: [`lj_record_ins` of 2.0].
//!
//! [`lj_record_ins`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_record.c#L2761-L2772
//! [`lj_record_ins` of 2.0]: https://github.com/LuaJIT/LuaJIT/blob/71797fa75ffa1ddbd9b41bbd55d6c2d4236164b0/src/lj_record.c#L2108-L2123

use std::ops::Range;

use lj_trace_common::layout::BytecodeSet;
use serde::Serialize;

use crate::bytecode::{Instruction, Op};
use crate::prototype::Prototype;

/// More are not told of.
const MOST: usize = 8;

/// A bytecode that cannot be recorded.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Unrecordable {
    /// Its name.
    pub bytecode: &'static str,
    /// Its line.
    pub line: Option<u32>,
}

/// Those in the loop or function whose recording starts at `position`.
pub fn unrecordable(prototype: &Prototype, position: u32, set: BytecodeSet) -> Vec<Unrecordable> {
    let within = part(prototype, position, set).unwrap_or(position..position);
    let name = |position: u32| {
        Some(match prototype.instruction(position)?.opcode(set)?.op {
            Op::FNEW => "FNEW",
            Op::UCLO => "UCLO",
            Op::CAT if set == BytecodeSet::V20 => "CAT",
            Op::TSETM if set == BytecodeSet::V20 => "TSETM",
            _ => return None,
        })
    };
    let found = within.filter_map(|position| Some((name(position)?, prototype.line_at(position))));
    found.map(|(bytecode, line)| Unrecordable { bytecode, line }).take(MOST).collect()
}

/// The instructions of that loop or function.
fn part(prototype: &Prototype, position: u32, set: BytecodeSet) -> Option<Range<u32>> {
    let instruction = prototype.instruction(position)?;
    // Jumps count from the next instruction.
    let target = |from: u32, jump: Instruction| (i64::from(from) + 1 + i64::from(jump.d()) - 0x8000).try_into().ok();
    match instruction.opcode(set)?.op {
        Op::FORL | Op::IFORL | Op::ITERL | Op::IITERL => Some(target(position, instruction)?..position + 1),
        Op::LOOP | Op::ILOOP => Some(position..target(position, instruction)?),
        Op::ITERN => Some(target(position + 1, prototype.instruction(position + 1)?)?..position + 2),
        Op::FUNCF | Op::IFUNCF => Some(position..prototype.bytecode.len() as u32),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytecode::opcodes;
    use crate::prototype::tests::prototype;

    fn code(set: BytecodeSet, op: Op, d: i32) -> u32 {
        let number = opcodes(set).position(|opcode| opcode.op == op).unwrap() as u32;
        number | ((d + 0x8000) as u32) << 16
    }

    #[test]
    fn only_the_loop_is_looked_at() {
        for set in [BytecodeSet::V20, BytecodeSet::V21] {
            let ops = [
                (Op::FUNCF, 0),
                (Op::FNEW, 0),
                (Op::FORI, 2),
                (Op::UCLO, 0),
                (Op::CAT, 0),
                (Op::FORL, -3),
                (Op::FNEW, 0),
            ];
            let all = prototype(ops.map(|(op, d)| code(set, op, d)).to_vec(), &[], &[], &[]);
            let names =
                |position| unrecordable(&all, position, set).iter().map(|found| found.bytecode).collect::<Vec<_>>();
            let of_loop: &[_] = if set == BytecodeSet::V20 { &["UCLO", "CAT"] } else { &["UCLO"] };
            assert_eq!(names(5), of_loop);
            assert_eq!(names(0).len(), of_loop.len() + 2);
            assert_eq!(names(3), [""; 0]);
        }
    }
}
