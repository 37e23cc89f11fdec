//! Finds out which frames of an exit are already on the Lua stack: [`lj_snap_restore`] (`lj_snap.c`) writes them one by
//! one. Without GC64 it moves `L->base` along with them; with GC64 it moves `L->base` once, at the end.
//!
//! LuaJIT's sources: [`TValue`].
//!
//! [`lj_snap_restore`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_snap.c#L971-L1013
//! [`TValue`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_obj.h#L174-L213

use lj_trace_common::event::{FrameRecord, NO_POSITION, RecordKind};

use super::functions::Callee;
use super::stacks::NOWHERE;

/// A frame that is on the Lua stack after the trace was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitFrame {
    /// The function.
    pub callee: Callee,
    /// Index of the bytecode that it executes; in the innermost frame, of the next bytecode. [`NOWHERE`] if that is not known.
    pub position: u32,
    /// Index of its first slot; only the differences between frames count.
    pub base: usize,
}

/// Why the number of restored frames is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotKnown {
    /// The stack fits no number of frames.
    Nothing,
    /// Several numbers are possible: if a function calls itself, its frames may all look the same.
    Several,
}

/// How many of an exit's `frames`, from the outermost one inward, are on the Lua stack, whose `records` come innermost
/// first. Unless frames are `being_restored`, either only the outermost frame is there, in which the trace has run, or
/// all of them are.
///
/// # Errors
/// [`NotKnown`]
pub fn restored(frames: &[ExitFrame], records: &[FrameRecord], being_restored: bool) -> Result<usize, NotKnown> {
    let mut fitting = (1..=frames.len())
        .filter(|&count| being_restored || count == 1 || count == frames.len())
        .filter(|&count| fits(&frames[..count], records));
    let first = fitting.next().ok_or(NotKnown::Nothing)?;
    if fitting.next().is_some() { Err(NotKnown::Several) } else { Ok(first) }
}

/// The size of a slot of the Lua stack in bytes, in all builds (`TValue`, `lj_obj.h`).
const SLOT: u64 = 8;

/// Whether the innermost `records` are these frames.
fn fits(frames: &[ExitFrame], records: &[FrameRecord]) -> bool {
    let Some(outermost) = records.get(frames.len() - 1) else { return false };
    let alike = |(number, (frame, record)): (usize, (&ExitFrame, &FrameRecord))| {
        let distance = (frame.base.wrapping_sub(frames[0].base) as u64).wrapping_mul(SLOT);
        let is_innermost = number == 0;
        record.base.wrapping_sub(outermost.base) == distance
            && is_of(frame.callee, record)
            && (is_innermost
                || [record.position, frame.position].contains(&NO_POSITION)
                || record.position == frame.position)
    };
    const { assert!(NOWHERE == NO_POSITION) };
    frames.iter().rev().zip(records).enumerate().all(alike)
}

/// Whether a frame on the stack belongs to this function.
fn is_of(callee: Callee, record: &FrameRecord) -> bool {
    match callee {
        Callee::Lua { prototype, .. } => record.kind == RecordKind::Lua as u8 && record.code == prototype,
        Callee::Native { function, .. } => {
            (record.kind == RecordKind::Fast as u8 || record.kind == RecordKind::C as u8) && record.function == function
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(prototype: u64, position: u32, base: usize) -> ExitFrame {
        ExitFrame { callee: Callee::Lua { prototype, function: None }, position, base }
    }

    fn record(code: u64, position: u32, base: u64) -> FrameRecord {
        FrameRecord { code, position, base, kind: RecordKind::Lua as u8, ..FrameRecord::EMPTY }
    }

    #[test]
    fn frames_come_one_by_one() {
        // `outer` calls `middle`, which calls `inner`.
        let frames = [frame(1, 10, 2), frame(2, 20, 6), frame(3, 30, 9)];
        let stack = [record(3, 99, 0x1038), record(2, 20, 0x1020), record(1, 10, 0x1000), record(9, 5, 0xff0)];
        for count in 1..=3 {
            assert_eq!(restored(&frames, &stack[3 - count..], true), Ok(count));
        }
        assert_eq!(
            restored(&frames, &stack[1..], false),
            Err(NotKnown::Nothing),
            "not while the trace is still running"
        );
        assert_eq!(restored(&frames, &stack, false), Ok(3));
        assert_eq!(restored(&frames, &stack[3..], true), Err(NotKnown::Nothing));
        let elsewhere = [record(3, 99, 0x1040), record(2, 20, 0x1020), record(1, 10, 0x1000)];
        assert_eq!(restored(&frames, &elsewhere, true), Err(NotKnown::Nothing));
    }

    #[test]
    fn recursion_is_not_guessed() {
        let frames = [frame(1, 10, 2), frame(1, 10, 6), frame(1, 10, 10)];
        let deep = [record(1, 3, 0x1040), record(1, 10, 0x1020), record(1, 10, 0x1000), record(1, 10, 0xfe0)];
        assert_eq!(restored(&frames, &deep, true), Err(NotKnown::Several));
        assert_eq!(restored(&frames, &deep[..1], true), Ok(1), "below it is something else");
        // A call from elsewhere is no frame of the trace.
        let called = [record(1, 3, 0x1040), record(1, 11, 0x1020), record(1, 10, 0x1000)];
        assert_eq!(restored(&frames, &called, true), Ok(1));
    }
}
