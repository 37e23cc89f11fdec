//! x86-64.

mod accessor;
mod fiber_self;
mod follow;

pub use accessor::read_accessor;
pub use fiber_self::read_fiber_self;
