//! Parquet files as a sink.

use lj_trace_probes::journal::{Priority, say};
use lj_trace_profile::Interval;
use lj_trace_store::{Store, StoreConfig, StoreError};

use super::{HostSink, SinkState};

/// Stores profiles in files on this host.
pub struct StoreSink {
    store: Store,
    name: String,
}

impl StoreSink {
    /// Opens the folder.
    ///
    /// # Errors
    /// The folder is not writable, or another process writes to it.
    pub fn open(config: StoreConfig) -> Result<Self, StoreError> {
        let name = config.folder.display().to_string();
        Ok(Self { store: Store::open(config)?, name })
    }

    fn pass_on_notices(&mut self) {
        self.store.take_notices().iter().for_each(|notice| say(Priority::Warning, &format!("lj-trace: {notice}")));
    }
}

impl HostSink for StoreSink {
    fn add(&mut self, interval: &Interval<'_>) {
        self.store.add(interval);
    }

    fn end_round(&mut self) {
        self.store.end_round();
        self.pass_on_notices();
    }

    fn state(&self) -> SinkState {
        let counts = self.store.counts();
        SinkState {
            name: self.name.clone(),
            recorded: counts.added.samples,
            sent: counts.written.samples,
            queued: counts.pending.samples,
            spooled: 0,
            dropped: counts.dropped.iter().map(|(reason, amount)| (reason.to_string(), amount.samples)).collect(),
            failures: counts.failures,
        }
    }

    fn shut_down(self: Box<Self>) {
        let Self { store, name } = *self;
        for (reason, amount) in store.close().dropped {
            let text = format!("lj-trace: {name}: LOST {} samples: {reason}", amount.samples);
            say(Priority::Warning, &text);
        }
    }
}
