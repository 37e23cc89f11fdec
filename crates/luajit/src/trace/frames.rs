//! The frames of a snapshot: the functions inlined at that exit of the trace (after [`lj_snap_restore`] and
//! [`snapshot_framelinks`], `lj_snap.c`).
//!
//! LuaJIT's sources: [`SNAP_FRAME`].
//!
//! [`lj_snap_restore`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_snap.c#L940-L1029
//! [`snapshot_framelinks`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_snap.c#L110-L158
//! [`SNAP_FRAME`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_jit.h#L195-L196

use lj_trace_common::layout::VmLayout;
use lj_trace_common::memory::ReadMemory;

use super::body::TraceBody;
use super::functions::{Callee, TraceFunctions};
use super::ir::BIAS;

/// A frame that a snapshot describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotFrame {
    /// The function, if it is a constant of the trace or known from its PC.
    pub callee: Option<Callee>,
    /// Address after the bytecode that it executes (in the innermost frame, of the next bytecode); 0 in fast functions.
    pub pc: u64,
    /// Index of its first slot, in the numbering of the snapshot's entries.
    pub base: usize,
}

/// The frames of a snapshot cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the snapshot's frame links lead nowhere")]
pub struct BadLinks;

/// Flags of a snapshot's entry (`SNAP_FRAME`, `SNAP_CONT`, `lj_jit.h`).
const FRAME: u32 = 0x1_0000;
const CONT: u32 = 0x2_0000;

/// A snapshot has at most this many slots (`LJ_MAX_JSLOTS`).
const MAX_FRAMES: usize = 256;

/// The frames of snapshot `index` of a trace, innermost first; the last one is the frame in which the trace runs.
///
/// It reads the calls that the frames return to from `memory`.
///
/// # Errors
/// [`BadLinks`] if the snapshot does not describe frames: then the data do not belong to a trace.
pub fn snapshot_frames<M: ReadMemory>(
    memory: &M,
    layout: &VmLayout,
    body: &TraceBody,
    functions: &TraceFunctions,
    index: usize,
) -> Result<Vec<SnapshotFrame>, BadLinks> {
    let (entries, tail) = body.snapshot_words(index).ok_or(BadLinks)?;
    let slots = Slots { body, entries };
    if layout.is_gc64() { wide(memory, functions, &slots, tail) } else { narrow(memory, functions, &slots, tail) }
}

/// The entries of one snapshot.
struct Slots<'a> {
    body: &'a TraceBody,
    entries: &'a [u32],
}

impl Slots<'_> {
    fn entry(&self, slot: usize) -> Option<u32> {
        self.entries.iter().copied().find(|entry| (entry >> 24) as usize == slot)
    }

    /// Reference of the constant in a slot.
    fn constant(&self, slot: usize) -> Option<u16> {
        self.entry(slot).map(|entry| entry as u16).filter(|at| *at < BIAS)
    }

    /// The 64-bit constant in a slot.
    fn number(&self, slot: usize) -> Result<u64, BadLinks> {
        self.constant(slot).map(|at| self.body.code.word(at + 1)).ok_or(BadLinks)
    }

    fn function(&self, functions: &TraceFunctions, slot: usize) -> Option<Callee> {
        functions.function(self.constant(slot)?)
    }
}

/// How far the called function is above the caller's base, in slots: operand A of the call that returns to `pc`.
fn call_slot<M: ReadMemory>(memory: &M, pc: u64) -> Result<usize, BadLinks> {
    let call: u32 = memory.read(pc.wrapping_sub(4)).map_err(|_| BadLinks)?;
    Ok((call >> 8 & 0xff) as usize)
}

/// Frames of two slots (`LJ_FR2`): the function, and the link, which is a constant.
fn wide<M: ReadMemory>(
    memory: &M,
    functions: &TraceFunctions,
    slots: &Slots<'_>,
    tail: &[u32],
) -> Result<Vec<SnapshotFrame>, BadLinks> {
    let [low, high, ..] = *tail else { return Err(BadLinks) };
    // `pc << 8 | baseslot - 2`.
    let packed = u64::from(low) | u64::from(high) << 32;
    let mut base = (packed & 0xff) as usize + 2;
    let mut pc = packed >> 8;
    let mut frames = Vec::new();
    let mut is_upper_half = false;
    while frames.len() < MAX_FRAMES {
        let link_slot = base - 1;
        if !is_upper_half {
            let callee = slots.function(functions, link_slot - 1).or_else(|| functions.owner(pc));
            frames.push(SnapshotFrame { callee, pc, base });
        }
        is_upper_half = false;
        if link_slot == 1 {
            return Ok(frames);
        }
        let link = slots.number(link_slot)?;
        let delta = if link & 3 == 0 {
            pc = link;
            2 + call_slot(memory, link)?
        } else {
            match link & 7 {
                2 => pc = slots.number(link_slot.checked_sub(2).ok_or(BadLinks)?)?,
                3 => is_upper_half = true,
                _ => pc = 0,
            }
            (link >> 3) as usize
        };
        base = base.checked_sub(delta).filter(|base| *base >= 2).ok_or(BadLinks)?;
        // Of the two halves of a frame, only one counts, so a half that links to itself would never end.
        if delta == 0 {
            return Err(BadLinks);
        }
    }
    Err(BadLinks)
}

