//! The live view: what a process is doing right now, as functions, lines, allocations and traces, in a terminal.
//!
//! A [`App`] takes in what a recording hands out (samples, allocation events) and what is read of the process between
//! two pictures ([`Gauges`]), sums it up over the last seconds ([`TopWindow`]), and changes with the keys that are
//! pressed ([`Action`]). [`view`] draws it. Neither knows the terminal or the recording, so both are tested without.

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
