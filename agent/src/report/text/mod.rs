//! Profiles as text, in at most 100 columns.

pub mod cpu;
pub mod memory;
mod table;

pub use table::{COLUMNS, fit, percent};
