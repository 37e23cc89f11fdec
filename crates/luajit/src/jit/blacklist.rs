//! Loops and functions that the JIT compiler will not try again; their bytecode shows it.
//!
//! After the eleventh abort at a place, [`blacklist_pc`] (`lj_trace.c`) replaces its loop or function header with a
//! variant that does not count: `FORL` with `IFORL`, `ITERL` with `IITERL`, `LOOP` with `ILOOP`, `FUNCF` with `IFUNCF`.
//! The same happens, lazily, where compiling was turned off (`PROTO_NOJIT`, [`PROTO_*`] of `lj_obj.h`).
//!
//! [`blacklist_pc`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_trace.c#L379-L389
//! [`PROTO_*`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_obj.h#L398-L404

use lj_trace_common::layout::BytecodeSet;
use lj_trace_common::memory::ReadMemory;
use serde::Serialize;

use super::places::{CodePlaces, Place};
use crate::bytecode::{Instruction, Op};
use crate::prototype::{Prototype, PrototypeKey};

/// `PROTO_NOJIT`: the same in every build.
const NOJIT: u8 = 0x08;
/// `PROTO_ILOOP`: the same in every build.
const ILOOP: u8 = 0x10;

/// Whether compiling is turned off for a function.
pub(super) fn is_turned_off(prototype: &Prototype) -> bool {
    prototype.flags & NOJIT != 0
}

/// A kind of code that the JIT compiler has given up on, or could.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum BlacklistKind {
    /// A numeric `for` loop (`IFORL`).
    NumericFor,
    /// A `for` loop with an iterator (`IITERL`).
    IteratorFor,
    /// A `while` or `repeat` loop (`ILOOP`).
    Loop,
    /// A function (`IFUNCF`).
    Function,
}

impl BlacklistKind {
    fn of(op: Op) -> Option<Self> {
        Some(match op {
            Op::IFORL => Self::NumericFor,
            Op::IITERL => Self::IteratorFor,
            Op::ILOOP => Self::Loop,
            Op::IFUNCF => Self::Function,
            _ => return None,
        })
    }

    /// The kind in words.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::NumericFor => "numeric for loop",
            Self::IteratorFor => "for loop with an iterator",
            Self::Loop => "while or repeat loop",
            Self::Function => "function",
        }
    }

    /// The bytecode of blacklisted code of this kind.
    pub const fn bytecode(self) -> &'static str {
        match self {
            Self::NumericFor => "IFORL",
            Self::IteratorFor => "IITERL",
            Self::Loop => "ILOOP",
            Self::Function => "IFUNCF",
        }
    }
}

/// A loop or function that stays in the interpreter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Blacklisted {
    /// The kind of code.
    pub kind: BlacklistKind,
    /// The name of its bytecode: `ILOOP`.
    pub bytecode: &'static str,
    /// Where it begins.
    pub place: Place,
    /// Address of the instruction.
    #[serde(serialize_with = "crate::status::hexadecimal")]
    pub pc: u64,
}

/// What the bytecode of all functions shows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Blacklist {
    /// Loops and functions that were given up after too many aborts.
    pub blacklisted: Vec<Blacklisted>,
    /// Functions for which compiling was turned off: `jit.off(f)`.
    pub turned_off: Vec<Place>,
}

/// Prototypes whose flags say that they may have blacklisted code, or are turned off.
#[derive(Default)]
pub struct Suspects(Vec<PrototypeKey>);

impl Suspects {
    /// Notes `prototype` if its flags say so.
    pub fn see(&mut self, prototype: &Prototype) {
        if prototype.flags & (NOJIT | ILOOP) != 0 {
            self.0.push(prototype.key);
        }
    }

    /// Reads these prototypes again, and returns their current state: `jit.on(f)` undoes all of it.
    pub fn look<M: ReadMemory>(&self, memory: &M, places: &CodePlaces<'_, M>, set: BytecodeSet) -> Blacklist {
        let mut found = Blacklist::default();
        for key in &self.0 {
            let Some((prototype, _)) = places.instruction(places.address(key, 0)) else { continue };
            if is_turned_off(&prototype) {
                found.turned_off.push(places.of(&prototype, 0));
                continue;
            }
            for (position, kind) in given_up(&prototype, set) {
                let pc = places.address(key, position);
                // The VM writes this byte at once: if it is still the same, the reading was not torn.
                let now = memory.read(pc).ok().and_then(|word| Instruction(word).opcode(set));
                if now.and_then(|now| BlacklistKind::of(now.op)) == Some(kind) {
                    let place = places.of(&prototype, position);
                    found.blacklisted.push(Blacklisted { kind, bytecode: kind.bytecode(), place, pc });
                }
            }
        }
        found
    }
}

fn given_up(prototype: &Prototype, set: BytecodeSet) -> Vec<(u32, BlacklistKind)> {
    let kind = |word: &u32| BlacklistKind::of(Instruction(*word).opcode(set)?.op);
    let all = (0..).zip(&prototype.bytecode);
    all.filter_map(|(position, word)| Some((position, kind(word)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytecode::opcodes;
    use crate::prototype::tests::prototype;

    #[test]
    fn finds_all_kinds_in_every_numbering() {
        for set in [BytecodeSet::V20, BytecodeSet::V21, BytecodeSet::V21Jul2026] {
            let number = |op: Op| opcodes(set).position(|opcode| opcode.op == op).unwrap() as u32;
            let code = [Op::IFUNCF, Op::FORL, Op::IFORL, Op::IITERL, Op::JLOOP, Op::ILOOP, Op::IFUNCV].map(number);
            let found = given_up(&prototype(code.to_vec(), &[], &[], &[]), set);
            let kinds = [
                (0, BlacklistKind::Function),
                (2, BlacklistKind::NumericFor),
                (3, BlacklistKind::IteratorFor),
                (5, BlacklistKind::Loop),
            ];
            assert_eq!(found, kinds);
        }
    }
}
