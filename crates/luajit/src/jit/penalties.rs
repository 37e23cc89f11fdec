//! Penalties for places where recording was aborted (`J->penalty`, [`HotPenalty`] of `lj_jit.h`).
//!
//! Each of 64 slots has a place, the count that the place must reach before it is tried again, and the reason of its
//! last abort. Every abort doubles that count and adds up to 15 ([`penalty_pc`], `lj_trace.c`), so it shows the number
//! of aborts. Beyond 60000, with the eleventh abort, the place is blacklisted instead, and the slot keeps the state
//! after the tenth. New places take slots in turns. A flush of all traces clears the slots. Only root traces get
//! penalties, not side traces or stitched ones.
//!
//! The bytecode or function that could not be recorded is only kept for the very last abort (`J->errinfo`): it belongs
//! to a penalty if the last recording began at its place, and was aborted ([`trace_abort`], `lj_trace.c`).
//!
//! [`HotPenalty`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_jit.h#L302-L312
//! [`penalty_pc`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_trace.c#L391-L414
//! [`trace_abort`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_trace.c#L585-L679

use lj_trace_common::layout::{ABSENT, VmLayout};
use lj_trace_common::memory::{ReadMemory, Unreadable};

use crate::Vm;
use crate::object::read_bytes;
use crate::overlay::plain_at;

/// `PENALTY_SLOTS`: the same in every build.
const SLOTS: usize = 64;
/// `PENALTY_MIN`: the same in every build.
const LEAST: u16 = 72;
/// `PENALTY_MAX`: the same in every build.
const MOST: u16 = 60_000;

/// The most aborts that a slot can show.
const MOST_ABORTS: u32 = 10;

/// How often to read the slots until two readings agree.
const READINGS: usize = 8;

/// A slot that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Penalty {
    /// Address of the instruction at which recording began.
    pub pc: u64,
    /// How often the place must be reached before it is tried again (approximately: loops count twice as fast).
    pub value: u16,
    /// Number of the last abort's reason.
    pub reason: u16,
}

impl Penalty {
    /// How many aborts there were since the place got its slot.
    pub fn aborts(&self) -> u32 {
        // After n aborts the value is at least 72 * 2^(n-1), and less than 88 * 2^(n-1).
        (self.value / LEAST).checked_ilog2().map_or(0, |doublings| doublings + 1)
    }
}

/// All slots at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Penalties {
    /// The penalties, by slot.
    pub slots: Vec<Option<Penalty>>,
    /// The slot that the next new place gets.
    pub next: usize,
    /// The last recording, if it was aborted.
    pub last: Option<LastAbort>,
}

/// The last recording, if it was aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastAbort {
    /// Address of the instruction at which recording began.
    pub pc: u64,
    /// `J->errinfo`, a tagged value: the subject of the reason, if it has one.
    pub about: u64,
}

/// Why the penalties cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PenaltiesError {
    /// The build has no JIT compiler, or the place of its state is undecided yet.
    #[error("where this VM keeps its penalties is not known: it has compiled nothing yet, or has no JIT compiler")]
    Undecided,
    /// The VM does not exist any more.
    #[error("the VM's memory is not readable any more")]
    Unreadable,
    /// The memory there cannot be a table of penalties.
    #[error("what lies where this build keeps its penalties are none")]
    Malformed,
    /// The penalties changed during each reading.
    #[error("the penalties changed each time that they were read")]
    InMotion,
}

impl From<Unreadable> for PenaltiesError {
    fn from(_: Unreadable) -> Self {
        Self::Unreadable
    }
}

impl Penalties {
    /// Reads the slots of `vm` twice, so that none is torn.
    ///
    /// # Errors
    /// [`PenaltiesError`] if they cannot be read.
    pub fn read<M: ReadMemory>(memory: &M, vm: &Vm) -> Result<Self, PenaltiesError> {
        let jit_state = vm.jit_state().filter(|_| vm.layout.j_penalty != ABSENT).ok_or(PenaltiesError::Undecided)?;
        let mut before = Self::read_once(memory, vm, jit_state)?;
        for _ in 0..READINGS {
            let now = Self::read_once(memory, vm, jit_state)?;
            if now == before {
                return now.ok_or(PenaltiesError::Malformed);
            }
            before = now;
        }
        Err(PenaltiesError::InMotion)
    }

