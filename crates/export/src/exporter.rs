//! A sink, from what was recorded to what was sent.

use std::time::Duration;

use lj_trace_profile::Interval;

use crate::delivery::Delivery;
use crate::encode::Encoder;
use crate::{Amount, SinkConfig, SinkCounters, StartError};

/// A sink that runs: it takes profiles in, and a thread of it delivers them.
pub struct Exporter {
    encoder: Box<dyn Encoder>,
    delivery: Delivery,
    /// What was taken in and is not in a request yet.
    open: Amount,
}

impl Exporter {
    /// Starts the thread. What an earlier run left in the spool is sent too.
    ///
    /// # Errors
    /// The configuration cannot work. That a server does not answer is no error.
    pub fn start(config: SinkConfig) -> Result<Self, StartError> {
        let encoder = config.kind.encoder(config.encode_options());
        Ok(Self { encoder, delivery: Delivery::start(config)?, open: Amount::NONE })
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        self.delivery.name()
    }

    /// Takes in what was recorded of a process. It takes memory and no I/O.
    pub fn add(&mut self, interval: &Interval<'_>) {
        // What is there is counted from the profile, not from what was made of it.
        let totals = interval.profile.weighted().totals();
        for measure in interval.profile.measures() {
            self.open.count(&measure, measure.value(&totals));
        }
        self.encoder.add(interval);
    }

    /// All processes of a round were added: what was taken in is sent. It writes to a disk only if the queue is full.
    pub fn end_round(&mut self) {
        let requests = self.encoder.take();
        self.delivery.push(requests, std::mem::take(&mut self.open));
    }

    /// What became of all that was taken in until the last end of a round.
    pub fn counters(&self) -> SinkCounters {
        self.delivery.counters()
    }

    /// Sends what it has, for no longer than `grace`; the rest is spooled, or dropped and counted where there is no spool.
    pub fn shut_down(mut self, grace: Duration) -> SinkCounters {
        self.end_round();
        self.delivery.shut_down(grace)
    }
}
