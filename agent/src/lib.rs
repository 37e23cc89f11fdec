//! The command line of lj-trace, and what records: samples are unwound, their stacks merged and named, and written as streams
//! or reports. What it stands on are the crates beside it, each of which knows only those below:
//!
//! - [`lj_trace_process`], [`lj_trace_text`]: other processes, and how what they say is shown
//! - [`lj_trace_unwind`], [`lj_trace_luajit`]: native stacks, and the VMs
//! - [`lj_trace_probes`]: the BPF programs
//! - [`lj_trace_streams`], [`lj_trace_profile`], [`lj_trace_estimate`]: what is written, and what is estimated

pub mod bounded;
pub mod commands;
pub mod doctor;
pub mod dump;
pub mod exit;
pub mod host;
mod logging;
pub mod record;
pub mod service;
pub mod stack;
pub mod top;
