//! A sink: from what was recorded to what was sent.

use std::time::Duration;

use lj_trace_profile::Interval;

use crate::delivery::Delivery;
use crate::encode::Encoder;
use crate::{Amount, SinkConfig, SinkCounters, StartError};

/// A running sink: it collects profiles, and a thread of its own delivers them.
pub struct Exporter {
    encoder: Box<dyn Encoder>,
    delivery: Delivery,
    /// The collected amount that is not in a request yet.
    open: Amount,
}

impl Exporter {
    /// Starts the thread. It also sends what an earlier run left in the spool.
    ///
    /// # Errors
    /// The configuration is invalid. A server that does not answer is no error.
    pub fn start(config: SinkConfig) -> Result<Self, StartError> {
        let encoder = config.kind.encoder(config.encode_options());
        Ok(Self { encoder, delivery: Delivery::start(config)?, open: Amount::NONE })
    }

    /// The name in messages.
    pub fn name(&self) -> &str {
        self.delivery.name()
    }

    /// Adds what was recorded of a process. This allocates memory, but does no I/O.
    pub fn add(&mut self, interval: &Interval<'_>) {
        // Count the profile itself, not the encoded requests: only then do the counters show what encoding loses.
        let totals = interval.profile.weighted().totals();
        for measure in interval.profile.measures() {
            self.open.count(&measure, measure.value(&totals));
        }
        self.encoder.add(interval);
    }

    /// To be called after all processes of a round were added: queues what was collected. This writes to a disk only if
    /// the queue is full.
    pub fn end_round(&mut self) {
        let requests = self.encoder.take();
        self.delivery.push(requests, std::mem::take(&mut self.open));
    }

    /// The counters of everything that was collected up to the last end of a round.
    pub fn counters(&self) -> SinkCounters {
        self.delivery.counters()
    }

    /// Sends for at most `grace`. The rest goes to the spool; without a spool, it is dropped and counted.
    pub fn shut_down(mut self, grace: Duration) -> SinkCounters {
        self.end_round();
        self.delivery.shut_down(grace)
    }
}
