//! Sees aborts as they happen: the differences between two readings of the penalties.
//!
//! A hot loop uses up all ten tries within a millisecond, so readings miss the reasons in between, never the number of
//! aborts, as long as no more than 64 new places come between two of them. An abort that is seen before the next
//! recording begins also tells the bytecode or function that it is about.

use std::collections::HashMap;

use lj_trace_common::memory::ReadMemory;

use super::penalties::{Penalties, PenaltiesError, Penalty};
use crate::Vm;

/// Aborts at one place for one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenAborts {
    /// Where recording began.
    pub pc: u64,
    /// The reason's number: that of the last of the aborts between two readings.
    pub reason: u16,
    /// What the reason is about, a tagged value, if that was seen.
    pub about: Option<u64>,
    /// How many of them there were.
    pub count: u32,
}

/// Sees aborts and flushes by reading again and again.
#[derive(Clone, Debug)]
pub struct AbortWatch {
    last: Penalties,
    seen: HashMap<(u64, u16, Option<u64>), u32>,
    /// How often all traces were flushed, at least.
    pub flushes: u32,
    /// How often it was looked.
    pub readings: u64,
}

impl AbortWatch {
    /// Begins to watch `vm`.
    ///
    /// # Errors
    /// [`PenaltiesError`] if there is nothing to be seen.
    pub fn start<M: ReadMemory>(memory: &M, vm: &Vm) -> Result<Self, PenaltiesError> {
        Ok(Self { last: Penalties::read(memory, vm)?, seen: HashMap::new(), flushes: 0, readings: 1 })
    }

    /// Looks once more. A table that does not hold still is passed over: the next look sees the same.
    ///
    /// # Errors
    /// [`PenaltiesError`] if the VM is gone.
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
        // A slot that is in use keeps a place until another one takes it, or all are cleared.
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

    /// All aborts since the beginning, the most frequent first.
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
