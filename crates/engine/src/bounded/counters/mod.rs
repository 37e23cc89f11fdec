//! The counters of the collectors, read from outside while the target runs: what was allocated shows in them without any
//! probe.

mod collector;
mod cpu_time;
mod other_cpu;
mod place;
mod reader;

pub use reader::Counters;
