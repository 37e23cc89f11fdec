//! What the fuzz targets call: the same as `agent/tests/fuzz.rs`.

#[path = "../../crates/luajit/tests/saved/mod.rs"]
mod saved;
#[path = "../../agent/tests/fuzz/targets.rs"]
pub mod targets;
