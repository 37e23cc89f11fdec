//! Processes allocation events: names them, and passes them to the stream of their VM and to the profile that reports are
//! made from.

mod allocation_stacks;
mod c_callers;
mod c_symbols;
mod definitions;
mod estimation;
mod events;
mod first_symbols;
mod ledger;
mod listener;
mod name_search;
mod outputs;
mod request_summary;
mod requests;
mod room;
mod stream_traces;
mod summary;
mod trace_lines;
mod window_tally;

pub use c_symbols::CSymbols;
pub use estimation::Estimation;
pub use events::{MemoryEvents, MemoryTally};
pub use ledger::{Gap, Ledger, LedgerFile, OtherCalls, VmCalls};
pub use listener::{AllocationListener, SharedListener};
pub use outputs::{MemoryOutputOptions, MemoryOutputs};
pub use request_summary::{AllocationRequestSummary, RequestSums};
pub use requests::{AllocationRequests, Serving};
pub use room::NameRoom;
pub use summary::{EstimateSummary, MemorySummary};
