//! One stack out of two: the Lua frames that the kernel walked and the native frames that were unwound, put
//! together at the C frames that both sides know.

mod base;
mod merge;

pub use base::{SettledTop, fix_innermost_frame};
pub use merge::{INLINED, Innermost, JoinedFrame, MergedStack, Unresolved, merge};
