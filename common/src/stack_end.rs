//! Where native stacks end, as unwinding has shown. Only the main thread's stack shows its own end. For any other stack
//! (of another thread, of a fiber), the memory above may be mapped, too. Without this knowledge a sample would copy all
//! of that memory.
//!
//! Stacks are identified by the pages that the stack pointer was in. The return address into the outermost frame shows
//! that such a stack still ends at the same place: it must be in the same slot as before.

use crate::config::MAX_STACK;

/// How many pages are remembered; the least recently used are forgotten.
pub const MAX_STACK_ENDS: u32 = 8192;

/// The end of the native stack that a page belongs to.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackEnd {
    /// Address of the slot with the return address into the outermost frame.
    pub slot: u64,
    /// That return address.
    pub return_address: u64,
    /// First address after everything that unwinding needs.
    pub end: u64,
}

impl StackEnd {
    /// The key of an end: the page of an address in the process with this number.
    #[inline(always)]
    pub const fn page(process: u32, address: u64) -> u64 {
        // An address has at most 57 bits.
        address >> 12 | (process as u64) << 48
    }

    /// How many bytes of the stack lie between `sp` and this end, a multiple of 8; 0 if this is not the end of a stack
    /// that begins at `sp`.
    #[inline(always)]
    pub const fn size_from(&self, sp: u64) -> u32 {
        let size = self.end.wrapping_sub(sp).wrapping_add(7) & !7;
        if sp <= self.slot && self.slot < self.end && size <= MAX_STACK as u64 { size as u32 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_lies_above_and_within_reach() {
        let end = StackEnd { slot: 0x2_0100, return_address: 0x5555, end: 0x2_0110 };
        assert_eq!(end.size_from(0x2_0000), 0x110);
        assert_eq!(end.size_from(0x2_0001), 0x110, "whole words");
        assert_eq!(end.size_from(0x2_0100), 0x10);
        assert_eq!(end.size_from(0x2_0108), 0, "the outermost frame is gone");
        assert_eq!(end.size_from(0x1_0110), MAX_STACK);
        assert_eq!(end.size_from(0x1_0100), 0, "too far away");
        assert_eq!(StackEnd::default().size_from(0x2_0000), 0);
        assert_eq!(StackEnd { end: 0x100, ..end }.size_from(0x2_0000), 0);
    }
}
