//! Keeps the books of a memory profile: which VMs were closed, and what had become of their calls by then.

use std::collections::{BTreeMap, HashMap};

use lj_trace_common::allocation::tally::VmTally;
use lj_trace_common::config::{Counter, MAX_VMS};
use lj_trace_probes::programs::Programs;

use crate::allocations::{Gap, Ledger, MemoryEvents, MemoryTally, OtherCalls, VmCalls};

/// What is known of VMs that were closed, and of calls that nobody has worked off.
#[derive(Debug, Default)]
pub struct Accounts {
    ledger: Ledger,
    /// Of the VMs that were closed, all together.
    closed: MemoryTally,
    /// Their indices, each with the generation of the last one that had it.
    generations: BTreeMap<u32, u32>,
    /// Events that were not worked off when the time was over, by the index of their VM.
    unread: HashMap<u32, u64>,
}

impl Accounts {
    /// An event of a VM was not worked off when the time was over.
    pub fn leave_unread(&mut self, index: u32) {
        *self.unread.entry(index).or_default() += 1;
    }

    /// How many such events there were.
    pub fn unread(&self) -> u64 {
        self.unread.values().sum()
    }

    /// Notes that calls of a VM were not seen for a while.
    pub fn note_gap(&mut self, gap: Gap) {
        self.ledger.note_gap(gap);
    }

    /// A VM was closed.
    pub fn close(&mut self, index: u32, number: usize, counted: VmTally, tally: MemoryTally) {
        self.closed = self.closed.plus(tally);
        self.generations.insert(index, counted.generation);
        self.ledger.enter(number, &VmCalls { counted, recorded: tally.events, unread: 0 });
    }

    /// Whether the VM that has this index was closed, and no other has come to have it.
    pub fn is_closed(&self, index: u32, generation: u32) -> bool {
        self.generations.get(&index) == Some(&generation)
    }

    /// Of the VMs that were closed, all together.
    pub fn closed(&self) -> MemoryTally {
        self.closed
    }

    /// Events lost so far since the ring buffer was full.
    pub fn ring_full_so_far(&self, programs: &Programs) -> u64 {
        let open = (0..MAX_VMS).map(|index| (index, programs.tally(index)));
        let open = open.filter(|(index, tally)| !self.is_closed(*index, tally.generation));
        self.ledger.ring_full() + open.map(|(_, tally)| tally.ring_full).sum::<u64>()
    }

    /// The ledger of a recording that is over, of whose VMs that are open these are the events.
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
