//! What recording costs the target: counts and times from the kernel, and the cost of entering the programs.

use std::fmt;

use lj_trace_common::config::Counter;

use crate::calibrate::ProbeCost;
use crate::programs::Counts;

/// What recording has cost the target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// The cost, in seconds of CPU time.
    pub seconds: f64,
    /// The part of it that events on threads cost at context switches.
    pub switching: f64,
    /// The cost as a share of the target's CPU time; [`None`] if that time could not be read.
    pub share: Option<f64>,
    /// The number of samples, or of calls of the allocator.
    pub events: u64,
    /// What an event is called.
    pub event: &'static str,
    /// Whether the way into the programs was measured on this machine.
    pub measured: bool,
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seconds, switching, share, events, event, measured } = self;
        write!(f, "{seconds:.3} s")?;
        if let Some(share) = share {
            write!(f, ", {:.2}% of its CPU time", share * 100.0)?;
        }
        if *events != 0 {
            write!(f, " ({:.2} us a {event}", (seconds - switching) * 1e6 / *events as f64)?;
            if *switching > 0.0 {
                write!(f, ", and {switching:.3} s at context switches")?;
            }
            f.write_str(if *measured { ")" } else { ", partly assumed: probes could not be measured here)" })?;
        }
        Ok(())
    }
}

/// How many times as much a call costs in a window as a call that is one of many. The measured times of the programs,
/// and of the way into them, are those of one of many. In a window, the kernel finds caches that the target has filled,
/// and the other way round, each time anew. From alternating blocks with and without windows (`cargo xtask bench
/// bounded`, docs/bounded.md): 2.1 ±0.3.
pub const IN_WINDOW: f64 = 2.1;

/// What the kernel has counted up to some moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Ticks of the sampler, and nanoseconds in its program.
    samples: (u64, u64),
    /// Ticks without a sample.
    left_out: u64,
    /// Calls of the allocator; how many of them were timed; nanoseconds in those.
    calls: (u64, u64, u64),
    /// The same for returns of the allocator.
    returns: (u64, u64, u64),
    /// Nanoseconds spent on copying the stacks of allocations.
    stacks: u64,
    /// Calls of the allocator at the edges of windows, which a program sees and ignores.
    outside: u64,
    /// Ticks of the light sampler, and nanoseconds in its program.
    light: (u64, u64),
    /// The same for hits of watchpoints.
    hits: (u64, u64),
    /// Context switches while a sampler's events were on threads.
    switches: u64,
}

impl Counted {
    /// What these programs have counted so far.
    pub fn read(programs: &Counts) -> Self {
        let [calls, calls_timed, call_time] =
            [Counter::AllocatorCalls, Counter::CallsTimed, Counter::CallTime].map(|counter| programs.count(counter));
        let [returns, returns_timed, return_time] =
            [Counter::AllocatorReturns, Counter::ReturnsTimed, Counter::ReturnTime]
                .map(|counter| programs.count(counter));
        Self {
            samples: (programs.count(Counter::Sampled), programs.count(Counter::SampleTime)),
            left_out: programs.count(Counter::LeftOut),
            calls: (calls, calls_timed, call_time),
            returns: (returns, returns_timed, return_time),
            stacks: programs.count(Counter::StackTime),
            outside: programs.count(Counter::CallsOutside),
            light: (programs.count(Counter::ActivitySampled), programs.count(Counter::ActivityTime)),
            hits: (programs.count(Counter::WatchpointHits), programs.count(Counter::WatchpointTime)),
            switches: 0,
        }
    }

    /// The same counts, with this many context switches of the target.
    pub fn with_switches(self, switches: u64) -> Self {
        Self { switches, ..self }
    }

    /// The number of samples in the CPU profile.
    pub fn samples(&self) -> u64 {
        self.samples.0 - self.left_out.min(self.samples.0)
    }

    /// Seconds that context switches have cost, if each costs `each` seconds.
    pub fn switching(&self, each: f64) -> f64 {
        self.switches as f64 * each
    }

    /// Seconds that samples have cost, without the ticks that decide when to take one.
    pub fn samples_alone(&self) -> f64 {
        self.samples.1 as f64 * 1e-9
    }

