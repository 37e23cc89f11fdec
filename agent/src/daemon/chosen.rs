//! Selects the processes to record at a time, if not all of them.
//!
//! With ten thousand hosts, a tenth of their processes tells as much as all, as long as each process has its turn. Time
//! is cut into periods, and in each period every process is selected with the same probability.

use std::time::{SystemTime, UNIX_EPOCH};

use lj_trace_process::Process;
use lj_trace_profile::Resource;

use super::config::AgentConfig;

/// The selection for one period on one host.
#[derive(Clone, Debug)]
pub struct ChosenProcesses {
    probability: f64,
    period: u64,
    host: u32,
}

impl ChosenProcesses {
    /// The number of the current period.
    pub fn period(config: &AgentConfig) -> u64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        now.as_secs() / config.probability_period.as_secs().max(1)
    }

    /// The selection for a period on the host with this identity.
    pub fn at(period: u64, config: &AgentConfig, host: &str) -> Self {
        Self { probability: config.probability, period, host: crc32fast::hash(host.as_bytes()) }
    }

    /// Whether a process is selected.
    pub fn contains(&self, process: &Process) -> bool {
        // A later process with the same number has another stack start.
        self.draws(process.pid(), process.stack_start())
    }

    /// The result is the same in each run of the agent: after a restart, it continues with the same selection.
    fn draws(&self, pid: u32, started: u64) -> bool {
        let mut own = crc32fast::Hasher::new();
        own.update(&self.period.to_le_bytes());
        own.update(&pid.to_le_bytes());
        own.update(&started.to_le_bytes());
        let seed = u64::from(self.host) << 32 | u64::from(own.finalize());
        fastrand::Rng::with_seed(seed).f64() < self.probability
    }

    /// Adds the probability with which a process was selected, so that sums over all processes can be computed.
    pub fn label(&self, resource: &mut Resource) {
        if self.probability < 1.0 {
            resource.set("luajit.probability", self.probability.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_are_chosen_as_were_asked_for_and_others_each_time() {
        const PROCESSES: u32 = 10_000;
        for probability in [0.01, 0.1, 0.5, 1.0] {
            let config = AgentConfig { probability, ..AgentConfig::default() };
            let chosen = |period, host| {
                let chosen = ChosenProcesses::at(period, &config, host);
                (0..PROCESSES).filter(|process| chosen.draws(*process, 0x7ffc_0000_1230)).collect::<Vec<_>>()
            };
            let (first, later, elsewhere) = (chosen(1, "a"), chosen(2, "a"), chosen(1, "b"));
            // Four standard deviations of a binomial distribution.
            let tolerance = 4.0 * (f64::from(PROCESSES) * probability * (1.0 - probability)).sqrt();
            for some in [&first, &later, &elsewhere] {
                assert!((some.len() as f64 - f64::from(PROCESSES) * probability).abs() <= tolerance, "{}", some.len());
            }
            let both = |other: &Vec<u32>| first.iter().filter(|process| other.contains(process)).count() as f64;
            let wanted = f64::from(PROCESSES) * probability * probability;
            for other in [&later, &elsewhere] {
                let off = (both(other) - wanted).abs();
                assert!(off <= 4.0 * (wanted * (1.0 - probability * probability)).sqrt(), "{off} at {probability}");
            }
            assert_eq!(first, chosen(1, "a"));
        }
    }
}
