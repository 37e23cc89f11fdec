//! Watches aborts as they happen, by the differences between two readings of the penalties.
//!
//! A hot loop uses up all ten tries within a millisecond. So readings miss the reasons of some aborts, but never their
//! number, as long as there are at most 64 new places between two readings. If an abort is seen before the next
//! recording begins, its subject is known as well: the bytecode or function.

use std::collections::HashMap;

use lj_trace_common::memory::ReadMemory;

use super::penalties::{Penalties, PenaltiesError, Penalty};
use crate::Vm;

/// Aborts at one place for one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenAborts {
    /// Address of the instruction at which recording began.
    pub pc: u64,
    /// Number of the reason: the one of the last abort between two readings.
    pub reason: u16,
    /// The subject of the reason, a tagged value, if it was seen.
    pub about: Option<u64>,
    /// Number of aborts.
    pub count: u32,
}

/// Collects aborts and flushes by repeated readings.
#[derive(Clone, Debug)]
pub struct AbortWatch {
    last: Penalties,
    seen: HashMap<(u64, u16, Option<u64>), u32>,
    /// How often all traces were flushed; this is a lower bound.
    pub flushes: u32,
    /// Number of readings.
    pub readings: u64,
}

impl AbortWatch {
    /// Begins to watch `vm`.
    ///
    /// # Errors
    /// [`PenaltiesError`] if the penalties cannot be read.
    pub fn start<M: ReadMemory>(memory: &M, vm: &Vm) -> Result<Self, PenaltiesError> {
        Ok(Self { last: Penalties::read(memory, vm)?, seen: HashMap::new(), flushes: 0, readings: 1 })
    }

    /// Takes one more reading. It skips a table that keeps changing: the next reading shows the same aborts.
    ///
    /// # Errors
    /// [`PenaltiesError`] if the VM does not exist any more.
    pub fn look<M: ReadMemory>(&mut self, memory: &M, vm: &Vm) -> Result<(), PenaltiesError> {
        match Penalties::read(memory, vm) {
            Ok(now) => {
                self.readings += 1;
                self.compare(now);
                Ok(())
            }
            Err(PenaltiesError::InMotion | PenaltiesError::Malformed) => Ok(()),
            Err(gone) => Err(gone),
        }
    }

    fn compare(&mut self, now: Penalties) {
        let pairs = || self.last.slots.iter().zip(&now.slots);
        // A slot keeps its place until another place takes it, or all slots are cleared.
        let flushed = pairs().any(|(before, now)| match (before, now) {
            (Some(_), None) => true,
            (Some(before), Some(now)) => before.pc == now.pc && now.value < before.value,
            (None, _) => false,
        });
        self.flushes += u32::from(flushed);
        let new_aborts = |(before, now): (&Option<Penalty>, &Option<Penalty>)| {
            let now = (*now)?;
            let before = before.filter(|before| before.pc == now.pc && !flushed).map_or(0, |before| before.aborts());
            let count = now.aborts().saturating_sub(before);
            (count != 0).then_some((now, count))
        };
        let aborts: Vec<(Penalty, u32)> = pairs().filter_map(new_aborts).collect();
        for (penalty, count) in aborts {
            *self.seen.entry((penalty.pc, penalty.reason, now.about(&penalty))).or_default() += count;
        }
        self.last = now;
    }

    /// All aborts since the start, the most frequent first.
    pub fn aborts(&self) -> Vec<SeenAborts> {
        let mut all: Vec<_> =
            self.seen.iter().map(|(&(pc, reason, about), &count)| SeenAborts { pc, reason, about, count }).collect();
        all.sort_by_key(|seen| (std::cmp::Reverse(seen.count), seen.pc, seen.reason, seen.about));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn penalties(slots: &[(u64, u16, u16)]) -> Penalties {
        let mut all: Vec<_> =
            slots.iter().map(|&(pc, value, reason)| (pc != 0).then_some(Penalty { pc, value, reason })).collect();
        all.resize(64, None);
        Penalties { slots: all, next: slots.len(), last: None }
    }

    fn watched(states: &[&[(u64, u16, u16)]]) -> AbortWatch {
        let mut watch = AbortWatch { last: penalties(states[0]), seen: HashMap::new(), flushes: 0, readings: 1 };
        states[1..].iter().for_each(|state| watch.compare(penalties(state)));
        watch
    }

    #[test]
    fn counts_what_is_new() {
        let watch = watched(&[&[(4, 72, 7)], &[(4, 72, 7)], &[(4, 300, 7), (8, 72, 9)], &[(4, 610, 8), (8, 72, 9)]]);
        let found = watch.aborts();
        let expected = [(4, 7, 2), (4, 8, 1), (8, 9, 1)];
        assert_eq!(found, expected.map(|(pc, reason, count)| SeenAborts { pc, reason, about: None, count }));
        assert_eq!(watch.flushes, 0);
    }

    #[test]
    fn a_place_that_takes_a_slot_is_counted_whole() {
        let watch = watched(&[&[(4, 600, 7)], &[(8, 150, 9)]]);
        assert_eq!(watch.aborts(), [SeenAborts { pc: 8, reason: 9, about: None, count: 2 }]);
    }

    #[test]
    fn flushes_clear_the_slots() {
        let watch = watched(&[&[(4, 600, 7)], &[], &[(4, 72, 7)], &[(0, 0, 0)]]);
        assert_eq!((watch.flushes, watch.aborts()), (2, vec![SeenAborts { pc: 4, reason: 7, about: None, count: 1 }]));
        assert_eq!(watched(&[&[(4, 600, 7)], &[(4, 72, 7)]]).flushes, 1, "and it was aborted again");
    }
}
