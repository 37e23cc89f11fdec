//! The command line of lj-trace. It builds on these crates; each of them uses only crates below it:
//!
//! - the engine, [`lj_trace_engine`], which records
//! - [`lj_trace_heap`]: snapshots of a Lua heap
//! - [`lj_trace_probes`]: the BPF programs
//! - [`lj_trace_streams`], [`lj_trace_profile`]: the files that it writes
//! - [`lj_trace_unwind`], [`lj_trace_luajit`]: native stacks, and the VMs
//! - [`lj_trace_process`], [`lj_trace_text`]: other processes, and how to display their text

pub mod blockers;
pub mod commands;
pub mod daemon;
pub mod doctor;
pub mod dump;
pub mod exit;
pub mod host;
pub mod jit;
mod logging;
pub mod service;
pub mod top;
