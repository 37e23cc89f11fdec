//! What the benchmark of allocation probes compares lj-trace with (`cargo xtask bench memprof`). Only the benchmark's
//! own build has these programs.

mod empty;
mod least;
