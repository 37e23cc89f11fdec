//! The live view of a process in a terminal: functions, lines, allocations and traces.
//!
//! An [`App`] receives what a recording delivers (samples, allocation events) and what is read from the process between
//! two pictures ([`Gauges`]). It sums this up over the last seconds ([`TopWindow`]), and reacts to keys ([`Action`]).
//! [`view`] draws it. Neither of them knows the terminal or the recording, so tests need neither.

mod allocations;
mod app;
mod functions;
mod gauges;
mod interpreted;
mod keys;
pub mod overview;
#[cfg(test)]
mod test_sample;
pub mod view;
mod window;

pub use allocations::{AllocationRow, Allocations};
pub use app::{App, Sort, Tab, TopTarget};
pub use functions::{FunctionRow, Functions, LineRow, TraceRow};
pub use gauges::{Gauge, Gauges};
pub use interpreted::{InterpretedPlaces, InterpretedRow};
pub use keys::{Action, action};
pub use window::{Span, TopWindow};
