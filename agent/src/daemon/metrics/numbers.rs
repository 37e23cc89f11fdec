//! The metrics, in Prometheus's text format.

use std::fmt;

use lj_trace_engine::session::Totals;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use crate::daemon::discovery::DiscoveryState;
use crate::daemon::own_usage::Usage;
use crate::daemon::sinks::SinkState;

/// The agent's state in numbers.
#[derive(Clone, Debug, Default)]
pub struct Numbers {
    /// How many processes are recorded now.
    pub recorded: usize,
    /// Of how many of them the allocations are recorded.
    pub with_allocations: usize,
    /// The sums over all processes so far.
    pub totals: Totals,
    /// The state of discovery.
    pub found: DiscoveryState,
    /// How many times recording a process failed.
    pub refused: u64,
    /// How many profiles were not empty.
    pub profiles: u64,
    /// The agent's own use.
    pub usage: Usage,
    /// What became of the profiles.
    pub sinks: Vec<SinkState>,
}

impl Numbers {
    /// The metrics in Prometheus's format.
    pub fn text(&self) -> String {
        let mut registry = Registry::with_prefix("lj_trace");
        registry.register_collector(Box::new(self.clone()));
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = text::encode(&mut text, &registry);
        text
    }

    /// A one-line status for the service manager.
    pub fn status(&self) -> String {
        let (sent, recorded) = self.sinks.iter().fold((0, 0), |sum, sink| (sum.0 + sink.sent, sum.1 + sink.recorded));
        format!(
            "{} processes, {} samples; {sent} of {recorded} sent; {:.1}% of a CPU, {} MiB",
            self.recorded,
            self.totals.samples,
            self.usage.cpu * 100.0,
            self.usage.memory >> 20
        )
    }
}

/// The labels of a value.
type Labels<'a> = [(&'a str, &'a str)];

/// Writes the values of one metric.
struct Values<'a, 'b> {
    encoder: &'a mut DescriptorEncoder<'b>,
}

