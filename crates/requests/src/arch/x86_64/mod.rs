//! x86-64.

mod accessor;
mod fiber_self;
mod follow;

pub use accessor::{read_accessor, read_reference};
pub use fiber_self::read_fiber_self;
