//! The penalties of places where recording was aborted (`J->penalty`, [`HotPenalty`] of `lj_jit.h`).
//!
//! Each of 64 slots has a place, how hot it must become before it is tried again, and the reason of its last abort.
//! Every abort doubles that value and adds up to 15 ([`penalty_pc`], `lj_trace.c`), so it tells how many there were.
//! Beyond 60000, with the eleventh abort, the place is blacklisted instead; the slot keeps what the tenth has left. New
//! places take slots in turns. A flush of all traces clears them. Only root traces are noted, not side traces or
//! stitched ones.
//!
//! [`HotPenalty`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_jit.h#L302-L312
//! [`penalty_pc`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_trace.c#L391-L414

use lj_trace_common::layout::ABSENT;
use lj_trace_common::memory::{ReadMemory, Unreadable};

use crate::Vm;
use crate::object::{field, read_bytes};

/// `PENALTY_SLOTS`: the same in every build.
const SLOTS: usize = 64;
/// `PENALTY_MIN`: the same in every build.
const LEAST: u16 = 72;
/// `PENALTY_MAX`: the same in every build.
const MOST: u16 = 60_000;

/// How many readings may differ before it is said that there is none.
const READINGS: usize = 8;

/// A slot that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Penalty {
    /// Address of the instruction at which recording began.
    pub pc: u64,
    /// How often the place must be reached before it is tried again (not exactly: loops count twice as fast).
    pub value: u16,
    /// The number of the last abort's reason.
    pub reason: u16,
}

impl Penalty {
    /// How many aborts there were since the place got its slot.
    pub fn aborts(&self) -> u32 {
        // After n of them the value is 72 * 2^(n-1), and less than 88 * 2^(n-1).
        (self.value / LEAST).checked_ilog2().map_or(0, |doublings| doublings + 1)
    }
}

/// All slots at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Penalties {
    /// By slot.
    pub slots: Vec<Option<Penalty>>,
    /// The slot that the next new place gets.
    pub next: usize,
}

/// Why there are no penalties to be told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PenaltiesError {
    /// The build has no JIT compiler, or it is not decided yet where its state lies.
    #[error("where this VM keeps its penalties is not known: it has compiled nothing yet, or has no JIT compiler")]
    Undecided,
    /// The VM is gone.
    #[error("the VM's memory is not readable any more")]
    Unreadable,
    /// What is there cannot be a table of penalties.
    #[error("what lies where this build keeps its penalties are none")]
    Malformed,
    /// It never held still.
    #[error("the penalties changed each time that they were read")]
    InMotion,
}

impl From<Unreadable> for PenaltiesError {
    fn from(_: Unreadable) -> Self {
        Self::Unreadable
    }
}

impl Penalties {
    /// Reads the slots of `vm`: twice, so that none is torn.
    ///
    /// # Errors
    /// [`PenaltiesError`] if there are none to be had.
    pub fn read<M: ReadMemory>(memory: &M, vm: &Vm) -> Result<Self, PenaltiesError> {
        let jit_state = vm.jit_state().filter(|_| vm.layout.j_penalty != ABSENT).ok_or(PenaltiesError::Undecided)?;
        let gc64 = vm.layout.is_gc64();
        let start = field(jit_state, vm.layout.j_penalty);
        let length = SLOTS * width(gc64) + 4;
        let mut before = read_bytes(memory, start, length)?;
        for _ in 0..READINGS {
            let now = read_bytes(memory, start, length)?;
            if now == before {
                return Self::parse(&now, gc64).ok_or(PenaltiesError::Malformed);
            }
            before = now;
        }
        Err(PenaltiesError::InMotion)
    }

    fn parse(bytes: &[u8], gc64: bool) -> Option<Self> {
        let (slots, next) = bytes.split_at_checked(SLOTS * width(gc64))?;
        let slots: Option<Vec<_>> = slots.chunks_exact(width(gc64)).map(|slot| parse_slot(slot, gc64)).collect();
        let next = u32::from_le_bytes(*next.first_chunk()?) as usize;
        (next < SLOTS).then_some(Self { slots: slots?, next })
    }

    /// Those that are in use.
    pub fn in_use(&self) -> impl Iterator<Item = &Penalty> {
        self.slots.iter().flatten()
    }
}

/// `sizeof(HotPenalty)`.
const fn width(gc64: bool) -> usize {
    if gc64 { 16 } else { 8 }
}

/// The outer option tells whether it can be a slot, the inner one whether it is in use.
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
    fn values_tell_the_number_of_aborts() {
        // The least and the most that the random numbers make of it.
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
