//! What becomes of what the probes hand out. A CPU sample is unwound, its two stacks are merged, its frames named,
//! and it goes to whoever wants it: the profile for reports, the stream on disk. An allocation event is
//! named and goes into the stream of its VM and the memory profile for reports.

pub mod about_process;
mod allocation_stacks;
mod c_callers;
mod c_symbols;
mod definitions;
mod estimation;
mod layout_decision;
mod ledger;
mod listener;
mod machine_code;
mod memory;
mod memory_outputs;
mod naming;
mod output_file;
pub mod outputs;
pub mod pieces;
mod pipeline;
mod reports;
mod room;
mod stack_ends;
mod stream_file;
mod stream_traces;
mod summary;
mod thread_names;
mod trace_lines;
mod trace_table;
mod vm_places;
mod vm_work;
mod window_tally;

pub use c_symbols::CSymbols;
pub use estimation::Estimation;
pub use layout_decision::LayoutDecision;
pub use ledger::{Gap, Ledger, LedgerFile, OtherCalls, VmCalls};
pub use listener::{AllocationListener, SampleListener, SharedListener};
pub use machine_code::machine_code;
pub use memory::{MemoryEvents, MemoryTally};
pub use memory_outputs::{MemoryOutputOptions, MemoryOutputs};
pub use naming::Namer;
pub use output_file::{OutputFile, allow_replacing};
pub use outputs::{JitSamples, Outputs};
pub use pipeline::{Code, Pipeline, Resolved, ResolvedFrame, Tally};
pub use reports::CpuReports;
pub use room::Room;
pub use summary::{EstimateSummary, MemorySummary, Summary, describe_state};
pub use trace_table::{SampledTrace, TraceTable};
