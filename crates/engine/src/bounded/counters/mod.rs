//! The collectors' counters, read from outside while the target runs: they show allocation without any probe.

mod bursts;
mod collector;
mod cpu_time;
mod other_cpu;
mod place;
mod reader;
mod stolen;

pub use reader::Counters;
