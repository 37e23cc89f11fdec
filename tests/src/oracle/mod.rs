//! An oracle that generates: random Lua programs whose every sample has one legal answer.
//!
//! Each Lua function of a program calls a C function of its own. So a sample in C tells which Lua function must stand
//! above it, and the program's generator which calls may stand above that. Nothing of this comes from lj-trace.

pub mod complete;
pub mod defined;
pub mod generate;
pub mod judge;
pub mod legal;
pub mod native;
pub mod plan;
pub mod profile;
pub mod run;
pub mod shrink;
pub mod sites;
pub mod text;
pub mod truth;

pub use generate::{Program, generate};
pub use judge::{Judge, Verdict};
pub use run::{Figures, Settings, record};

/// The file name of a program, and so of its main chunk.
pub const SCRIPT: &str = "oracle.lua";
