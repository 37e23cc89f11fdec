//! Support for the end-to-end tests: real LuaJIT programs, their workloads, and `lj-trace` runs on them.
//!
//! The tests use lj-trace as its users do: the binary, its command line, and the files it writes. They need root
//! (they attach to other processes) and what `cargo xtask setup` and `cargo xtask build` leave in `target`; where
//! something is missing they fail and say what to run, so that a green run always means that they ran.

pub mod alike;
pub mod allocations;
pub mod attach_time;
pub mod back_ends;
pub mod benches;
pub mod blockers;
pub mod bounded_run;
pub mod capabilities;
pub mod chance;
pub mod code;
pub mod compiled;
pub mod consumers;
pub mod counted_requests;
pub mod crafted;
pub mod disk;
pub mod engines;
pub mod estimates;
pub mod family;
pub mod fibers;
pub mod folded;
pub mod function_names;
pub mod heap;
pub mod host_agent;
pub mod hosts;
pub mod inlined;
pub mod jit_programs;
pub mod jit_verbose;
pub mod labelled;
pub mod leaking;
pub mod measured;
pub mod memory_truth;
pub mod nginx;
pub mod off_cpu;
pub mod oracle;
pub mod own_process;
pub mod own_terminal;
pub mod pauses;
pub mod plugins;
pub mod profiles;
pub mod programs;
pub mod readers;
pub mod recording;
pub mod refusing;
pub mod requests;
pub mod routes;
pub mod screen;
pub mod server;
pub mod shares;
pub mod skips;
pub mod slope;
pub mod source;
pub mod standstill;
pub mod stepping;
pub mod stories;
pub mod systemd;
pub mod traced_requests;
pub mod tracer;
pub mod usage;
pub mod vm_per_thread;
pub mod waits;
pub mod windows;
pub mod workload;
pub mod written;
pub mod wrk;

use std::env;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How many times slower than others this machine is, as `LJ_TRACE_TEST_PATIENCE` says: an emulated one, say.
pub fn slower() -> u64 {
    let factor = env::var("LJ_TRACE_TEST_PATIENCE").ok().and_then(|factor| factor.parse().ok());
    factor.unwrap_or(1).max(1)
}

/// How long a test waits for something that takes `seconds` at most on other machines.
pub fn patience(seconds: u64) -> Duration {
    Duration::from_secs(seconds * slower())
}

/// The folder of all that is built: `CARGO_TARGET_DIR` or `target` in the workspace.
pub fn target_folder() -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests lie in the workspace");
    workspace.join(env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}
