//! Reads from the interpreter's machine code how its stack frame is laid out.
//!
//! The frame has 208 bytes in all builds, laid out in three ways: [until September 2021], [until October 2021], and [since].
//! How it is entered tells which. From then on the frame pointer, which neither the interpreter nor traces use for anything
//! else, stays in place until the frame is left. The unwind table says so of the whole code, of the few instructions that enter
//! and leave the frame as well; here they are told apart.
//!
//! [until September 2021]: https://github.com/LuaJIT/LuaJIT/blob/28440544ba7fc494ecc822c37750991a101e41cd/src/vm_arm64.dasc#L82-L121
//! [until October 2021]: https://github.com/LuaJIT/LuaJIT/blob/421c4c798791d27b7f967df39891c4e4fa1d107c/src/vm_arm64.dasc#L82-L122
//! [since]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_arm64.dasc#L108-L168

use super::code::{
    RET, is_branch, is_call, is_hint, jump, leaves, load, moves_stack, stored_pair, stores_vectors, word,
};
use crate::registers::Register;
use crate::vm_frame::{BaseAfterCall, CodeFrame};

/// `CFRAME_SIZE`, in all builds.
pub const FRAME_SIZE: u64 = 208;

/// `sub sp, sp, #208` and `add sp, sp, #208`.
const MAKE: u32 = 0xd103_43ff;
const DROP: u32 = 0x9103_43ff;
/// `stp x29, x30, [sp, #192]`.
const SAVE_RECORD: u32 = 0xa90c_7bfd;
/// `stp x29, x30, [sp, #-208]!` and `ldp x29, x30, [sp], #208`.
const MAKE_OLD: u32 = 0xa9b3_7bfd;
const DROP_OLD: u32 = 0xa8cd_7bfd;
/// `mov x29, sp` and `add x29, sp, #192`.
const POINTER_AT_SP: u32 = 0x9100_03fd;
const POINTER_AT_RECORD: u32 = 0x9103_03fd;

/// Instructions that save registers, behind the one that sets the frame pointer: nine, and one that may begin something else.
const MAX_SAVES: u64 = 12;

/// Helpers are shorter.
const MAX_INSTRUCTIONS: usize = 64;

/// The ways in which the frame is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Era {
    /// Until September 2021: the frame record at the beginning, the registers behind it, `SAVE_L` behind these.
    RecordFirst,
    /// Until October 2021: as later, but the frame pointer has the frame's beginning, and not the record.
    PointerElsewhere,
    /// Since October 2021: the frame record at the end.
    RecordLast,
}

impl Era {
    /// How far the frame pointer is above the frame's beginning.
    pub const fn pointer(self) -> u64 {
        match self {
            Self::RecordFirst | Self::PointerElsewhere => 0,
            Self::RecordLast => 192,
        }
    }

    /// `CFRAME_OFS_L`.
    pub const fn offset_of_l(self) -> u64 {
        match self {
            Self::RecordFirst => 176,
            Self::PointerElsewhere | Self::RecordLast => 16,
        }
    }

    /// Where what the caller had is saved, the return address among it, counted from the CFA.
    pub fn saved(self) -> [(Register, i64); 12] {
        let record = match self {
            Self::RecordFirst => -208,
            Self::PointerElsewhere | Self::RecordLast => -16,
        };
        std::array::from_fn(|index| match index {
            0 => (Register::X29, record),
            1 => (Register::PC, record + 8),
            _ => {
                let number = index as i64 - 2;
                let at = if self == Self::RecordFirst { -192 + 8 * number } else { -24 - 8 * number };
                (Register::ALL[Register::X19 as usize + index - 2], at)
            }
        })
    }
}

/// Where the frame is at one instruction of the interpreter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// It is being entered or left: CFA = `sp` + `size`.
    Partial {
        /// Bytes of it that there are.
        size: u64,
        /// Whether the frame record is there, and the frame pointer not the caller's any more.
        has_record: bool,
        /// The registers from `x19` on that are saved; the others still (or again) have their values.
        saved: usize,
    },
    /// In a helper without a frame of its own, which the interpreter, traces and C functions call: it returns to `x30`.
    Helper,
    /// Anywhere else.
    Body,
}

/// A VM's machine code.
#[derive(Clone, Debug)]
pub struct VmText {
    start: u64,
    code: Vec<u8>,
    era: Option<Era>,
}

impl VmText {
    /// Takes in the code of an interpreter that begins at `start`.
    pub fn new(start: u64, code: Vec<u8>, cframe_size: u64) -> Self {
        let era = era(&code).filter(|_| cframe_size == FRAME_SIZE);
        Self { start, code, era }
    }

    /// How the frame is laid out; none if the code does not tell.
    pub const fn era(&self) -> Option<Era> {
        self.era
    }

    /// Whether the frame is being made or left at `pc`, an interrupted instruction.
    pub fn is_at_edge(&self, pc: u64) -> bool {
        matches!(self.position(pc, false), Position::Partial { .. })
    }

    /// Whether what was called from here can return to `address`: a call ends there, or that is not known.
    pub fn may_return_to(&self, address: u64) -> bool {
        self.word(address.wrapping_sub(4)).is_none_or(is_call)
    }

