//! What the JIT compilers of a process have done, and what they gave up on.

mod take;
mod text;
mod tree;

use lj_trace_luajit::jit::JitReport;
use lj_trace_luajit::status::VmSummary;
use serde::Serialize;

pub use take::take;

/// What a process' JIT compilers have done.
#[derive(Clone, Debug, Serialize)]
pub struct JitDump {
    /// The process.
    pub pid: u32,
    /// Its command name.
    pub command: String,
    /// Its VMs.
    pub vms: Vec<VmJit>,
    /// For how long it was watched, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watched_seconds: Option<f64>,
    /// How long it took to look at all of this, in milliseconds, without the time that it was watched.
    pub milliseconds: f64,
}

/// A VM.
#[derive(Clone, Debug, Serialize)]
pub struct VmJit {
    /// What it is and has. Its number of traces is that of the same moment.
    #[serde(flatten)]
    pub summary: VmSummary,
    /// What its memory says about its JIT compiler.
    pub jit_compiler: JitReport,
}
