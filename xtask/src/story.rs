//! `cargo xtask story`: runs the stories of the guide, and leaves their pictures in `target/stories`.

use anyhow::{Result, bail};

use crate::packages::END_TO_END;
use crate::programs::{self, Scope};
use crate::run::{is_root, run};
use crate::toolchain::host_cargo;
use crate::{build, paths, setup};

/// Options of `cargo xtask story`.
#[derive(clap::Args)]
pub struct Options {
    /// worker, leak or fallback; all of them if none is named
    names: Vec<String>,
    /// How long each recording takes, in seconds
    #[arg(long, default_value_t = 5)]
    seconds: u32,
}

/// Sets up, builds, and runs the stories.
pub fn story(options: &Options) -> Result<()> {
    setup::setup_for(Scope::Tests)?;
    let binary = build::build(&build::Options::default())?;
    if !is_root() {
        bail!("profiling needs privileges: run the story as root");
    }
    let mut cargo = host_cargo("run")?;
    cargo.args(["--quiet", "--package", END_TO_END, "--bin", "story", "--"]).arg(paths::target().join("stories"));
    cargo.arg(options.seconds.to_string()).args(&options.names).env("LJ_TRACE_BIN", &binary);
    // Errors say what went wrong; the place in the story does not matter.
    cargo.env("RUST_LIB_BACKTRACE", "0");
    run(cargo.env("LJ_TRACE_TEST_WITHOUT", programs::missing().join(",")))
}
