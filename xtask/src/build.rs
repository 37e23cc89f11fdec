//! `cargo xtask build`: the BPF programs, then the agent with them inside.

use std::path::PathBuf;

use anyhow::{Context as _, Result};

use crate::paths;
use crate::run::run;
use crate::toolchain::{BpfToolchain, host_cargo};

/// Options of `cargo xtask build`.
#[derive(clap::Args)]
pub struct Options {
    /// Build the agent without optimization, as target/debug/lj-trace
    #[arg(long)]
    pub debug: bool,
}

/// Builds lj-trace and gives the binary's path. What setup installs must be there.
pub fn build(options: &Options) -> Result<PathBuf> {
    let object = build_bpf()?;
    let mut cargo = host_cargo("build")?;
    cargo.args(["--package", "lj-trace", "--bin", "lj-trace"]).env("LJ_TRACE_BPF_OBJECT", object);
    if !options.debug {
        cargo.arg("--release");
    }
    run(&mut cargo)?;
    let profile = if options.debug { "debug" } else { "release" };
    Ok(paths::target().join(profile).join("lj-trace"))
}

/// Builds the BPF programs, always optimized as the kernel's verifier wants them, and gives the object's path.
pub fn build_bpf() -> Result<PathBuf> {
    let toolchain = BpfToolchain::find().context("no BPF toolchain: run `cargo xtask setup`")?;
    let mut cargo = toolchain.cargo("build")?;
    run(cargo.args(["--release", "--package", "lj-trace-ebpf"]))?;
    Ok(paths::target().join("bpf/bpfel-unknown-none/release/lj-trace-probe"))
}
