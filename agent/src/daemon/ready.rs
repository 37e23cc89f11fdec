//! What the agent reports to a service manager and the journal.

use std::time::Duration;

use lj_trace_engine::session::Observer;
use lj_trace_engine::{Options, RecordTarget, Recording, Session};
use lj_trace_probes::journal::{Priority, say};

use super::config::AgentConfig;
use crate::service::notify::Notifier;

/// Reports to both.
#[derive(Debug, Default)]
pub struct Ready(Notifier);

impl Ready {
    /// Reports that the agent looks for processes from now on.
    pub fn tell(&self, config: &AgentConfig) {
        let text = format!("recording all LuaJIT processes: {config}");
        say(Priority::Info, &text);
        self.0.ready(&text);
    }

    /// Reports that the agent is alive; to be called every second.
    pub fn is_alive(&self, status: impl FnOnce() -> String) {
        self.0.is_alive();
        self.0.progress(status);
    }
}

impl Observer for Ready {
    fn announce(&self, _options: &Options, target: &RecordTarget, recording: &Recording, attach: Duration) {
        let vms = recording.vms_so_far().max(target.vms.len());
        let milliseconds = attach.as_secs_f64() * 1e3;
        log::info!("recording {} with {vms} VMs, attached in {milliseconds:.0} ms", target.name());
    }

    fn ready(&self, _session: &Session<'_>) {}

    fn update(&self, _session: &Session<'_>, _elapsed: Duration) {}

    fn stopping(&self, why: &str) {
        self.0.stopping(why);
    }

    fn finish(&self) {}
}