impl Values<'_, '_> {
    fn counters<'v>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (Vec<(&'v str, &'v str)>, u64)>,
    ) -> fmt::Result {
        let mut metric = self.encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in values {
            let labels: &Labels<'_> = &labels;
            ConstCounter::new(value).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn gauge(&mut self, name: &str, help: &str, unit: Option<&Unit>, value: f64) -> fmt::Result {
        let metric = self.encoder.encode_descriptor(name, help, unit, MetricType::Gauge)?;
        ConstGauge::new(value).encode(metric)
    }
}

impl Collector for Numbers {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut values = Values { encoder: &mut encoder };
        values.gauge("processes", "Processes that are recorded", None, self.recorded as f64)?;
        let with_allocations = self.with_allocations as f64;
        values.gauge("processes_with_allocations", "Those whose allocations are recorded", None, with_allocations)?;
        let left_out = self.found.left_out.len() as f64;
        values.gauge("processes_left_out", "LuaJIT processes that are not recorded", None, left_out)?;
        values.gauge("cpu_ratio", "CPU time that the agent uses, as a share of one CPU", None, self.usage.cpu)?;
        values.gauge("memory", "Memory that the agent uses", Some(&Unit::Bytes), self.usage.memory as f64)?;
        let one = |value| [(Vec::new(), value)];
        values.counters("recordings", "Processes that were recorded so far", one(self.totals.processes))?;
        values.counters("recordings_failed", "Recordings that an error ended", one(self.totals.failed))?;
        values.counters("attach_failures", "Processes that could not be recorded", one(self.refused))?;
        values.counters("samples", "CPU samples", one(self.totals.samples))?;
        let lost = self.totals.lost.iter().map(|(reason, count)| (vec![("reason", *reason)], *count));
        values.counters("samples_lost", "CPU samples that were lost, by reason", lost)?;
        let help = "CPU time that recording has cost the processes";
        let mut cost =
            values.encoder.encode_descriptor("target_cost", help, Some(&Unit::Seconds), MetricType::Counter)?;
        for (profile, spent) in ["cpu", "memory"].into_iter().zip(self.totals.cost) {
            let labels: &Labels<'_> = &[("profile", profile)];
            ConstCounter::new(spent.as_secs_f64()).encode(cost.encode_family(&labels)?)?;
        }
        values.counters("profiles", "Profiles that were handed to the sinks", one(self.profiles))?;
        let each = |of: fn(&SinkState) -> u64| {
            self.sinks.iter().map(move |sink| (vec![("sink", sink.name.as_str())], of(sink)))
        };
        values.counters("sink_recorded", "What a sink was given, in samples", each(|sink| sink.recorded))?;
        values.counters("sink_sent", "What has arrived", each(|sink| sink.sent))?;
        values.counters("sink_failures", "Attempts to send that have failed", each(|sink| sink.failures))?;
        let dropped = self.sinks.iter().flat_map(|sink| {
            let of = move |(reason, count): &'_ (String, u64)| (reason.clone(), *count);
            sink.dropped.iter().map(move |dropped| (sink.name.clone(), of(dropped)))
        });
        let dropped: Vec<_> = dropped.collect();
        let dropped = dropped
            .iter()
            .map(|(sink, (reason, count))| (vec![("sink", sink.as_str()), ("reason", reason.as_str())], *count));
        values.counters("sink_dropped", "What nobody will get, by reason", dropped)?;
        for (name, help, of) in [
            ("sink_queued", "What waits in memory", (|sink| sink.queued) as fn(&SinkState) -> u64),
            ("sink_spooled", "What waits on disk", |sink| sink.spooled),
        ] {
            let mut metric = values.encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for sink in &self.sinks {
                let labels: &Labels<'_> = &[("sink", sink.name.as_str())];
                ConstGauge::new(of(sink)).encode(metric.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use super::*;

    /// The names of metrics in a text.
    fn names(text: &str) -> BTreeSet<&str> {
        let is_part = |c: char| c.is_ascii_lowercase() || c == '_';
        text.match_indices("lj_trace_")
            .map(|(at, _)| &text[at..])
            .map(|rest| &rest[..rest.find(|c| !is_part(c)).unwrap_or(rest.len())])
            .collect()
    }

    #[test]
    fn the_dashboard_and_its_page_have_each_metric_and_no_other() {
        let text = Numbers::default().text();
        let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
        let made: BTreeSet<String> = types
            .map(|(name, kind)| if kind == "counter" { format!("{name}_total") } else { name.to_owned() })
            .collect();
        assert!(made.len() > 10, "{text}");
        let made: BTreeSet<&str> = made.iter().map(String::as_str).collect();
        let dashboard = include_str!("../../../../packaging/grafana/lj-trace-agent.json");
        assert!(serde_json::from_str::<serde_json::Value>(dashboard).unwrap()["panels"].is_array());
        assert_eq!(names(dashboard), made);
        assert_eq!(names(include_str!("../../../../docs/agent.md")), made);
    }

    #[test]
    fn prometheus_reads_the_numbers() {
        let sink = SinkState {
            name: "otlp \"x\"".to_owned(),
            recorded: 10,
            sent: 7,
            spooled: 1,
            dropped: vec![("too large".to_owned(), 2)],
            ..SinkState::default()
        };
        let cost = [1500, 250].map(Duration::from_millis);
        let totals = Totals { samples: 42, lost: [("ring full", 3)].into(), cost, ..Totals::default() };
        let text = Numbers { recorded: 5, totals, sinks: vec![sink], ..Numbers::default() }.text();
        for line in [
            "# TYPE lj_trace_processes gauge",
            "lj_trace_processes 5.0",
            "lj_trace_samples_total 42",
            "lj_trace_samples_lost_total{reason=\"ring full\"} 3",
            "lj_trace_sink_sent_total{sink=\"otlp \\\"x\\\"\"} 7",
            "lj_trace_sink_dropped_total{sink=\"otlp \\\"x\\\"\",reason=\"too large\"} 2",
            "lj_trace_sink_spooled{sink=\"otlp \\\"x\\\"\"} 1",
            "lj_trace_memory_bytes 0.0",
            "lj_trace_target_cost_seconds_total{profile=\"cpu\"} 1.5",
            "lj_trace_target_cost_seconds_total{profile=\"memory\"} 0.25",
            "# EOF",
        ] {
            assert!(text.lines().any(|own| own == line), "{line} is not in\n{text}");
        }
    }
}