/// Frames of one slot: the function. The links follow the entries, the innermost first.
fn narrow<M: ReadMemory>(
    memory: &M,
    functions: &TraceFunctions,
    slots: &Slots<'_>,
    tail: &[u32],
) -> Result<Vec<SnapshotFrame>, BadLinks> {
    let mut pc = u64::from(*tail.first().ok_or(BadLinks)?);
    // One link for each entry with a flag; the link of the lowest slot is the last one.
    let mut flagged: Vec<usize> = slots
        .entries
        .iter()
        .filter(|entry| *entry & (FRAME | CONT) != 0 && *entry >> 24 != 0)
        .map(|entry| (entry >> 24) as usize)
        .collect();
    flagged.sort_unstable();
    let link_of = |slot: usize| {
        let index = flagged.iter().position(|&known| known == slot)?;
        let from_end = index + 1;
        tail.len().checked_sub(from_end).and_then(|at| tail.get(at)).map(|word| u64::from(*word))
    };
    let is_frame = |slot: &&usize| slots.entry(**slot).is_some_and(|entry| entry & FRAME != 0);
    let mut slot = flagged.iter().rev().find(is_frame).copied().unwrap_or(0);
    let mut frames = Vec::new();
    let mut is_upper_half = false;
    while frames.len() < MAX_FRAMES {
        if !is_upper_half {
            let callee = slots.function(functions, slot).or_else(|| functions.owner(pc));
            frames.push(SnapshotFrame { callee, pc, base: slot + 1 });
        }
        is_upper_half = false;
        if slot == 0 {
            return Ok(frames);
        }
        let link = link_of(slot).ok_or(BadLinks)?;
        let delta = if link & 3 == 0 {
            pc = link;
            1 + call_slot(memory, link)?
        } else {
            match link & 7 {
                2 => pc = link_of(slot - 1).ok_or(BadLinks)?,
                3 => is_upper_half = true,
                _ => pc = 0,
            }
            (link >> 3) as usize
        };
        slot = slot.checked_sub(delta).ok_or(BadLinks)?;
        if delta == 0 {
            return Err(BadLinks);
        }
    }
    Err(BadLinks)
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{abc, ad, body, constant, layout, lua, memory, native, pc, trace_functions};
    use super::*;
    use crate::bytecode::Op;

    /// Two functions; the first has calls with `A` of 5 and of 1, and an addition.
    fn functions() -> Vec<Vec<u32>> {
        vec![
            vec![
                ad(Op::FUNCF, 8, 0),
                abc(Op::CALL, 5, 2, 1),
                abc(Op::CALL, 1, 2, 2),
                abc(Op::ADDVV, 4, 2, 3),
                ad(Op::RET0, 0, 1),
            ],
            vec![ad(Op::FUNCF, 2, 0), ad(Op::KSHORT, 0, 7), ad(Op::RET1, 0, 2)],
        ]
    }

    type Known = (Option<Callee>, u64, usize);

    /// The frames of a snapshot with these constants in its slots, for frames of two slots.
    fn wide(slots: &[(u32, u64, Option<Callee>)], pc: u64, base: u64) -> Result<Vec<Known>, BadLinks> {
        let values: Vec<u64> = slots.iter().map(|(_, value, _)| *value).collect();
        let at = |index: usize| constant(index);
        let entries: Vec<u32> =
            slots.iter().enumerate().map(|(index, (slot, ..))| slot << 24 | u32::from(at(index))).collect();
        let callees: Vec<(u16, Callee)> =
            slots.iter().enumerate().filter_map(|(index, (_, _, callee))| Some((at(index), (*callee)?))).collect();
        let packed = pc << 8 | (base - 2);
        let body = body(&values, &entries, &[packed as u32, (packed >> 32) as u32]);
        read(true, &body, &callees)
    }

    /// The same for frames of one slot: each slot with its flag and function, and the links after them.
    fn narrow(slots: &[(u32, u32, Option<Callee>)], tail: &[u64]) -> Result<Vec<Known>, BadLinks> {
        let entries: Vec<u32> = slots
            .iter()
            .enumerate()
            .map(|(index, (slot, flag, _))| slot << 24 | flag | u32::from(constant(index)))
            .collect();
        let callees: Vec<(u16, Callee)> = slots
            .iter()
            .enumerate()
            .filter_map(|(index, (_, _, callee))| Some((constant(index), (*callee)?)))
            .collect();
        let tail: Vec<u32> = tail.iter().map(|word| *word as u32).collect();
        read(false, &body(&vec![0; slots.len()], &entries, &tail), &callees)
    }

    fn read(fr2: bool, body: &TraceBody, callees: &[(u16, Callee)]) -> Result<Vec<Known>, BadLinks> {
        let functions = functions();
        let frames =
            snapshot_frames(&memory(&functions), &layout(fr2), body, &trace_functions(&functions, callees), 0)?;
        Ok(frames.into_iter().map(|frame| (frame.callee, frame.pc, frame.base)).collect())
    }

    /// A function without a closure among the constants.
    fn without_closure(callee: Callee) -> Option<Callee> {
        callee.prototype().map(|prototype| Callee::Lua { prototype, function: None })
    }

    #[test]
    fn a_call_takes_its_slot_off_in_both_widths() {
        let caller = without_closure(lua(0));
        let found = wide(&[(7, 0, Some(lua(1))), (8, pc(0, 2), None)], pc(1, 1), 9);
        assert_eq!(found, Ok(vec![(Some(lua(1)), pc(1, 1), 9), (caller, pc(0, 2), 2)]));
        let found = narrow(&[(6, FRAME, Some(lua(1)))], &[pc(1, 1), pc(0, 2)]);
        assert_eq!(found, Ok(vec![(Some(lua(1)), pc(1, 1), 7), (caller, pc(0, 2), 1)]));
    }

    #[test]
    fn a_protected_call_has_a_frame_without_pc() {
        /// `FRAME_PCALL`.
        const PCALL: u64 = 6;
        let caller = without_closure(lua(0));
        let slots = [(3, 0, Some(native())), (4, pc(0, 3), None), (5, 0, Some(lua(1))), (6, 2 << 3 | PCALL, None)];
        let expected = |bases: [usize; 3]| {
            Ok(vec![(Some(lua(1)), pc(1, 2), bases[0]), (Some(native()), 0, bases[1]), (caller, pc(0, 3), bases[2])])
        };
        assert_eq!(wide(&slots, pc(1, 2), 7), expected([7, 5, 2]));
        let slots = [(2, FRAME, Some(native())), (3, FRAME, Some(lua(1)))];
        assert_eq!(narrow(&slots, &[pc(1, 2), 1 << 3 | PCALL, pc(0, 3)]), expected([4, 3, 1]));
    }

    #[test]
    fn a_continuation_keeps_the_pc_of_the_operation() {
        /// `FRAME_CONT`.
        const LINK: u64 = 2;
        let caller = without_closure(lua(0));
        let slots = [(10, 0x7777, None), (11, pc(0, 4), None), (12, 0, Some(lua(1))), (13, 12 << 3 | LINK, None)];
        let found = wide(&slots, pc(1, 1), 14);
        assert_eq!(found, Ok(vec![(Some(lua(1)), pc(1, 1), 14), (caller, pc(0, 4), 2)]));
        let slots = [(9, CONT, None), (10, FRAME, Some(lua(1)))];
        let found = narrow(&slots, &[pc(1, 1), 10 << 3 | LINK, pc(0, 4)]);
        assert_eq!(found, Ok(vec![(Some(lua(1)), pc(1, 1), 11), (caller, pc(0, 4), 1)]));
    }

    #[test]
    fn the_two_halves_of_a_vararg_frame_are_one() {
        /// `FRAME_VARG`.
        const VARG: u64 = 3;
        let caller = without_closure(lua(0));
        let slots = [(3, 0, Some(lua(1))), (4, pc(0, 3), None), (6, 0, Some(lua(1))), (7, 3 << 3 | VARG, None)];
        assert_eq!(wide(&slots, pc(1, 1), 8), Ok(vec![(Some(lua(1)), pc(1, 1), 8), (caller, pc(0, 3), 2)]));
        let slots = [(2, FRAME, Some(lua(1))), (4, FRAME, Some(lua(1)))];
        let found = narrow(&slots, &[pc(1, 1), 2 << 3 | VARG, pc(0, 3)]);
        assert_eq!(found, Ok(vec![(Some(lua(1)), pc(1, 1), 5), (caller, pc(0, 3), 1)]));
    }

    #[test]
    fn links_that_lead_nowhere_are_no_frames() {
        assert_eq!(wide(&[(7, 0, Some(lua(1)))], pc(1, 1), 9), Err(BadLinks), "no link");
        assert_eq!(wide(&[(8, 0x9_0000, None)], pc(1, 1), 9), Err(BadLinks), "to no function");
        assert_eq!(wide(&[(8, 20 << 3 | 6, None)], pc(1, 1), 9), Err(BadLinks), "below the first frame");
        for kind in 0..8 {
            assert_eq!(wide(&[(8, kind, None)], pc(1, 1), 9), Err(BadLinks), "to itself: {kind}");
            assert_eq!(narrow(&[(6, FRAME, Some(lua(1)))], &[pc(1, 1), kind]), Err(BadLinks), "to itself: {kind}");
        }
        assert_eq!(narrow(&[(6, FRAME, Some(lua(1)))], &[]), Err(BadLinks), "no PC");
        assert_eq!(narrow(&[(6, FRAME, Some(lua(1)))], &[pc(1, 1), 7 << 3 | 6]), Err(BadLinks), "below the first");
    }
}
