//! The way of a CPU sample through user space: unwound, its two stacks merged, its frames named, and handed to
//! whoever wants it: the profile for reports, the stream on disk.

mod machine_code;
mod naming;
mod outputs;
mod pipeline;
mod summary;

pub use outputs::Outputs;
pub use pipeline::{Code, Pipeline, Resolved, ResolvedFrame, Tally};
pub use summary::Summary;
