//! Traces from inside: which functions were compiled into a trace, and which one a machine instruction belongs to.
//!
//! [`Body`] reads a trace whole; [`frames`] decodes the frames of its snapshots; [`reading`] finds all ways through the
//! bytecode that can have been recorded; [`attribution`] puts machine code, intermediate code and bytecode side by side.

mod ancestors;
pub mod around;
pub mod attribution;
pub mod body;
pub mod cast;
pub mod copied;
pub mod copies;
pub mod effort;
mod exit_stub;
pub mod frames;
pub mod ir;
pub mod known;
pub mod machine;
#[cfg(test)]
mod made;
pub mod reading;
pub mod resolve;
pub mod stacks;

pub use around::Around;
pub use attribution::{Attribution, Attributor, Chain, Span};
pub use body::{Body, BodyError, Snapshot};
pub use cast::{Callee, Cast};
pub use copied::identity;
pub use effort::Allowance;
pub use ir::Numbering;
pub use known::{KnownTrace, Sought, Traces};
pub use resolve::{Hit, NoTrace, OnTrace, is_on_trace, resolve};
