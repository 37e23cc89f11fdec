//! What was read already for one sample. While a thread stands still, its functions do not change, and a stack shows the same
//! functions many times: in recursion, in the innermost frame, which is read several times, and in the many functions of one
//! file. Recursion also repeats the same calls. A read of the target's memory costs a hundred times as much as a lookup here.
//!
//! LuaJIT's sources: [`LJ_STACK_START`].
//!
//! [`LJ_STACK_START`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_state.c#L38

use crate::event::FrameRecord;
use crate::frame::Coroutine;
use crate::head::Head;
use crate::layout::VmLayout;
use crate::memory::{Pod, ReadMemory, Unreadable, clear};
use crate::string;

/// How many functions, strings and calls are remembered, each a power of two.
const FUNCTIONS: usize = 16;
const STRINGS: usize = 8;
const CALLS: usize = 16;

/// How many slots of a Lua stack are read at once, a power of two: no more than the smallest stack has
/// (`LJ_STACK_START`, `lj_state.c`).
const SLOTS: usize = 32;

/// The description of a function: the part of a [`FrameRecord`] that does not depend on the frame.
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

/// What was read for one sample. Each item has one possible entry; a later item replaces an earlier one there.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Memo {
    /// Addresses of the remembered functions, strings and calls; 0 for none.
    keys: Keys,
    functions: [MemoFunction; FUNCTIONS],
    identities: [u64; STRINGS],
    /// For each call, the slot that it put the function into.
    calls: [u64; CALLS],
    slots: Slots,
    /// Room to read the heads of objects: the stack of a BPF program is too small for it.
    pub head: Head,
}

/// A range of slots of a Lua stack that was read at once.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Slots {
    /// The lowest address of the stack: memory below it may be unreadable.
    stack: u64,
    /// Address of the first slot read.
    start: u64,
    words: [u64; SLOTS],
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Keys {
    functions: [u64; FUNCTIONS],
    strings: [u64; STRINGS],
    /// The return addresses of the calls.
    calls: [u64; CALLS],
}

// SAFETY: arrays of integers.
unsafe impl Pod for Keys {}

/// Index of the entry for the object at `address`: objects are at least 16 bytes long.
#[inline(always)]
const fn place(address: u64, places: usize) -> usize {
    (address >> 4 ^ address >> 9) as usize & (places - 1)
}

/// Index of the entry for a call that returns to `link`: instructions are 4 bytes long.
#[inline(always)]
const fn place_of_call(link: u64) -> usize {
    (link >> 2 ^ link >> 6) as usize & (CALLS - 1)
}

impl Memo {
    /// Forgets everything: later reads belong to another moment.
    #[inline(always)]
    pub fn forget(&mut self) {
        clear(&mut self.keys);
        self.slots.stack = 0;
    }

    /// Fills in the description of `function`, if it is known. Returns whether it is.
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

    /// Remembers the description of `function`.
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

    /// From now on, slots of this coroutine are read.
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
    /// [`Unreadable`] if they cannot be read.
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
        // Torn state: no frame can lie below its stack.
        if place > SLOTS - 2 { memory.read(first) } else { Ok([slots.words[place], slots.words[place + 1]]) }
    }

    /// The two words, if they were read before.
    #[inline(always)]
    pub fn known_words_below(&self, address: u64) -> Option<[u64; 2]> {
        let place = address.wrapping_sub(16).wrapping_sub(self.slots.start) / 8;
        if place > SLOTS as u64 - 2 {
            return None;
        }
        let place = place as usize & (SLOTS - 1);
        Some([self.slots.words[place], self.slots.words[(place + 1) & (SLOTS - 1)]])
    }

    /// The caller's slot into which the call before `link` has put the function: operand A of the call.
    ///
    /// # Errors
    /// [`Unreadable`] if the call cannot be read.
    #[inline(always)]
    pub fn slot_of_call(&mut self, memory: &impl ReadMemory, link: u64) -> Result<u64, Unreadable> {
        let place = place_of_call(link);
        if self.keys.calls[place] != link {
            self.calls[place] = u64::from(memory.read::<u32>(link.wrapping_sub(4))? >> 8 & 0xff);
            self.keys.calls[place] = link;
        }
        Ok(self.calls[place])
    }

    /// The slot, if the call was read before.
    #[inline(always)]
    pub fn known_slot_of_call(&self, link: u64) -> Option<u64> {
        let place = place_of_call(link);
        (self.keys.calls[place] == link).then_some(self.calls[place])
    }

    /// The [identity](string::identity) of a string.
    ///
    /// # Errors
    /// [`Unreadable`] if the string cannot be read.
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
    fn calls_are_read_once() {
        struct Calls(core::cell::Cell<u32>);
        impl ReadMemory for Calls {
            fn read<T: Pod>(&self, address: u64) -> Result<T, Unreadable> {
                self.0.set(self.0.get() + 1);
                let call = 0x42 | (address as u32 & 0xff) << 8;
                assert_eq!(size_of::<T>(), size_of_val(&call));
                // SAFETY: as many bytes as are there, and plain data takes any of them.
                Ok(unsafe { core::ptr::from_ref(&call).cast::<T>().read_unaligned() })
            }
        }
        let (calls, mut memo) = (Calls(core::cell::Cell::new(0)), Memo::default());
        for link in [0x1008, 0x1010, 0x1008, 0x1010, 0x1008] {
            assert_eq!(memo.slot_of_call(&calls, link), Ok((link - 4) & 0xff));
        }
        assert_eq!(calls.0.get(), 2);
        memo.forget();
        assert_eq!(memo.slot_of_call(&calls, 0x1008), Ok(4));
        assert_eq!(calls.0.get(), 3);
    }

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
