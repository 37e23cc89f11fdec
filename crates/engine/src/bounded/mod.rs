//! Memory profiles of bounded cost: the allocator is probed in short windows only, and what happens between them is
//! estimated from the collector's counters and samples of CPU time, which need no probes.
//!
//! [`windows`] opens and closes the windows, in a thread of its own, at times that its policy chooses. [`counters`] reads
//! the collector's counters, in another. What both observe goes to whoever records, in the terms of
//! [`lj_trace_estimate::observation`].

pub mod counters;
pub mod lifetimes;
pub mod windows;

use lj_trace_estimate::observation::Nanos;

use lj_trace_process::clocks::ClockId;

/// The time now, by the clock that all observations have.
pub fn now() -> Nanos {
    // It is there on every Linux.
    ClockId::MONOTONIC.read().map_or(0, |time| time.as_nanos() as Nanos)
}
