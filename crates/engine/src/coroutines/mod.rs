//! The coroutines of a running VM: copied, and their Lua stacks walked, without eBPF and without stopping anything.
//!
//! The process runs on while it is read, so whoever wants to be sure reads [`twice`](snapshots::twice) and compares.

mod snapshot;
pub mod snapshots;
pub mod threads;
pub mod view;
mod walked;

pub use snapshot::{CoroutineSnapshot, LuaStack, Status};
pub use walked::WalkedStack;
