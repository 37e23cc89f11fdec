//! Both ends of a deep stack. A sample has room for as many frames as are ever useful. Of a deeper stack, as recursion
//! makes it, a sample keeps the innermost frames, which show what was executed, and the outermost frames, which show on
//! whose behalf. It only counts the frames between.
//!
//! Frames link only from the inside out, so the walk visits all of them. The innermost frames take the first records in order.
//! The rest use the other records as a ring, so that the last frames of the walk are there at its end, whenever that is.

use crate::config::MAX_FRAMES;
use crate::event::FrameRecord;

/// The most outermost frames that are kept, a power of two.
pub const OUTERMOST: u32 = 256;

/// The most innermost frames that are kept.
pub const INNERMOST: u32 = MAX_FRAMES - OUTERMOST;

/// The most frames that are left out: a longer walk stops there. Lua stacks have 65,500 slots (`LUAI_MAXSTACK`,
/// `luaconf.h`), and a frame takes at least two of them, or at least one with 32-bit GC references.
pub const MAX_LEFT_OUT: u32 = 1 << 15;

/// Index of the record for the next frame, if `kept` records are in use and `left_out` frames had a record that was reused.
#[inline(always)]
pub const fn place(kept: u32, left_out: u32) -> u32 {
    if kept < MAX_FRAMES { kept } else { INNERMOST + left_out % OUTERMOST }
}

/// Puts the records of a walk in order, innermost first; `left_out` frames took the records of earlier ones. Returns
/// false if the numbers are impossible: only full samples leave frames out.
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
