//! Memory profiles whose cost is bounded: the allocator is probed in short windows only, and what happened between them
//! is estimated from what can be had without probes: the collector's counters, and samples of CPU time.
//!
//! [`windows`] opens and closes the windows, in a thread of its own, at times that its policy chooses. [`counters`] reads
//! the collector's counters, in another. What both observe goes to whoever records, in the terms of [`observation`].

pub mod counters;
pub mod estimate;
pub mod lifetimes;
pub mod observation;
pub mod windows;

use observation::Nanos;

/// The time now, by the clock that all observations have.
pub fn now() -> Nanos {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock is there on every Linux, and `time` is written by the call alone.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}
