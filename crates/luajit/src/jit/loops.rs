//! The loops of a function: where root traces begin, what they record, and which bytecodes in them cannot be recorded.
//!
//! An abort records the number of its reason, not the bytecode. So this module shows facts about the code, not what was
//! reached: `FNEW` and `UCLO` cannot be recorded in any build, `CAT` and `TSETM` not in 2.0 ([`lj_record_ins`], `lj_record.c`).
//!
//! LuaJIT's sources: [`lj_record_ins` of 2.0].
//!
//! [`lj_record_ins`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_record.c#L2761-L2772
//! [`lj_record_ins` of 2.0]: https://github.com/LuaJIT/LuaJIT/blob/71797fa75ffa1ddbd9b41bbd55d6c2d4236164b0/src/lj_record.c#L2108-L2123

use std::ops::Range;

use lj_trace_common::layout::BytecodeSet;
use serde::Serialize;

use super::blacklist::BlacklistKind;
use crate::bytecode::{Instruction, Op};
use crate::prototype::Prototype;

/// The most bytecodes that are reported.
const MOST: usize = 8;

/// The most parts of a function: no real function has more, but hostile memory may.
const MOST_PARTS: usize = 1 << 14;

/// A bytecode that cannot be recorded.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Unrecordable {
    /// Its name.
    pub bytecode: &'static str,
    /// Its line.
    pub line: Option<u32>,
}

impl Unrecordable {
    /// What the bytecode does, in the words of a Lua programmer: `makes a closure`.
    pub fn describe(&self) -> &'static str {
        match self.bytecode {
            "FNEW" => "makes a closure",
            "UCLO" => "leaves a block whose variables closures have kept",
            "CAT" => "concatenates strings",
            _ => "fills a table with all results of a call",
        }
    }
}

/// The current state of the instruction at the beginning of a loop or function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartState {
    /// The instruction counts, and recording starts when it is hot.
    Counted,
    /// A trace has replaced the instruction.
    Compiled,
    /// The instruction does not count any more.
    Blacklisted,
}

/// A loop, or a whole function: code at which a root trace can begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodePart {
    /// The kind of code.
    pub kind: BlacklistKind,
    /// Index of the instruction at which recording begins.
    pub start: u32,
    /// Indices of its instructions.
    pub within: Range<u32>,
    /// The state of the instruction at `start`.
    pub state: PartState,
}

impl CodePart {
    fn of(prototype: &Prototype, start: u32, original: Instruction, set: BytecodeSet) -> Option<Self> {
        let now = prototype.instruction(start)?.opcode(set)?.op;
        let kind = match original.opcode(set)?.op {
            Op::FORL | Op::IFORL => BlacklistKind::NumericFor,
            Op::ITERL | Op::IITERL | Op::ITERN => BlacklistKind::IteratorFor,
            Op::LOOP | Op::ILOOP => BlacklistKind::Loop,
            Op::FUNCF | Op::IFUNCF => BlacklistKind::Function,
            _ => return None,
        };
        let state = match now {
            Op::IFORL | Op::IITERL | Op::ILOOP | Op::IFUNCF => PartState::Blacklisted,
            Op::JFORL | Op::JITERL | Op::JLOOP | Op::JFUNCF => PartState::Compiled,
            _ => PartState::Counted,
        };
        let mut within = part(prototype, start, original, set)?;
        // The condition of a `while` loop comes before it: the jump at the loop's end leads there.
        if kind == BlacklistKind::Loop
            && let Some(last) = within.end.checked_sub(1)
            && let Some(jump) = prototype.instruction(last)
            && jump.opcode(set).is_some_and(|opcode| opcode.op == Op::JMP)
            && let Some(first) = target(last, jump)
        {
            within.start = within.start.min(first);
        }
        Some(Self { kind, start, within, state })
    }
}

/// All loops of a function, and the function itself, the innermost first. `original` returns the instruction that a
/// trace has replaced.
pub fn parts(prototype: &Prototype, set: BytecodeSet, original: impl Fn(u32) -> Option<u32>) -> Vec<CodePart> {
    let mut parts: Vec<CodePart> = Vec::new();
    for (start, word) in (0..).zip(&prototype.bytecode) {
        let Some(opcode) = Instruction(*word).opcode(set) else { continue };
        let instruction = match opcode.op {
            Op::JFORL | Op::JITERL | Op::JLOOP | Op::JFUNCF => original(start).map(Instruction),
            _ => Some(Instruction(*word)),
        };
        let Some(part) = instruction.and_then(|original| CodePart::of(prototype, start, original, set)) else {
            continue;
        };
        // ITERN and the ITERL after it are one loop.
        let is_end_of_next = parts.last().is_some_and(|last| {
            last.kind == BlacklistKind::IteratorFor && last.start + 1 == start && last.within == part.within
        });
        if !is_end_of_next && parts.len() < MOST_PARTS {
            parts.push(part);
        }
    }
    parts.sort_by_key(|part| part.within.len());
    parts
}

