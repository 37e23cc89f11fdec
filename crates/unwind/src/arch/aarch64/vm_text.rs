//! Reads from the interpreter's machine code how its stack frame is laid out.
//!
//! The frame has 208 bytes in all builds, laid out in three ways: [until September 2021], [until October 2021], and [since].
//! The code that enters the frame shows which one. From then on the frame pointer, which neither the interpreter nor traces use
//! for anything else, stays in place until the frame is left. The unwind table describes the whole code as if this were true
//! everywhere, even for the few instructions that enter and leave the frame; this module handles those.
//!
//! [until September 2021]: https://github.com/LuaJIT/LuaJIT/blob/28440544ba7fc494ecc822c37750991a101e41cd/src/vm_arm64.dasc#L82-L121
//! [until October 2021]: https://github.com/LuaJIT/LuaJIT/blob/421c4c798791d27b7f967df39891c4e4fa1d107c/src/vm_arm64.dasc#L82-L122
//! [since]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_arm64.dasc#L108-L168

use std::collections::HashSet;

use crate::arch::a64::{
    RET, adds_to, branch, is_branch, is_call, is_hint, jump, leaves, load_of, moves_stack, restores_pair, stored_pair,
    stores_field, stores_vectors, uses_as_address, word, writes,
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

/// `str x23, [x22, #offset]`, without the bits of the offset: the coroutine, as a field of the `global_State`.
const SET_COROUTINE: u32 = 0xf900_02d7;

/// The most instructions that save registers after the one that sets the frame pointer: nine, and one that may begin
/// something else.
const MAX_SAVES: u64 = 12;

/// The most instructions of a helper.
const MAX_INSTRUCTIONS: usize = 64;

/// The most instructions between a store to `L->base` and the call that needs it: ten in fact.
const MAX_BEFORE_CALL: usize = 24;

/// BASE and the stack pointer, by number.
const BASE: u32 = Register::X19 as u32;
const SP: u32 = Register::Sp as u32;

/// `mov x19, x0`.
const SET_BASE_TO_RESULT: u32 = 0xaa00_03f3;
/// `ldr w16, [x21], #4` fetches the next bytecode.
const FETCH: u32 = 0xb840_46b0;
/// `br xN`, without the bits of N.
const JUMP_TO: u32 = 0xd61f_0000;

/// The layouts of the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Era {
    /// Until September 2021: first the frame record, then the registers, then `SAVE_L`.
    RecordFirst,
    /// Until October 2021: as later, but the frame pointer points to the frame's beginning, and not to the record.
    PointerElsewhere,
    /// Since October 2021: the frame record at the end.
    RecordLast,
}

impl Era {
    /// Distance from the frame's beginning up to the frame pointer.
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

    /// Offsets from the CFA of the caller's saved registers, with the return address.
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

/// The state of the frame at one instruction of the interpreter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// The frame is being entered or left: CFA = `sp` + `size`.
    Partial {
        /// Bytes of the frame that exist.
        size: u64,
        /// Whether the frame record is stored, and the frame pointer no longer the caller's.
        has_record: bool,
        /// How many registers from `x19` on are saved; the others still (or again) have the caller's values.
        saved: usize,
    },
    /// In a helper without a frame of its own; the interpreter, traces and C functions call it. It returns to `x30`.
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
    /// The addresses that branches lead to, in order.
    targets: Vec<u64>,
    /// The addresses of straight-line code after a prologue, where the frame may not be linked yet, and those of the
    /// instructions that restore registers before an epilogue, where it no longer is.
    made: HashSet<u64>,
}

