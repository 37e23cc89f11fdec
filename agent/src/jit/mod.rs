//! What the JIT compilers of a process have done, which code they gave up on, and what that costs.

mod annotate;
mod annotate_html;
mod samples;
mod shares;
mod take;
mod text;
mod time_text;
mod tree;

use lj_trace_luajit::jit::JitReport;
use lj_trace_luajit::status::VmSummary;
use serde::Serialize;

pub use annotate::{AnnotatedSource, AnnotationError};
pub use annotate_html::page;
pub use samples::{TimeKind, TimeSamples, place};
pub use shares::{TimeReport, TimeRow};
pub use take::{WatchedProcess, WatchedSamples, take, watch};
pub use time_text::headline;

/// What the JIT compilers of a process have done.
#[derive(Clone, Debug, Serialize)]
pub struct JitDump {
    /// The process.
    pub pid: u32,
    /// Its command name.
    pub command: String,
    /// For how long the process was watched, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watched_seconds: Option<f64>,
    /// Where its CPU time went meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<TimeReport>,
    /// Why that is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_samples: Option<String>,
    /// Its VMs.
    pub vms: Vec<VmJit>,
    /// How long it took to read all of this, in milliseconds, without the time of watching.
    pub milliseconds: f64,
}

/// A VM.
#[derive(Clone, Debug, Serialize)]
pub struct VmJit {
    /// The VM's kind and contents. Its number of traces is from the same moment.
    #[serde(flatten)]
    pub summary: VmSummary,
    /// What its memory shows about its JIT compiler.
    pub jit_compiler: JitReport,
}
