//! A server as a sink.

use std::time::Duration;

use lj_trace_export::{Amount, Exporter, SinkConfig, SinkCounters, StartError};
use lj_trace_probes::journal::{Priority, say};
use lj_trace_profile::Interval;

use super::{HostSink, SinkState};

/// How long sending may take when the agent ends. What remains is kept on disk.
const GRACE: Duration = Duration::from_secs(5);

/// Sends profiles to a server.
pub struct ServerSink {
    exporter: Exporter,
    /// The last reported error.
    said: Option<String>,
    is_verified: bool,
}

impl ServerSink {
    /// Starts sending.
    ///
    /// # Errors
    /// The configuration is invalid.
    pub fn start(config: SinkConfig) -> Result<Self, StartError> {
        Ok(Self { exporter: Exporter::start(config)?, said: None, is_verified: false })
    }

    /// Reports each error once, and also when it is over.
    fn tell(&mut self, counters: &SinkCounters) {
        let name = self.exporter.name();
        if counters.last_error != self.said {
            let text = match &counters.last_error {
                Some(error) => format!("lj-trace: {name}: {error}"),
                None => format!("lj-trace: {name}: profiles are sent again"),
            };
            say(Priority::Warning, &text);
            self.said.clone_from(&counters.last_error);
        }
        if let Some(verdict) = counters.verified.as_ref().filter(|_| !std::mem::replace(&mut self.is_verified, true)) {
            let priority = if verdict.is_good() { Priority::Info } else { Priority::Warning };
            say(priority, &format!("{name}: {verdict}"));
        }
    }
}

impl HostSink for ServerSink {
    fn add(&mut self, interval: &Interval<'_>) {
        self.exporter.add(interval);
    }

    fn end_round(&mut self) {
        self.exporter.end_round();
        let counters = self.exporter.counters();
        self.tell(&counters);
    }

    fn state(&self) -> SinkState {
        let counters = self.exporter.counters();
        let dropped = counters.dropped.iter().map(|(reason, held)| (reason.name().to_owned(), samples(held.amount)));
        SinkState {
            name: self.exporter.name().to_owned(),
            recorded: samples(counters.recorded.amount) + samples(counters.found.amount),
            sent: samples(counters.sent.amount),
            queued: samples(counters.queued.amount),
            spooled: samples(counters.spooled.amount),
            dropped: dropped.collect(),
            failures: counters.retries,
        }
    }

    fn shut_down(self: Box<Self>) {
        let name = self.exporter.name().to_owned();
        let counters = self.exporter.shut_down(GRACE);
        let lost = counters.all_dropped();
        if lost.requests > 0 {
            let reasons: Vec<&str> = counters.dropped.keys().map(|reason| reason.name()).collect();
            let text = format!("lj-trace: {name}: LOST {} samples ({})", samples(lost.amount), reasons.join(", "));
            say(Priority::Warning, &text);
        }
    }
}

/// Samples of CPU time plus allocated objects.
fn samples(amount: Amount) -> u64 {
    amount.cpu.count.saturating_add(amount.allocations.count)
}
