//! Interprets samples: unwinds them, merges their stacks, names their frames.

mod gone_areas;
mod layout_decision;
mod machine_code;
mod naming;
mod pipeline;
mod plugins;
mod requests;
mod return_probe;
mod routes;
mod stack_ends;
mod thread_names;
mod trace_ids;
mod trace_table;
mod vm_places;
mod vm_work;
mod wait_reason;

pub use layout_decision::LayoutDecision;
pub use machine_code::machine_code;
pub use naming::{Namer, UNSEARCHED};
pub use pipeline::{Code, Pipeline, Resolved, ResolvedFrame, Tally};
pub(crate) use requests::labels;
pub use requests::{LabelLayout, RequestLabeller, RequestTally, SampleRequest};
pub(crate) use routes::{ProcessRoutes, code_around};
pub use trace_table::{SampledTrace, TraceTable};
