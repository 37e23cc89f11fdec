//! Profiles as text, in at most 100 columns on a terminal, and in full elsewhere.

pub mod cpu;
pub mod label;
pub mod memory;
mod table;

pub use label::Room;
pub use table::{COLUMNS, fit, fit_end, percent};
