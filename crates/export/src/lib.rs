//! Profiles to servers: [OTLP](otlp), Pyroscope and Parca.
//!
//! An [`Exporter`] is told what was recorded, an [`Interval`](lj_trace_profile::Interval) for each process and kind of a round.
//! It makes [`Request`]s, and a thread of its own delivers them: it tries again, waits, keeps what cannot be sent on disk, and
//! counts all of it ([`SinkCounters`]), so that what was recorded is at each moment what was sent, what waits, and what was
//! dropped for a reason. [`check`] says what a server is and whether it stores what it takes.

mod amount;
pub mod check;
mod config;
pub mod delivery;
mod drop_reason;
pub mod encode;
mod exporter;
pub mod otlp;
pub mod pushed;
mod request;
pub mod server;
mod stacks;

pub use amount::{Amount, KindAmount};
pub use config::{BasicAuth, SinkConfig, SinkKind};
pub use delivery::{RequestSum, SinkCounters};
pub use drop_reason::DropReason;
pub use exporter::Exporter;
pub use pushed::DEFAULT_LABELS;
pub use request::{Request, RequestInfo};
pub use server::StartError;

#[cfg(test)]
mod tests;
