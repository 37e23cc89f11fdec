//! Looks inside traces: which functions were compiled into a trace, and which of them a machine instruction belongs to.
//!
//! [`TraceBody`] reads a whole trace; [`frames`] decodes the frames of its snapshots; [`reading`] finds all paths through the
//! bytecode that can have been recorded; [`attribution`] aligns machine code, intermediate code and bytecode.

mod ancestors;
pub mod attribution;
pub mod body;
pub mod cache;
pub mod effort;
mod exit_frames;
#[cfg(test)]
pub(crate) mod fixtures;
pub mod frames;
pub mod functions;
pub mod ir;
pub mod live_vm;
pub mod loop_copies;
pub mod reading;
pub mod resolve;
pub mod stacks;
pub mod trace_copy;

pub use attribution::{Attribution, Attributor, Chain, CodeSpan};
pub use body::{BodyError, TraceBody, TraceSnapshot};
pub use cache::{KnownTrace, Sought, Traces};
pub use effort::Allowance;
pub use functions::{Callee, TraceFunctions};
pub use ir::Numbering;
pub use live_vm::LiveVm;
pub use resolve::{Hit, NoTrace, OnTrace, is_on_trace, resolve};
pub use trace_copy::identity;
