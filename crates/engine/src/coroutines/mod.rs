//! Reads the coroutines of a running VM: copies them and walks their Lua stacks, without eBPF and without stopping
//! anything.
//!
//! The process runs on during a read. To be certain, read [`twice`](snapshots::twice) and compare.

mod snapshot;
pub mod snapshots;
pub mod threads;
pub mod view;
mod walked;

pub use snapshot::{CoroutineSnapshot, LuaStack, Status};
pub use walked::WalkedStack;
