//! Merges two stacks into one: the Lua frames that the kernel half walked and the native frames that were unwound, joined
//! at the C frames that both sides know.

mod base;
mod merge;

pub use base::{SettledTop, fix_innermost_frame};
pub use merge::{INLINED, Innermost, JoinedFrame, MergedStack, Unresolved, merge};
