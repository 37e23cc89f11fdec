//! What the fuzz targets call: the same as `agent/tests/fuzz.rs`.

#[path = "../../agent/tests/saved/mod.rs"]
mod saved;
#[path = "../../agent/tests/fuzz/targets.rs"]
pub mod targets;
