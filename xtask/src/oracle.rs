//! `cargo xtask oracle`: random programs whose every sample has one legal answer.

use anyhow::{Result, bail};

use crate::packages::END_TO_END;
use crate::programs::{self, Scope};
use crate::run::{is_root, run};
use crate::toolchain::{Target, host_cargo};
use crate::{aarch64, build, setup};

/// Options of `cargo xtask oracle`.
#[derive(clap::Args)]
pub struct Options {
    /// Run it on another kind of machine, an emulated one
    #[arg(long, value_enum)]
    arch: Option<Target>,
    /// The kind of machine to emulate
    #[arg(long, value_enum, default_value_t, requires = "arch")]
    kind: aarch64::Kind,
    /// How long the emulated machine may take, in minutes
    #[arg(long, default_value_t = 600, requires = "arch")]
    minutes: u64,
    /// What the oracle is told: `--seeds 1000 --program luajit --jit both --keep FOLDER`, and more that `--help` behind
    /// `--` lists
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Sets up, builds, and runs the oracle.
pub fn oracle(options: &Options) -> Result<()> {
    if let Some(Target::Aarch64) = options.arch {
        return aarch64::oracle(options.kind, options.arguments.clone(), options.minutes);
    }
    setup::setup_for(Scope::Tests)?;
    let binary = build::build(&build::Options::default())?;
    if !is_root() {
        bail!("profiling needs privileges: run the oracle as root");
    }
    let mut cargo = host_cargo("run")?;
    cargo.args(["--quiet", "--package", END_TO_END, "--bin", "oracle", "--"]).args(&options.arguments);
    // Errors say what went wrong; the place in the oracle does not matter.
    cargo.env("LJ_TRACE_BIN", &binary).env("RUST_LIB_BACKTRACE", "0");
    run(cargo.env("LJ_TRACE_TEST_WITHOUT", programs::missing().join(",")))
}