impl VmText {
    /// Analyzes the code of an interpreter that begins at `start`.
    pub fn new(start: u64, code: Vec<u8>, cframe_size: u64) -> Self {
        let era = era(&code).filter(|_| cframe_size == FRAME_SIZE);
        let words = code.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes));
        let targets = words.zip((start..).step_by(4)).filter_map(|(word, at)| {
            let distance = jump(word).or_else(|| branch(word))?;
            Some(at.wrapping_add_signed(distance))
        });
        let mut targets: Vec<u64> = targets.collect();
        targets.sort_unstable();
        let mut text = Self { start, code, era, targets, made: HashSet::new() };
        text.made = text.after_prologues();
        text.made.extend(text.before_epilogues());
        text
    }

    /// The addresses of straight-line code after the instructions that make a frame.
    fn after_prologues(&self) -> HashSet<u64> {
        let is_made = |&at: &u64| {
            matches!(self.word(at), Some(POINTER_AT_SP | POINTER_AT_RECORD))
                && matches!(self.word(at.wrapping_sub(4)), Some(SAVE_RECORD | MAKE_OLD))
        };
        let end = self.start.saturating_add(self.code.len() as u64);
        let mut found = HashSet::new();
        for prologue in (self.start..end).step_by(4).filter(is_made) {
            let mut at = prologue.wrapping_add(4);
            for _ in 0..MAX_INSTRUCTIONS {
                let Some(word) = self.word(at) else { break };
                found.insert(at);
                match jump(word) {
                    Some(distance) => at = at.wrapping_add_signed(distance),
                    None if is_branch(word) => {
                        found.extend(self.before_coroutine_is_set(at.wrapping_add(4)));
                        break;
                    }
                    None if leaves(word) => break,
                    None => at = at.wrapping_add(4),
                }
            }
        }
        found
    }

    /// The instruction at `at`, if it is the one that makes a coroutine the running one (`vm_resume`), and is reached only
    /// from the one before.
    fn before_coroutine_is_set(&self, at: u64) -> Option<u64> {
        let sets = self.word(at).is_some_and(|word| word & 0xffc0_03ff == SET_COROUTINE);
        (sets && self.targets.binary_search(&at).is_err()).then_some(at)
    }

    /// The addresses of the instructions that restore registers right before a frame is dropped.
    fn before_epilogues(&self) -> HashSet<u64> {
        let end = self.start.saturating_add(self.code.len() as u64);
        let drops = (self.start..end).step_by(4).filter(|&at| matches!(self.word(at), Some(DROP | DROP_OLD)));
        let restores = |&at: &u64| self.word(at).is_some_and(restores_pair);
        drops
            .flat_map(|drop| (1..=MAX_SAVES).map(move |back| drop.wrapping_sub(4 * back)).take_while(restores))
            .collect()
    }

    /// The layout of the frame; [`None`] if the code does not show it.
    pub const fn era(&self) -> Option<Era> {
        self.era
    }

    /// Whether the frame is being entered or left at `pc`, an interrupted instruction.
    pub fn is_at_edge(&self, pc: u64) -> bool {
        matches!(self.position(pc, false), Position::Partial { .. }) || self.made.contains(&pc)
    }

    /// Whether a call can return to `address`: a call instruction ends there, or that is not known.
    pub fn may_return_to(&self, address: u64) -> bool {
        self.word(address.wrapping_sub(4)).is_none_or(is_call)
    }

    /// The state of the frame at `pc`: the instruction that was interrupted or, if `is_return`, the address that a C
    /// function will return to.
    pub fn position(&self, pc: u64, is_return: bool) -> Position {
        if is_return {
            return Position::Body;
        }
        self.edge(pc).unwrap_or_else(|| if self.returns(pc) { Position::Helper } else { Position::Body })
    }

    /// Where BASE is kept across the call that returns to `return_address`; unknown at any other address.
    ///
    /// If the code before the call stores to `L->base`, whose offset is `l_base`, the called function uses that: it is
    /// the BASE that counts, and the register may have that of a frame that is being made (`vmeta_call`). Otherwise BASE is
    /// in `x19`, which calls preserve, if the code after the call relies on it: it uses the register, or it goes on to
    /// the next bytecode. Code that cannot rely on it loads it from `L->base`. [`vm_cpcall`] does not need it: it calls for C
    /// code, and takes BASE from what the function returns.
    ///
    /// [`vm_cpcall`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_arm64.dasc#L590-L611
    pub fn base_after_call(&self, return_address: u64, l_base: u64) -> BaseAfterCall {
        let call = return_address.wrapping_sub(4);
        if !self.word(call).is_some_and(is_call) {
            return BaseAfterCall::Unknown;
        }
        if self.word(return_address) == Some(SET_BASE_TO_RESULT) || self.stores_base_before(call, l_base) {
            return BaseAfterCall::LuaState;
        }
        let (mut at, mut fetched) = (return_address, false);
        for _ in 0..MAX_INSTRUCTIONS {
            let Some(word) = self.word(at) else { break };
            if load_of(word, BASE).is_some_and(|(base, offset)| base != SP && offset == l_base) {
                return BaseAfterCall::LuaState;
            }
            // Of what may be an operand, nothing is ruled out before it is certain that BASE is still there.
            if uses_as_address(word, BASE) || adds_to(word, BASE) {
                return BaseAfterCall::Register(Register::X19);
            }
            if writes(word, BASE) || stores_field(word, l_base) {
                break;
            }
            fetched |= word == FETCH;
            match jump(word) {
                Some(distance) => at = at.wrapping_add_signed(distance),
                // The next bytecode finds BASE in its register.
                None if fetched && word & 0xffff_fc1f == JUMP_TO => return BaseAfterCall::Register(Register::X19),
                None if leaves(word) && !is_call(word) => break,
                None => at = at.wrapping_add(4),
            }
        }
        BaseAfterCall::Unknown
    }

    /// Whether straight-line code that ends with the call at `call` stores to `L->base`.
    fn stores_base_before(&self, call: u64, l_base: u64) -> bool {
        let mut at = call;
        for _ in 0..MAX_BEFORE_CALL {
            // Another way may lead to here, without the store.
            if self.targets.binary_search(&at).is_ok() {
                return false;
            }
            at = at.wrapping_sub(4);
            match self.word(at) {
                Some(word) if stores_field(word, l_base) => return true,
                Some(word) if leaves(word) || jump(word).is_some() => return false,
                Some(_) => {}
                None => return false,
            }
        }
        false
    }

    /// The instruction at an address.
    fn word(&self, address: u64) -> Option<u32> {
        word(&self.code, usize::try_from(address.checked_sub(self.start)?).ok()?)
    }

    /// The state of the frame where it is made or dropped.
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

    /// How many registers from `x19` on are saved, if only instructions that save registers lie between the instruction
    /// that sets the frame pointer and `pc`.
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

    /// Whether the code at `pc` runs, past conditional branches, into a `ret` that drops no frame, and leaves the stack
    /// alone. The interpreter proper never returns: it jumps from bytecode to bytecode.
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

/// The shape of the C frames, from the code that makes them.
pub fn code_frame(code: &[u8]) -> Option<CodeFrame> {
    era(code).map(|era| CodeFrame { size: FRAME_SIZE, l: Some(era.offset_of_l()) })
}

/// The layout of the frames that an interpreter's code makes, if it makes any, and all in the same way.
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
