//! x86-64.

mod accessor;
mod calls;
mod fiber_self;
mod follow;
mod harmless;

pub use accessor::{read_accessor, read_reference};
pub use calls::count_calls;
pub use fiber_self::read_fiber_self;
pub use harmless::only_reads_on;
