//! Memory profiles of bounded cost: the allocator is probed in short windows only, and what happens between them is
//! estimated from the collector's counters and samples of CPU time, which need no probes.
//!
//! [`windows`] opens and closes the windows, in a thread of its own, at times that its policy chooses. [`counters`] reads
//! the collector's counters, in another thread. Both report their observations in the types of
//! [`lj_trace_estimate::observation`].

pub mod counters;
pub mod lifetimes;
pub mod windows;

use lj_trace_estimate::observation::Nanos;

use lj_trace_process::clocks::ClockId;

/// The current time, on the clock that all observations use.
pub fn now() -> Nanos {
    // Every Linux has this clock.
    ClockId::MONOTONIC.read().map_or(0, |time| time.as_nanos() as Nanos)
}