/// The unrecordable bytecodes in the loop or function whose recording starts at `position`.
pub fn unrecordable(prototype: &Prototype, position: u32, set: BytecodeSet) -> Vec<Unrecordable> {
    let within = prototype.instruction(position).and_then(|own| part(prototype, position, own, set));
    let name = |position: u32| {
        Some(match prototype.instruction(position)?.opcode(set)?.op {
            Op::FNEW => "FNEW",
            Op::UCLO => "UCLO",
            Op::CAT if set == BytecodeSet::V20 => "CAT",
            Op::TSETM if set == BytecodeSet::V20 => "TSETM",
            _ => return None,
        })
    };
    let found = within.unwrap_or(position..position);
    let found = found.filter_map(|position| Some((name(position)?, prototype.line_at(position))));
    found.map(|(bytecode, line)| Unrecordable { bytecode, line }).take(MOST).collect()
}

/// The target of a jump. Jump distances count from the next instruction.
fn target(from: u32, jump: Instruction) -> Option<u32> {
    (i64::from(from) + 1 + i64::from(jump.d()) - 0x8000).try_into().ok()
}

/// The instructions of the loop or function that begins with `instruction` at `position`. `instruction` may be one that
/// a trace has replaced.
fn part(prototype: &Prototype, position: u32, instruction: Instruction, set: BytecodeSet) -> Option<Range<u32>> {
    let size = prototype.bytecode.len() as u32;
    let range = match instruction.opcode(set)?.op {
        Op::FORL | Op::IFORL | Op::ITERL | Op::IITERL => target(position, instruction)?..position + 1,
        Op::LOOP | Op::ILOOP => position..target(position, instruction)?,
        Op::ITERN => target(position + 1, prototype.instruction(position + 1)?)?..position + 2,
        Op::FUNCF | Op::IFUNCF => position..size,
        _ => return None,
    };
    (range.start < range.end && range.end <= size).then_some(range)
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

    #[test]
    fn loops_nest() {
        let set = BytecodeSet::V21;
        let ops = [
            (Op::FUNCF, 0),
            // for ... do while x do end end
            (Op::FORI, 6),
            (Op::ISF, 0),
            (Op::JMP, 3),
            (Op::JLOOP, 7),
            (Op::GGET, 0),
            (Op::JMP, -5),
            (Op::IFORL, -6),
            (Op::ITERN, 0),
            (Op::ITERL, -2),
        ];
        let all = prototype(ops.map(|(op, d)| code(set, op, d)).to_vec(), &[], &[], &[]);
        // The trace has replaced `LOOP => 0007`.
        let found = parts(&all, set, |_| Some(code(set, Op::LOOP, 2)));
        let found: Vec<_> = found.into_iter().map(|part| (part.kind, part.start, part.within, part.state)).collect();
        let expected = [
            (BlacklistKind::IteratorFor, 8, 8..10, PartState::Counted),
            (BlacklistKind::Loop, 4, 2..7, PartState::Compiled),
            (BlacklistKind::NumericFor, 7, 2..8, PartState::Blacklisted),
            (BlacklistKind::Function, 0, 0..10, PartState::Counted),
        ];
        assert_eq!(found, expected);
        assert_eq!(parts(&all, set, |_| None).len(), 3, "a trace that is not known");
    }

    #[test]
    fn jumps_to_nowhere_are_no_loops() {
        let set = BytecodeSet::V21;
        let ops = [(Op::FORL, -9), (Op::LOOP, 30_000), (Op::FORL, 5), (Op::ITERN, 0)];
        let all = prototype(ops.map(|(op, d)| code(set, op, d)).to_vec(), &[], &[], &[]);
        assert_eq!(parts(&all, set, |_| Some(u32::MAX)), []);
        let many = prototype(vec![code(set, Op::FORL, -1); 3 * MOST_PARTS], &[], &[], &[]);
        assert_eq!(parts(&many, set, |_| None).len(), MOST_PARTS);
    }
}