    /// [`None`] if the memory cannot be a table of penalties.
    fn read_once<M: ReadMemory>(memory: &M, vm: &Vm, jit_state: u64) -> Result<Option<Self>, Unreadable> {
        let (layout, gc64) = (&vm.layout, vm.layout.is_gc64());
        let start = usize::from(layout.j_penalty);
        // Everything is read at once. The state begins with the trace that is being recorded, or was recorded last.
        let of_slots = start + SLOTS * width(gc64) + 4;
        let end = if layout.j_errinfo == ABSENT { of_slots } else { of_slots.max(usize::from(layout.j_errinfo) + 8) };
        let state = read_bytes(memory, jit_state, end)?;
        let slots = state.get(start..of_slots).and_then(|bytes| Self::parse(bytes, gc64));
        Ok(slots.map(|slots| Self { last: last_abort(&state, layout), ..slots }))
    }

    fn parse(bytes: &[u8], gc64: bool) -> Option<Self> {
        let (slots, next) = bytes.split_at_checked(SLOTS * width(gc64))?;
        let slots: Option<Vec<_>> = slots.chunks_exact(width(gc64)).map(|slot| parse_slot(slot, gc64)).collect();
        let next = u32::from_le_bytes(*next.first_chunk()?) as usize;
        (next < SLOTS).then_some(Self { slots: slots?, next, last: None })
    }

    /// The subject of a penalty's reason, if it is known.
    pub fn about(&self, penalty: &Penalty) -> Option<u64> {
        // The next abort blacklists the place: it stores its subject, but not its reason.
        let may_be_of_another = penalty.aborts() >= MOST_ABORTS;
        self.last.filter(|last| last.pc == penalty.pc && !may_be_of_another).map(|last| last.about)
    }

    /// The slots that are in use.
    pub fn in_use(&self) -> impl Iterator<Item = &Penalty> {
        self.slots.iter().flatten()
    }
}

/// The last recording in a `jit_State`, if it was aborted and no other has begun.
fn last_abort(state: &[u8], layout: &VmLayout) -> Option<LastAbort> {
    /// `LJ_TRACE_IDLE`: the same in every build.
    const IDLE: u32 = 0;
    let fields = [layout.j_state, layout.j_errinfo, layout.tr_traceno, layout.tr_root, layout.tr_startpc];
    if fields.contains(&ABSENT) || plain_at::<u32>(state, u64::from(layout.j_state))? != IDLE {
        return None;
    }
    // An aborted trace loses its number.
    let (number, root) =
        (plain_at::<u16>(state, u64::from(layout.tr_traceno))?, plain_at(state, u64::from(layout.tr_root))?);
    if (number, root) != (0, 0_u16) {
        return None;
    }
    let at = u64::from(layout.tr_startpc);
    let pc = if layout.is_gc64() { plain_at(state, at)? } else { u64::from(plain_at::<u32>(state, at)?) };
    Some(LastAbort { pc, about: plain_at(state, u64::from(layout.j_errinfo))? })
}

/// `sizeof(HotPenalty)`.
const fn width(gc64: bool) -> usize {
    if gc64 { 16 } else { 8 }
}

