//! The state that a sink's thread shares with its owner.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::counters::{RequestSum, SinkCounters};
use super::spool::{Spool, SpoolEntry, Strikes};
use crate::{DropReason, Request, SinkConfig};

/// A request in memory.
#[derive(Clone)]
pub struct Waiting {
    /// The request itself.
    pub request: Arc<Request>,
    /// How often the server has failed at it.
    pub strikes: Strikes,
}

impl Waiting {
    /// A request that was not tried yet.
    pub fn new(request: Request) -> Self {
        Self { request: Arc::new(request), strikes: Strikes::default() }
    }

    /// The amount of this request, for the counters.
    pub fn held(&self) -> RequestSum {
        RequestSum::one(self.request.about.amount)
    }

    fn bytes(&self) -> u64 {
        // Including what is known of it.
        self.request.body.len() as u64 + 512
    }
}

/// One lock protects all of it, so that the counters add up whenever somebody reads them.
pub struct State {
    /// What became of everything.
    pub counters: SinkCounters,
    queue: VecDeque<Waiting>,
    /// The requests on disk, oldest first, without the one that is being sent from there.
    pub spooled: VecDeque<SpoolEntry>,
    /// The request that is being sent from memory.
    pub in_flight: Option<Waiting>,
    /// The deadline for sending during shutdown.
    pub ending: Option<Instant>,
    /// The thread has ended, or will not touch this state any more.
    pub is_finished: bool,
    /// The thread must not touch this state any more.
    pub is_abandoned: bool,
    /// The thread is writing a request to the disk.
    pub is_spilling: bool,
    /// How many requests the server has accepted.
    pub successes: u64,
}

impl State {
    /// Puts a request at the end of the queue. It is counted already.
    pub fn queue(&mut self, waiting: Waiting) {
        self.counters.queue_bytes += waiting.bytes();
        self.queue.push_back(waiting);
    }

    /// Puts a request at the front of the queue.
    pub fn queue_first(&mut self, waiting: Waiting) {
        self.counters.queue_bytes += waiting.bytes();
        self.queue.push_front(waiting);
    }

    /// Puts a request back that was taken out. If the queue has no room for it any more, it is dropped, because it is
    /// the oldest.
    pub fn queue_again(&mut self, waiting: Waiting, is_first: bool, most: u64) {
        if self.counters.queue_bytes + waiting.bytes() > most {
            self.counters.queued -= waiting.held();
            self.counters.drop(DropReason::QueueFull, waiting.held());
        } else if is_first {
            self.queue_first(waiting);
        } else {
            self.queue(waiting);
        }
    }

    /// Takes the first request.
    pub fn next(&mut self) -> Option<Waiting> {
        let waiting = self.queue.pop_front()?;
        self.counters.queue_bytes = self.counters.queue_bytes.saturating_sub(waiting.bytes());
        Some(waiting)
    }

    /// Whether nothing is queued.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// Takes all requests.
    pub fn take_queue(&mut self) -> VecDeque<Waiting> {
        self.counters.queue_bytes = 0;
        std::mem::take(&mut self.queue)
    }
}

/// The state, and the spool. The spool has a lock of its own, which is held for longer, because it writes to disks.
pub struct Shared {
    state: Mutex<State>,
    /// [`None`] if there is no spool, or it was closed.
    spool: Mutex<Option<Spool>>,
    has_spool: bool,
    /// Signals news: a request, or the end.
    pub changed: Condvar,
    /// How to send.
    pub config: SinkConfig,
}

impl Shared {
    /// A state with an empty queue. `found` is what the spool contains.
    pub fn new(config: SinkConfig, spool: Option<Spool>, counters: SinkCounters, found: Vec<SpoolEntry>) -> Self {
        let state = State {
            counters,
            queue: VecDeque::new(),
            spooled: found.into(),
            in_flight: None,
            ending: None,
            is_finished: false,
            is_abandoned: false,
            is_spilling: false,
            successes: 0,
        };
        let has_spool = spool.is_some();
        Self { state: Mutex::new(state), spool: Mutex::new(spool), has_spool, changed: Condvar::new(), config }
    }

    /// The state.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for news, for at most `time`.
    pub fn wait<'a>(&self, state: MutexGuard<'a, State>, time: Duration) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Whether there is a spool.
    pub fn has_spool(&self) -> bool {
        self.has_spool
    }

    fn spool(&self) -> MutexGuard<'_, Option<Spool>> {
        self.spool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the spool, so that another process may open it.
    pub fn close_spool(&self) {
        *self.spool() = None;
    }

    /// Takes the oldest request if the queue is too full.
    pub fn over_full(&self) -> Option<Waiting> {
        let mut state = self.lock();
        (state.counters.queue_bytes > self.config.max_queue).then(|| state.next()).flatten()
    }

    /// Moves a request that is counted as queued to the disk. The oldest requests there make room for it.
    ///
    /// # Errors
    /// The request, if it cannot be stored.
    pub fn spill(&self, waiting: Waiting) -> Result<(), Waiting> {
        let mut spool = self.spool();
        let Some(spool) = spool.as_mut() else { return Err(waiting) };
        if waiting.bytes() > spool.max_bytes() {
            return Err(waiting);
        }
        while self.lock().counters.spool_bytes + waiting.bytes() > spool.max_bytes() {
            if !self.drop_oldest(spool) {
                return Err(waiting);
            }
        }
        loop {
            match spool.write(&waiting.request) {
                Ok(mut entry) => {
                    entry.strikes = waiting.strikes;
                    let mut state = self.lock();
                    state.counters.queued -= waiting.held();
                    state.counters.spooled += waiting.held();
                    state.counters.spool_bytes += entry.bytes;
                    state.spooled.push_back(entry);
                    return Ok(());
                }
                Err(error) => {
                    let mut state = self.lock();
                    state.counters.spool_failures += 1;
                    state.counters.last_error = Some(format!("the spool cannot be written: {error}"));
                    drop(state);
                    let is_full = matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
                    if !is_full || !self.drop_oldest(spool) {
                        return Err(waiting);
                    }
                }
            }
        }
    }

    /// Drops the oldest request of the spool, if there is any.
    fn drop_oldest(&self, spool: &Spool) -> bool {
        let mut state = self.lock();
        let Some(oldest) = state.spooled.pop_front() else { return false };
        let held = RequestSum::one(oldest.about.amount);
        state.forget_spooled(&oldest);
        state.counters.drop(DropReason::SpoolFull, held);
        drop(state);
        spool.remove(&oldest);
        true
    }

    /// Reads a request from the spool.
    pub fn read(&self, entry: &SpoolEntry) -> Option<Request> {
        self.spool().as_ref()?.read(entry)
    }

    /// Removes a request from the spool. The counters no longer count it.
    pub fn remove(&self, entry: &SpoolEntry) {
        if let Some(spool) = self.spool().as_ref() {
            spool.remove(entry);
        }
    }

    /// Drops a request that is counted as queued.
    pub fn drop_queued(&self, reason: DropReason, waiting: &Waiting) {
        let mut state = self.lock();
        state.counters.queued -= waiting.held();
        state.counters.drop(reason, waiting.held());
    }
}

impl State {
    /// Subtracts a request from the counters of the spool.
    pub fn forget_spooled(&mut self, entry: &SpoolEntry) {
        self.counters.spooled -= RequestSum::one(entry.about.amount);
        self.counters.spool_bytes = self.counters.spool_bytes.saturating_sub(entry.bytes);
    }
}
