//! Where CPU samples go: streams, the profile that reports are written from, whoever looks on.

pub mod about_process;
mod answer;
mod listener;
mod outputs;
pub(crate) mod reports;
mod streams;
mod summary;

pub use answer::{Looks, answer};
pub use listener::SampleListener;
pub use outputs::Outputs;
pub use reports::CpuReports;
pub use streams::JitSamples;
pub use summary::{Summary, Verbosity, describe_state};
