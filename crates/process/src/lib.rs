//! Access to other processes from outside: their maps, their memory, their threads, their files.
//!
//! Nothing here knows about LuaJIT, and nothing here writes to the target. A separate process parses the files that
//! other users may have written ([`sandbox`]).

pub mod breakpoints;
pub mod clocks;
pub mod family;
pub mod files;
mod freezer;
mod kept_maps;
pub mod known_code;
pub mod maps;
pub mod memory;
pub mod namespace;
mod page_map;
mod page_scan;
mod page_words;
pub mod pieces;
pub mod privileges;
pub mod proc_file;
pub mod process;
pub mod sandbox;
pub mod select;
pub mod sockets;
pub mod started;
pub mod switches;
mod thread_pointer;
pub mod tree;

pub use files::TargetFiles;
pub use known_code::KnownCode;
pub use maps::{Mapping, Maps};
pub use memory::ProcessMemory;
pub use page_map::{PageKind, PageMap, page_size};
pub use process::{Exit, Halt, Process, TargetError};
pub use switches::Switches;
pub use tree::{Refused, Tree};
