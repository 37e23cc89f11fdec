//! The buffer that delivers samples: those of the clock and those of allocations.

use std::collections::{HashMap, VecDeque};
use std::mem::offset_of;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use lj_trace_common::event::SampleHeader;
use lj_trace_common::trace::{TRACE_COPY, TraceCopy};
use lj_trace_common::turn::{EndedTurn, TURN_ENDED};

use super::error::ProbeError;
use super::places::Places;
use super::programs::Programs;
use super::ring::{Batch, Ring};
use super::sample::{Record, plain};
use super::set::{Set, lock, take_map};

/// The samples of one process.
pub struct SampleBuffer(Source);

enum Source {
    /// The set of programs serves this process alone.
    Own(Ring, Batch),
    /// Other processes have samples in the same buffer. The fields: the set, the process's number, whether any of its
    /// samples wait.
    Shared(Arc<Set>, u32, Arc<AtomicBool>),
}

/// The buffer of several processes, with the records that were read from it while another process's records were
/// wanted.
pub(super) struct SharedSamples {
    ring: Ring,
    waiting: HashMap<u32, Waiting>,
    batch: Batch,
}

/// The waiting records of one process, in their order.
#[derive(Default)]
struct Waiting {
    records: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Samples that were dropped because there was no room.
    lost: u64,
    /// Whether there are records. Readers ask this much more often than records come.
    has_some: Arc<AtomicBool>,
}

/// How many bytes of records may wait for one process. They wait only while other processes are being read.
const MOST_WAITING: usize = 4 << 20;

impl SharedSamples {
    pub fn new(ring: Ring) -> Self {
        Self { ring, waiting: HashMap::new(), batch: Batch::default() }
    }

    /// Starts collecting the records of a process.
    pub fn add(&mut self, process: u32) {
        self.waiting.insert(process, Waiting::default());
    }

    /// Empties the buffer, and lets each record wait for its process.
    fn hand_out(&mut self, places: &Mutex<Places>) {
        let Self { ring, waiting, batch } = self;
        while let Some(record) = ring.next(batch) {
            // A separate statement: within the `if`, the lock would be held too long.
            let owner = process_of(record, &lock(places));
            if let Some(waiting) = owner.and_then(|owner| waiting.get_mut(&owner)) {
                waiting.push(record);
            }
        }
    }

    /// Drops the records of a process that nobody reads any more.
    pub fn remove(&mut self, process: u32) {
        self.waiting.remove(&process);
    }
}

impl Waiting {
    fn push(&mut self, record: &[u8]) {
        if self.bytes + record.len() > MOST_WAITING {
            // A lost piece of a trace counts nothing: the agent reads that trace from the process.
            self.lost += Record::parse(record).map_or(0, |record| record.weight());
            return;
        }
        self.bytes += record.len();
        self.records.push_back(record.to_vec());
        self.has_some.store(true, Ordering::Relaxed);
    }

    fn pop(&mut self) -> Option<Vec<u8>> {
        let Some(record) = self.records.pop_front() else {
            self.has_some.store(false, Ordering::Relaxed);
            return None;
        };
        self.bytes -= record.len();
        Some(record)
    }
}

impl SampleBuffer {
    /// The sample buffer of these programs.
    ///
    /// # Errors
    /// [`ProbeError::Refused`] if it was taken before.
    pub fn open(programs: &Programs) -> Result<Self, ProbeError> {
        if let Some((set, process)) = programs.shared() {
            let samples = set.samples.as_ref().map(lock);
            let waiting = samples.and_then(|samples| Some(samples.waiting.get(&process)?.has_some.clone()));
            return Ok(Self(Source::Shared(set, process, waiting.unwrap_or_default())));
        }
        let buffer = take_map(&mut programs.ebpf(), "SAMPLES").and_then(Ring::of_map);
        buffer.map(|ring| Self(Source::Own(ring, Batch::default()))).map_err(ProbeError::sort)
    }

    /// Calls `take` for every record that is ready, until `take` breaks. Returns whether all records were taken.
    pub fn drain(&mut self, mut take: impl FnMut(Record<'_>) -> ControlFlow<()>) -> bool {
        match &mut self.0 {
            Source::Own(ring, batch) => {
                while let Some(record) = ring.next(batch) {
                    if Record::parse(record).is_some_and(|record| take(record).is_break()) {
                        return false;
                    }
                }
                true
            }
            Source::Shared(set, process, _) => drain_shared(set, *process, take),
        }
    }

    /// Whether records wait since the last [`hand_out`](Self::hand_out), if the process shares the buffer with others.
    /// A buffer of its own always may have some.
    pub fn may_have_some(&self) -> bool {
        match &self.0 {
            Source::Own(..) => true,
            Source::Shared(_, _, has_some) => has_some.load(Ordering::Relaxed),
        }
    }

    /// Empties a shared buffer, and lets each record wait for its process.
    pub fn hand_out(&self) {
        if let Source::Shared(set, ..) = &self.0
            && let Some(samples) = &set.samples
        {
            lock(samples).hand_out(&set.places);
        }
    }

    /// Whether the two share one buffer.
    pub fn shares_with(&self, other: &Self) -> bool {
        matches!((&self.0, &other.0), (Source::Shared(one, ..), Source::Shared(other, ..)) if Arc::ptr_eq(one, other))
    }

    /// Samples that were dropped because too many waited while other processes were being read.
    pub fn lost(&self) -> u64 {
        let Source::Shared(set, process, _) = &self.0 else { return 0 };
        let samples = set.samples.as_ref().map(lock);
        samples.and_then(|samples| samples.waiting.get(process).map(|waiting| waiting.lost)).unwrap_or(0)
    }
}

fn drain_shared(set: &Set, process: u32, mut take: impl FnMut(Record<'_>) -> ControlFlow<()>) -> bool {
    let Some(samples) = &set.samples else { return true };
    let mut samples = lock(samples);
    let SharedSamples { ring, waiting, batch } = &mut *samples;
    let mut is_enough = |record: &[u8]| {
        let own = Record::parse(record).and_then(|record| record.renumbered(process, &lock(&set.places)));
        own.is_some_and(|record| take(record).is_break())
    };
    loop {
        if let Some(record) = waiting.get_mut(&process).and_then(Waiting::pop) {
            if is_enough(&record) {
                return false;
            }
            continue;
        }
        let Some(record) = ring.next(batch) else { return true };
        // A separate statement: within the `match`, the lock would be held too long.
        let own = process_of(record, &lock(&set.places));
        match own {
            Some(own) if own == process => {
                if is_enough(record) {
                    return false;
                }
            }
            // If the process is not recorded any more, its records are dropped.
            other => {
                if let Some(waiting) = other.and_then(|other| waiting.get_mut(&other)) {
                    waiting.push(record);
                }
            }
        }
    }
}

/// The number of the process that a record belongs to.
fn process_of(record: &[u8], places: &Places) -> Option<u32> {
    let word = |at: usize| record.get(at..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes));
    let is_trace = record.first_chunk().is_some_and(|mark| u64::from_ne_bytes(*mark) == TRACE_COPY);
    if is_trace {
        let copy: TraceCopy = plain(record.get(..size_of::<TraceCopy>())?)?;
        return places.owner(copy.vm).map(|owner| owner.process);
    }
    if record.first_chunk().is_some_and(|mark| u64::from_ne_bytes(*mark) == TURN_ENDED) {
        return word(offset_of!(EndedTurn, process));
    }
    word(offset_of!(SampleHeader, process))
}
