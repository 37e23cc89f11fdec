//! The process that is profiled, as seen from outside: its maps, its memory, its files.
//!
//! Nothing here knows about LuaJIT, and nothing here writes to the target.

pub mod breakpoints;
pub mod family;
pub mod files;
mod freezer;
pub mod known_code;
pub mod maps;
pub mod memory;
pub mod namespace;
mod page_map;
pub mod process;
pub mod switches;
pub mod tree;

pub use files::TargetFiles;
pub use known_code::KnownCode;
pub use maps::{Mapping, Maps};
pub use memory::ProcessMemory;
pub use page_map::{PageKind, PageMap};
pub use process::{Halt, Process, TargetError};
pub use switches::Switches;
pub use tree::{Refused, Tree};
