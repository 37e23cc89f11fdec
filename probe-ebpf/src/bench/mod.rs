//! What the benchmark of allocation probes compares with (`cargo xtask bench memprof`). Only its own build has these programs.

mod empty;
mod least;
