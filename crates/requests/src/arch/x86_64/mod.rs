//! x86-64.

mod accessor;

pub use accessor::read_accessor;
