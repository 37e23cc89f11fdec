//! Passes CPU samples to streams, to the profile that reports are made from, and to listeners.

pub mod about_process;
mod answer;
mod listener;
mod off_cpu;
mod outputs;
pub(crate) mod reports;
mod streams;
mod summary;

pub use answer::{Looks, answer};
pub use listener::SampleListener;
pub use off_cpu::{OffCpuSummary, SchedAccount};
pub use outputs::Outputs;
pub use reports::CpuReports;
pub use streams::JitSamples;
pub use summary::{Summary, Verbosity, describe_state};