    /// The number of calls of the allocator.
    pub fn calls(&self) -> u64 {
        self.calls.0
    }

    /// Seconds that the CPU profile has cost.
    pub fn cpu_profile(&self, probes: ProbeCost) -> f64 {
        let (samples, nanoseconds) = self.samples;
        samples as f64 * probes.tick + nanoseconds as f64 * 1e-9 + self.switching(probes.switch)
    }

    /// Seconds that the memory profile has cost.
    pub fn memory_profile(&self, probes: ProbeCost) -> f64 {
        let of = |(runs, timed, nanoseconds): (u64, u64, u64), probe: f64| {
            let program = if timed == 0 { 0.0 } else { nanoseconds as f64 * 1e-9 / timed as f64 };
            runs as f64 * (probe + program)
        };
        of(self.calls, probes.call) + of(self.returns, probes.returned) + self.stacks as f64 * 1e-9
    }

    /// Seconds that the edges of windows have cost.
    pub fn edges(&self, probes: ProbeCost) -> f64 {
        self.outside as f64 * probes.call
    }

    /// Seconds that the parts outside windows, which always run, have cost: light samples and watchpoints.
    pub fn beside(&self, probes: ProbeCost) -> f64 {
        let of = |(times, nanoseconds): (u64, u64), each: f64| times as f64 * each + nanoseconds as f64 * 1e-9;
        of(self.light, probes.tick) + of(self.hits, probes.hit) + self.switching(probes.light_switch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROBES: ProbeCost =
        ProbeCost { call: 0.5e-6, returned: 0.25e-6, tick: 10e-6, hit: 5e-6, switch: 0.6e-6, light_switch: 0.7e-6 };

    #[test]
    fn programs_are_timed_now_and_then_and_count_for_all() {
        let counted = Counted {
            samples: (100, 500_000),
            left_out: 0,
            calls: (1_000_000, 100, 30_000),
            returns: (400_000, 50, 5_000),
            stacks: 1_000_000,
            outside: 1000,
            light: (10, 10_000),
            hits: (100, 20_000),
            switches: 0,
        };
        let cpu = counted.cpu_profile(PROBES);
        assert!((cpu - 0.0015).abs() < 1e-9, "{cpu}");
        // 1 M x (0.5 + 0.3) us, 0.4 M x (0.25 + 0.1) us, and 1 ms.
        let memory = counted.memory_profile(PROBES);
        assert!((memory - (0.8 + 0.14 + 0.001)).abs() < 1e-9, "{memory}");
        let [edges, beside] = [counted.edges(PROBES), counted.beside(PROBES)];
        assert!((edges - 0.000_5).abs() < 1e-9, "{edges}");
        assert!((beside - (0.000_1 + 0.000_01 + 0.000_5 + 0.000_02)).abs() < 1e-9, "{beside}");
        assert_eq!(Counted::default().memory_profile(PROBES), 0.0);
        let switched = counted.with_switches(1000);
        let more = [switched.cpu_profile(PROBES) - cpu, switched.beside(PROBES) - beside];
        assert!((more[0] - 0.000_6).abs() < 1e-9 && (more[1] - 0.000_7).abs() < 1e-9, "{more:?}");
    }

    #[test]
    fn is_told_in_one_line() {
        let cost =
            Cost { seconds: 0.5, switching: 0.0, share: Some(0.25), events: 1_000_000, event: "call", measured: true };
        assert_eq!(cost.to_string(), "0.500 s, 25.00% of its CPU time (0.50 us a call)");
        let unknown = Cost { share: None, measured: false, ..cost };
        assert_eq!(unknown.to_string(), "0.500 s (0.50 us a call, partly assumed: probes could not be measured here)");
        let switching = Cost { seconds: 0.75, switching: 0.25, ..cost };
        assert_eq!(
            switching.to_string(),
            "0.750 s, 25.00% of its CPU time (0.50 us a call, and 0.250 s at context switches)"
        );
        assert_eq!(Cost { seconds: 0.0, events: 0, ..cost }.to_string(), "0.000 s, 25.00% of its CPU time");
    }
}
