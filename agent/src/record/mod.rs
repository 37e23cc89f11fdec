//! What becomes of what the probes hand out. A CPU sample is unwound, its two stacks are merged, its frames named,
//! and it goes to whoever wants it: the profile for reports, the stream on disk. An allocation event goes into the
//! stream of its VM.

mod allocation_stacks;
mod machine_code;
mod memory;
mod naming;
mod outputs;
mod pipeline;
mod summary;

pub use allocation_stacks::AllocationStacks;
pub use memory::{MemoryStream, MemoryTally};
pub use outputs::{Format, Outputs, create, failed, numbered, parse_output};
pub use pipeline::{Code, Pipeline, Resolved, ResolvedFrame, Tally};
pub use summary::{MemorySummary, Summary};
