//! Both ends of a deep stack. A sample has room for so many frames as are ever of use to anybody; of a stack that is
//! deeper, as recursion makes it, it keeps the innermost ones, which tell what was executed, and the outermost, which
//! tell what for, and counts those between.
//!
//! Frames link only from the inside out, so all of them are walked. The innermost take the first records as they come;
//! the rest go round in the others, so that the last ones of the walk are there at its end, whenever that is.

use crate::config::MAX_FRAMES;
use crate::event::FrameRecord;

/// The most outermost frames that are kept, a power of two.
pub const OUTERMOST: u32 = 256;

/// The most innermost frames that are kept.
pub const INNERMOST: u32 = MAX_FRAMES - OUTERMOST;

/// The most frames that are left out: a walk that comes to more ends there. Lua stacks have 65,500 slots
/// (`LUAI_MAXSTACK`, `luaconf.h`), of which a frame takes two and more, or one and more with 32-bit GC references.
pub const MAX_LEFT_OUT: u32 = 1 << 15;

/// The record for the next frame, if `kept` records are in use and `left_out` frames had one that others have taken.
#[inline(always)]
pub const fn place(kept: u32, left_out: u32) -> u32 {
    if kept < MAX_FRAMES { kept } else { INNERMOST + left_out % OUTERMOST }
}

/// Puts the records of a walk in order, innermost first, of which `left_out` have taken others' places. False if that
/// cannot be: only full samples leave frames out.
pub fn put_in_order(records: &mut [FrameRecord], left_out: u32) -> bool {
    if left_out == 0 {
        return true;
    }
    if records.len() != MAX_FRAMES as usize {
        return false;
    }
    records[INNERMOST as usize..].rotate_left((left_out % OUTERMOST) as usize);
    true
}
