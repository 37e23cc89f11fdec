//! What was read for one sample already. While a thread stands still its functions stay what they are, and stacks show
//! the same ones again: in recursion, at the innermost frame, which is looked at several times, and in the many
//! functions of one file. A read of the target's memory costs a hundred times what a look here does.

use crate::event::FrameRecord;
use crate::frame::Coroutine;
use crate::head::Head;
use crate::layout::VmLayout;
use crate::memory::{Plain, ReadMemory, Unreadable, clear};
use crate::string;

/// How many functions and how many strings are remembered, powers of two.
const FUNCTIONS: usize = 16;
const STRINGS: usize = 8;

/// How many slots of a Lua stack are read at once, a power of two: no more than the smallest stack has
/// (`LJ_STACK_START`, `lj_state.c`).
const SLOTS: usize = 32;

/// What a function is: the part of a [`FrameRecord`] that does not depend on the frame.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoFunction {
    /// [`FrameRecord::code`].
    pub code: u64,
    /// [`FrameRecord::chunkname`].
    pub chunkname: u64,
    /// [`FrameRecord::first_line`].
    pub first_line: u32,
    /// [`FrameRecord::size_bc`].
    pub size_bc: u32,
    /// [`FrameRecord::ffid`].
    pub ffid: u64,
}

/// What was read for one sample: each thing has one place, which the last one of that place takes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Memo {
    /// Their addresses, 0 for none.
    keys: Keys,
    functions: [MemoFunction; FUNCTIONS],
    identities: [u64; STRINGS],
    slots: Slots,
    /// To read the heads of objects into: the stack of a BPF program has little room.
    pub head: Head,
}

/// Slots of a Lua stack that were read at once.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Slots {
    /// The lowest address of the stack: below there may be nothing to read.
    stack: u64,
    /// The address of the first one.
    start: u64,
    words: [u64; SLOTS],
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Keys {
    functions: [u64; FUNCTIONS],
    strings: [u64; STRINGS],
}

// SAFETY: arrays of integers.
unsafe impl Plain for Keys {}

/// The place of what is at `address`: objects are 16 bytes and more.
#[inline(always)]
const fn place(address: u64, places: usize) -> usize {
    (address >> 4 ^ address >> 9) as usize & (places - 1)
}

impl Memo {
    /// Forgets everything: what is seen next belongs to another moment.
    #[inline(always)]
    pub fn forget(&mut self) {
        clear(&mut self.keys);
        self.slots.stack = 0;
    }

    /// Fills in what `function` is, if it is known.
    #[inline(always)]
    pub fn fill(&self, function: u64, record: &mut FrameRecord) -> bool {
        let place = place(function, FUNCTIONS);
        if function == 0 || self.keys.functions[place] != function {
            return false;
        }
        let seen = &self.functions[place];
        record.code = seen.code;
        record.chunkname = seen.chunkname;
        record.first_line = seen.first_line;
        record.size_bc = seen.size_bc;
        record.ffid = seen.ffid as u8;
        true
    }

    /// Remembers what `function` is.
    #[inline(always)]
    pub fn note(&mut self, function: u64, record: &FrameRecord) {
        let place = place(function, FUNCTIONS);
        let seen = &mut self.functions[place];
        seen.code = record.code;
        seen.chunkname = record.chunkname;
        seen.first_line = record.first_line;
        seen.size_bc = record.size_bc;
        seen.ffid = u64::from(record.ffid);
        self.keys.functions[place] = function;
    }

    /// The slots of this coroutine come next.
    #[inline(always)]
    pub fn look_at(&mut self, coroutine: &Coroutine) {
        if self.slots.stack != coroutine.stack {
            self.slots.stack = coroutine.stack;
            self.slots.start = u64::MAX;
        }
    }

    /// The two words below `address` on the Lua stack.
    ///
    /// # Errors
    /// [`Unreadable`] if they are not there.
    #[inline(always)]
    pub fn two_words_below(&mut self, memory: &impl ReadMemory, address: u64) -> Result<[u64; 2], Unreadable> {
        let first = address.wrapping_sub(16);
        let slots = &mut self.slots;
        if first.wrapping_sub(slots.start) > (SLOTS as u64 - 2) * 8 {
            let lowest = address.wrapping_sub(SLOTS as u64 * 8);
            slots.start = if lowest < slots.stack { slots.stack } else { lowest };
            if memory.read_over(slots.start, &mut slots.words).is_err() {
                slots.start = u64::MAX;
                return memory.read(first);
            }
        }
        let place = (first.wrapping_sub(slots.start) / 8) as usize;
        // Torn state: no frame lies below its stack.
        if place > SLOTS - 2 { memory.read(first) } else { Ok([slots.words[place], slots.words[place + 1]]) }
    }

    /// The [identity](string::identity) of a string.
    ///
    /// # Errors
    /// [`Unreadable`] if it is not there.
    #[inline(always)]
    pub fn identity(&mut self, memory: &impl ReadMemory, layout: &VmLayout, string: u64) -> Result<u64, Unreadable> {
        let place = place(string, STRINGS);
        if string == 0 || self.keys.strings[place] != string {
            self.identities[place] = string::identity(memory, layout, string)?;
            self.keys.strings[place] = string;
        }
        Ok(self.identities[place])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_remembered_until_another_takes_their_place() {
        let mut memo = Memo::default();
        let record = FrameRecord { code: 5, chunkname: 6, first_line: 7, size_bc: 8, ffid: 1, ..FrameRecord::EMPTY };
        let mut filled = FrameRecord::EMPTY;
        assert!(!memo.fill(0x1000, &mut filled));
        memo.note(0x1000, &record);
        assert!(memo.fill(0x1000, &mut filled));
        assert_eq!(filled, record);
        let rival = (0x1010..).step_by(16).find(|&other| place(other, FUNCTIONS) == place(0x1000, FUNCTIONS)).unwrap();
        assert!(!memo.fill(rival, &mut filled));
        memo.note(rival, &FrameRecord::EMPTY);
        assert!(!memo.fill(0x1000, &mut filled));
        memo.forget();
        assert!(!memo.fill(rival, &mut filled));
    }
}
