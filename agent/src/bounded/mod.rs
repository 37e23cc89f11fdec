//! Memory profiles whose cost is bounded: the allocator is probed in short windows only, and what happened between them
//! is estimated from what can be had without probes: the collector's counters, and samples of CPU time.

pub mod estimate;
pub mod observation;