/// The outer option tells whether the bytes can be a slot, the inner one whether the slot is in use.
fn parse_slot(slot: &[u8], gc64: bool) -> Option<Option<Penalty>> {
    let (pc, rest) = slot.split_at_checked(if gc64 { 8 } else { 4 })?;
    let half = |at: usize| rest.get(at..)?.first_chunk().map(|bytes| u16::from_le_bytes(*bytes));
    let pc = pc.iter().rev().fold(0, |pc, byte| pc << 8 | u64::from(*byte));
    let (value, reason) = (half(0)?, half(2)?);
    match (pc, value) {
        (0, 0) => Some(None),
        (0, _) => None,
        _ if !pc.is_multiple_of(4) || !(LEAST..=MOST).contains(&value) => None,
        _ => Some(Some(Penalty { pc, value, reason })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::x64_layout;

    fn table(slots: &[(u64, u16, u16)], next: u32, gc64: bool) -> Vec<u8> {
        let mut bytes = vec![0; SLOTS * width(gc64)];
        for (slot, (pc, value, reason)) in bytes.chunks_exact_mut(width(gc64)).zip(slots) {
            let wide = if gc64 { 8 } else { 4 };
            slot[..wide].copy_from_slice(&pc.to_le_bytes()[..wide]);
            slot[wide..wide + 2].copy_from_slice(&value.to_le_bytes());
            slot[wide + 2..wide + 4].copy_from_slice(&reason.to_le_bytes());
        }
        bytes.extend(next.to_le_bytes());
        bytes
    }

    #[test]
    fn reads_slots_of_both_widths() {
        for gc64 in [false, true] {
            let read = Penalties::parse(&table(&[(0x4000, 72, 7), (0x4010, 36_900, 9)], 2, gc64), gc64).unwrap();
            let expected =
                [Penalty { pc: 0x4000, value: 72, reason: 7 }, Penalty { pc: 0x4010, value: 36_900, reason: 9 }];
            assert_eq!(read.in_use().copied().collect::<Vec<_>>(), expected);
            assert_eq!(read.next, 2);
        }
    }

    #[test]
    fn what_is_no_table_is_refused() {
        assert_eq!(Penalties::parse(&table(&[(0, 72, 7)], 0, true), true), None, "no place");
        assert_eq!(Penalties::parse(&table(&[(0x4000, 71, 7)], 0, true), true), None, "too small a value");
        assert_eq!(Penalties::parse(&table(&[(0x4000, 60_001, 7)], 0, true), true), None, "too large a value");
        assert_eq!(Penalties::parse(&table(&[(0x4001, 72, 7)], 0, true), true), None, "no instruction");
        assert_eq!(Penalties::parse(&table(&[], 64, true), true), None, "no slot");
        assert_eq!(Penalties::parse(&[0; 8], true), None);
    }

    #[test]
    fn only_an_aborted_recording_tells_what_it_was_about() {
        for (mode, gc64) in [("x64", false), ("x64gc64", true)] {
            let layout = x64_layout("2.1b3", mode);
            let mut state = vec![0; usize::from(layout.j_errinfo) + 8];
            let mut put = |at: u16, bytes: &[u8]| state[usize::from(at)..][..bytes.len()].copy_from_slice(bytes);
            put(layout.tr_startpc, &0x4000_u32.to_le_bytes());
            put(layout.j_errinfo, &51_f64.to_le_bytes());
            let last = Some(LastAbort { pc: 0x4000, about: 51_f64.to_bits() });
            assert_eq!(last_abort(&state, &layout), last);
            let mut changed = state.clone();
            changed[usize::from(layout.tr_traceno)] = 1;
            assert_eq!(last_abort(&changed, &layout), None, "it was compiled");
            changed.clone_from(&state);
            changed[usize::from(layout.tr_root)] = 1;
            assert_eq!(last_abort(&changed, &layout), None, "a side trace");
            changed[usize::from(layout.j_state)] = 0x11;
            assert_eq!(last_abort(&changed, &layout), None, "another one is recorded");
            let penalties = Penalties { last, ..Penalties::parse(&table(&[], 0, gc64), gc64).unwrap() };
            assert_eq!(penalties.about(&Penalty { pc: 0x4000, value: 72, reason: 7 }), Some(51_f64.to_bits()));
            assert_eq!(penalties.about(&Penalty { pc: 0x4004, value: 72, reason: 7 }), None);
            assert_eq!(penalties.about(&Penalty { pc: 0x4000, value: 36_900, reason: 7 }), None);
        }
    }

    #[test]
    fn values_tell_the_number_of_aborts() {
        // The smallest and the largest value that the random numbers can give.
        let (mut least, mut most) = (72_u16, 72_u16);
        for aborts in 1..=10 {
            for value in [least, most] {
                assert_eq!(Penalty { pc: 4, value, reason: 0 }.aborts(), aborts, "{value}");
            }
            (least, most) = (least.wrapping_mul(2), most.wrapping_mul(2).wrapping_add(15));
        }
        assert_eq!(u32::from(72_u16) << 10, 73_728, "the eleventh is more than a value may be");
    }
}
