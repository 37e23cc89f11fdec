//! Which processes are recorded at a time, if it is not all of them.
//!
//! Whoever has ten thousand hosts learns as much from a tenth of their processes, as long as each of them has its turn: the time is
//! cut into periods, and in each of them every process is chosen with the same probability.

use std::time::{SystemTime, UNIX_EPOCH};

use lj_trace_process::Process;
use lj_trace_profile::Resource;

use super::config::AgentConfig;

/// What is chosen in one period on one host.
#[derive(Clone, Debug)]
pub struct ChosenProcesses {
    probability: f64,
    period: u64,
    host: u32,
}

impl ChosenProcesses {
    /// The number of the period that it is now.
    pub fn period(config: &AgentConfig) -> u64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        now.as_secs() / config.probability_period.as_secs().max(1)
    }

    /// The choice of a period on the host of that identity.
    pub fn at(period: u64, config: &AgentConfig, host: &str) -> Self {
        Self { probability: config.probability, period, host: crc32fast::hash(host.as_bytes()) }
    }

    /// Whether a process is chosen.
    pub fn contains(&self, process: &Process) -> bool {
        // A process that takes its number later starts elsewhere.
        self.draws(process.pid(), process.stack_start())
    }

    /// The same in each run of the agent: one that is started again goes on with what it had chosen.
    fn draws(&self, pid: u32, started: u64) -> bool {
        let mut own = crc32fast::Hasher::new();
        own.update(&self.period.to_le_bytes());
        own.update(&pid.to_le_bytes());
        own.update(&started.to_le_bytes());
        let seed = u64::from(self.host) << 32 | u64::from(own.finalize());
        fastrand::Rng::with_seed(seed).f64() < self.probability
    }

    /// Says with which probability a process was chosen, so that sums over all can be told from those of the chosen.
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
