//! `cargo xtask soak`: long recordings of nginx under load, of a program that creates functions and VMs all the time,
//! or of a host where processes come and go.

use anyhow::{Result, bail};

use crate::packages::END_TO_END;
use crate::programs::{self, Scope};
use crate::run::{is_root, run};
use crate::toolchain::host_cargo;
use crate::{build, setup};

/// Options of `cargo xtask soak`.
#[derive(clap::Args)]
pub struct Options {
    /// How long it takes
    #[arg(long, default_value_t = 30.0)]
    minutes: f64,

    /// One recording from the beginning to the end, of a program that makes functions, coroutines and VMs all the time: its
    /// memory may not grow in the second half. Two hours are a good choice
    #[arg(long, value_name = "PROFILE")]
    churn: Option<Profile>,

    /// `lj-trace agent`, with processes and VMs that come and go, and a server that is there, refuses, hangs or is gone: nothing
    /// grows, and every sample is accounted for. Two hours are 24 hours of its usual intervals
    #[arg(long, conflicts_with = "churn")]
    agent: bool,
}

/// What a recording from the beginning to the end is of.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Profile {
    /// CPU time.
    Cpu,
    /// Every allocation.
    Memory,
    /// Allocations, estimated from windows.
    Windows,
}

/// Sets up, builds, and soaks; prints the results.
pub fn soak(options: &Options) -> Result<()> {
    setup::setup_for(Scope::Tests)?;
    let binary = build::build(&build::Options::default())?;
    if !is_root() {
        bail!("profiling needs privileges: run the soak as root");
    }
    let mut cargo = host_cargo("test")?;
    let test = match options.churn {
        Some(_) => "soak_memory::",
        None if options.agent => "soak_agent::",
        None => "soak::",
    };
    cargo.args(["--package", END_TO_END, "--test", "end_to_end", "--", test, "--include-ignored", "--nocapture"]);
    cargo.env("LJ_TRACE_SOAK_MINUTES", options.minutes.to_string()).env("LJ_TRACE_BIN", &binary);
    if let Some(profile) = options.churn {
        let name = match profile {
            Profile::Cpu => "cpu",
            Profile::Memory => "memory",
            Profile::Windows => "windows",
        };
        cargo.env("LJ_TRACE_SOAK_MODE", name);
    }
    // Errors say what went wrong; the place in the test does not matter.
    cargo.env("RUST_LIB_BACKTRACE", "0");
    run(cargo.env("LJ_TRACE_TEST_WITHOUT", programs::missing().join(",")))
}
