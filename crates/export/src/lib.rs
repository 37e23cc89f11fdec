//! Sends profiles to servers: [OTLP](otlp), Pyroscope and Parca.
//!
//! An [`Exporter`] gets what was recorded: one [`Interval`](lj_trace_profile::Interval) for each process and kind of a
//! round. It turns them into [`Request`]s, which a thread of its own delivers. The thread waits and retries, keeps on
//! disk what it cannot send, and counts everything ([`SinkCounters`]): at each moment, what was recorded is what was
//! sent, plus what waits, plus what was dropped for a reason. [`check`] finds out what a server is and whether it
//! stores what it accepts.

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