    /// Where the frame is at `pc`: the instruction that was interrupted or, if `is_return`, the address a C function will return
    /// to.
    pub fn position(&self, pc: u64, is_return: bool) -> Position {
        if is_return {
            return Position::Body;
        }
        self.edge(pc).unwrap_or_else(|| if self.returns(pc) { Position::Helper } else { Position::Body })
    }

    /// Where BASE (`x19`) is kept across the call that returns to `return_address`: calls preserve the register, and code that
    /// cannot rely on it loads it from `L->base`, whose offset is `l_base`.
    pub fn base_after_call(&self, return_address: u64, l_base: u64) -> BaseAfterCall {
        const BASE: u32 = Register::X19 as u32;
        let mut at = return_address;
        for _ in 0..MAX_INSTRUCTIONS {
            let Some(word) = self.word(at) else { break };
            match load(word) {
                Some((BASE, _, offset)) if offset == l_base => return BaseAfterCall::LuaState,
                // What is there is used.
                Some((_, BASE, _)) => return BaseAfterCall::Register(Register::X19),
                _ => {}
            }
            let stores_base = word & 0xffc0_0000 == 0xf900_0000 && u64::from(word >> 10 & 0xfff) * 8 == l_base;
            // Nearly all instructions have what they write there; stores and comparisons are none of these, and end it, too.
            if stores_base || word & 31 == BASE {
                break;
            }
            match jump(word) {
                Some(distance) => at = at.wrapping_add_signed(distance),
                None if leaves(word) && !is_call(word) => break,
                None => at = at.wrapping_add(4),
            }
        }
        BaseAfterCall::Unknown
    }

    /// The instruction at an address.
    fn word(&self, address: u64) -> Option<u32> {
        word(&self.code, usize::try_from(address.checked_sub(self.start)?).ok()?)
    }

    /// Where the frame is made or dropped.
    fn edge(&self, pc: u64) -> Option<Position> {
        let partial = |size, has_record, saved| Some(Position::Partial { size, has_record, saved });
        let before = self.word(pc.wrapping_sub(4));
        match self.word(pc)? {
            MAKE | MAKE_OLD => partial(0, false, 0),
            hint if is_hint(hint) && matches!(self.word(pc.wrapping_add(4)), Some(MAKE | MAKE_OLD)) => {
                partial(0, false, 0)
            }
            SAVE_RECORD if before == Some(MAKE) => partial(FRAME_SIZE, false, 0),
            POINTER_AT_SP | POINTER_AT_RECORD if matches!(before, Some(SAVE_RECORD | MAKE_OLD)) => {
                partial(FRAME_SIZE, true, 0)
            }
            DROP => partial(FRAME_SIZE, false, 0),
            RET if matches!(before, Some(DROP | DROP_OLD)) => partial(0, false, 0),
            _ => {
                let saved = self.saved_before(pc)?;
                (saved < 10).then_some(Position::Partial { size: FRAME_SIZE, has_record: true, saved })
            }
        }
    }

    /// How many of the registers from `x19` on are saved, if nothing but saving registers lies between `pc` and the
    /// instruction that sets the frame pointer.
    fn saved_before(&self, pc: u64) -> Option<usize> {
        let mut saved = 0;
        for back in 1..=MAX_SAVES {
            let word = self.word(pc.wrapping_sub(4 * back))?;
            match stored_pair(word) {
                Some((first, second, _)) if first.min(second) >= 19 && first.max(second) <= 28 => saved += 2,
                _ if stores_vectors(word) => {}
                _ => return matches!(word, POINTER_AT_SP | POINTER_AT_RECORD).then_some(saved),
            }
        }
        None
    }

    /// Whether the code at `pc` runs, past conditional branches, into a `ret` that is not that of a frame, and leaves the
    /// stack alone. The interpreter proper never returns: it jumps from bytecode to bytecode.
    fn returns(&self, pc: u64) -> bool {
        let mut at = pc;
        for _ in 0..MAX_INSTRUCTIONS {
            match self.word(at) {
                Some(RET) => return true,
                Some(word) if moves_stack(word) || leaves(word) => return false,
                Some(word) if is_branch(word) => at = at.wrapping_add(4),
                Some(word) => at = jump(word).map_or(at.wrapping_add(4), |distance| at.wrapping_add_signed(distance)),
                None => return false,
            }
        }
        false
    }
}

/// What an interpreter's code tells of its C frames, by how it makes them.
pub fn code_frame(code: &[u8]) -> Option<CodeFrame> {
    era(code).map(|era| CodeFrame { size: FRAME_SIZE, l: Some(era.offset_of_l()) })
}

/// The layout of the frames that an interpreter's code makes, if it makes frames, and all alike.
fn era(code: &[u8]) -> Option<Era> {
    let words: Vec<u32> = code.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
    let made = words.windows(3).filter_map(|words| match *words {
        [MAKE_OLD, POINTER_AT_SP, _] => Some(Era::RecordFirst),
        [MAKE, SAVE_RECORD, POINTER_AT_SP] => Some(Era::PointerElsewhere),
        [MAKE, SAVE_RECORD, POINTER_AT_RECORD] => Some(Era::RecordLast),
        _ => None,
    });
    let mut made = made;
    made.next().filter(|first| made.all(|other| other == *first))
}

#[cfg(test)]
mod tests;

#[cfg(test)]
pub mod testing;
