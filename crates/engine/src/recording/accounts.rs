//! Keeps the accounts of a memory profile: which VMs were closed, and what became of their calls.

use std::collections::{BTreeMap, HashMap};

use lj_trace_common::allocation::tally::VmTally;
use lj_trace_common::config::{Counter, MAX_VMS};
use lj_trace_probes::programs::Programs;

use crate::allocations::{Gap, Ledger, MemoryEvents, MemoryTally, OtherCalls, VmCalls};

/// The accounts of closed VMs, and of events that were not processed in time.
#[derive(Debug, Default)]
pub struct Accounts {
    ledger: Ledger,
    /// The tally of all closed VMs together.
    closed: MemoryTally,
    /// The indices of closed VMs, each with the generation of the last VM that had it.
    generations: BTreeMap<u32, u32>,
    /// Events that were not processed in time, by the index of their VM.
    unread: HashMap<u32, u64>,
}

impl Accounts {
    /// Counts an event of a VM that was not processed in time.
    pub fn leave_unread(&mut self, index: u32) {
        *self.unread.entry(index).or_default() += 1;
    }

    /// Whether events of this VM were not processed in time.
    pub fn has_unread(&self, index: u32) -> bool {
        self.unread.contains_key(&index)
    }

    /// The number of events that were not processed in time.
    pub fn unread(&self) -> u64 {
        self.unread.values().sum()
    }

    /// Notes a period in which calls of a VM were not seen.
    pub fn note_gap(&mut self, gap: Gap) {
        self.ledger.note_gap(gap);
    }

    /// Adds a VM that was closed.
    pub fn close(&mut self, index: u32, number: usize, counted: VmTally, tally: MemoryTally) {
        self.closed = self.closed.plus(tally);
        self.generations.insert(index, counted.generation);
        self.ledger.enter(number, &VmCalls { counted, recorded: tally.events, unread: 0 });
    }

    /// Whether the VM with this index and generation was closed, and no other VM has the index now.
    pub fn is_closed(&self, index: u32, generation: u32) -> bool {
        self.generations.get(&index) == Some(&generation)
    }

    /// The tally of all closed VMs together.
    pub fn closed(&self) -> MemoryTally {
        self.closed
    }

    /// Events lost so far because the ring buffer was full.
    pub fn ring_full_so_far(&self, programs: &Programs) -> u64 {
        let open = (0..MAX_VMS).map(|index| (index, programs.tally(index)));
        let open = open.filter(|(index, tally)| !self.is_closed(*index, tally.generation));
        self.ledger.ring_full() + open.map(|(_, tally)| tally.ring_full).sum::<u64>()
    }

    /// The ledger of a finished recording. `open` are the events of the VMs that are still open.
    pub fn finish(&self, programs: &Programs, open: &[Option<MemoryEvents>]) -> Ledger {
        let mut ledger = self.ledger.clone();
        let count = |counter| programs.count(counter);
        ledger.seen = count(Counter::AllocatorCalls);
        ledger.outside = count(Counter::CallsOutside);
        let held = count(Counter::AllocationsHeld).saturating_sub(count(Counter::AllocationsSettled));
        ledger.others = OtherCalls {
            of_others: 0,
            unknown: count(Counter::UnknownVm),
            beyond: count(Counter::CallsBeyond),
            undecided: count(Counter::CreationsFailed) + held,
            threads: count(Counter::PendingFull),
        };
        for index in 0..MAX_VMS {
            let counted = programs.tally(index);
            if self.is_closed(index, counted.generation) {
                continue;
            }
            match open.get(index as usize).and_then(Option::as_ref) {
                Some(events) => {
                    let unread = self.unread.get(&index).copied().unwrap_or(0);
                    let recorded = events.tally().events;
                    ledger.enter(events.number(), &VmCalls { counted, recorded, unread });
                }
                None => ledger.others.of_others += counted.calls,
            }
        }
        ledger
    }
}
