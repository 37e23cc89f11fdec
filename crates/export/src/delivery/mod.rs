//! Delivers requests to a server: a thread, a queue in memory, a spool on disk, and counters of what became of each.

mod backoff;
mod counters;
mod shared;
mod split;
mod spool;
mod worker;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

pub use self::counters::{RequestSum, SinkCounters};
use self::shared::{Shared, Waiting};
use self::spool::Spool;
use crate::server::{Client, StartError};
use crate::{Amount, DropReason, Request, SinkConfig};

/// The delivery to one server.
pub struct Delivery {
    shared: Arc<Shared>,
    name: String,
}

impl Delivery {
    /// Opens the spool and starts the thread.
    ///
    /// # Errors
    /// The configuration is invalid.
    pub fn start(config: SinkConfig) -> Result<Self, StartError> {
        let client = Client::new(&config)?;
        let mut counters = SinkCounters::default();
        let mut found = Vec::new();
        let spool = match &config.spool {
            Some(folder) => {
                let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
                let folder = folder.join(config.name().chars().map(plain).collect::<String>());
                let opened = Spool::open(&folder, config.max_spool);
                let opened = opened.map_err(|error| StartError::Spool { path: folder, reason: error.to_string() });
                let (spool, entries, unreadable) = opened?;
                counters.unreadable_files = unreadable;
                found = entries;
                Some(spool)
            }
            None => None,
        };
        for entry in &found {
            let held = RequestSum::one(entry.about.amount);
            counters.found += held;
            counters.spooled += held;
            counters.spool_bytes += entry.bytes;
        }
        let name = config.name().to_owned();
        let shared = Arc::new(Shared::new(config, spool, counters, found));
        let for_worker = Arc::clone(&shared);
        let thread = thread::Builder::new().name("lj-export".into());
        thread.spawn(move || worker::run(&for_worker, &client)).map_err(StartError::Thread)?;
        Ok(Self { shared, name })
    }

    /// The name in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Queues requests for what was `recorded`. If the queue is full, the oldest requests go to the spool, or are
    /// dropped.
    pub fn push(&self, requests: Vec<Request>, recorded: Amount) {
        {
            let mut state = self.shared.lock();
            state.counters.recorded += RequestSum { requests: requests.len() as u64, amount: recorded };
            for request in requests {
                state.counters.queued += RequestSum::one(request.about.amount);
                state.queue(Waiting::new(request));
            }
        }
        while let Some(oldest) = self.shared.over_full() {
            if let Err(waiting) = self.shared.spill(oldest) {
                self.shared.drop_queued(DropReason::QueueFull, &waiting);
            }
        }
        self.shared.changed.notify_all();
    }

    /// What became of everything so far.
    pub fn counters(&self) -> SinkCounters {
        self.shared.lock().counters.clone()
    }

    /// Sends for at most `grace`, and spools or drops the rest.
    pub fn shut_down(self, grace: Duration) -> SinkCounters {
        let deadline = Instant::now() + grace;
        let mut state = self.shared.lock();
        state.ending = Some(deadline);
        self.shared.changed.notify_all();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let is_over = state.is_finished || left.is_zero();
            // A request that is being written to the disk is waited for.
            if is_over && !state.is_spilling {
                break;
            }
            let wait = left.max(Duration::from_millis(10));
            state = self.shared.wait(state, wait);
        }
        // What is in flight may arrive all the same: better sent twice than lost.
        state.is_abandoned = true;
        let mut rest: Vec<Waiting> = state.in_flight.take().into_iter().collect();
        rest.extend(state.take_queue());
        drop(state);
        for waiting in rest {
            if let Err(waiting) = self.shared.spill(waiting) {
                self.shared.drop_queued(DropReason::ShutDown, &waiting);
            }
        }
        self.counters()
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        self.shared.lock().is_abandoned = true;
        self.shared.changed.notify_all();
        // The thread may wait for a server a while longer; what it then sends from the disk is sent twice.
        self.shared.close_spool();
    }
}
