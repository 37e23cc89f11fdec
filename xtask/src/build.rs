//! `cargo xtask build`: the BPF programs, then the agent with them inside.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};

use crate::paths;
use crate::run::run;
use crate::toolchain::{BpfToolchain, HOST, host_cargo, static_cargo};

/// What tells the agent's build script where the compiled BPF programs are.
pub const BPF_OBJECT: &str = "LJ_TRACE_BPF_OBJECT";

/// Options of `cargo xtask build`.
#[derive(Default, clap::Args)]
pub struct Options {
    /// Build the agent without optimization, as target/debug/lj-trace
    #[arg(long)]
    pub debug: bool,
    /// Have the BPF programs log what they do: `lj-trace record -vv` shows it
    #[arg(long)]
    pub bpf_log: bool,
}

/// Builds lj-trace and gives the binary's path: one that needs no shared library, if it is optimized and the C library
/// allows it. What setup installs must be there.
pub fn build(options: &Options) -> Result<PathBuf> {
    let object = build_bpf(options.bpf_log)?;
    let program = ["--package", "lj-trace", "--bin", "lj-trace"];
    let built = |profile: &str| paths::target().join(profile).join("lj-trace");
    if options.debug {
        run(host_cargo("build")?.args(program).env(BPF_OBJECT, object))?;
        return Ok(built("debug"));
    }
    let binary = built("release");
    match static_cargo("build")? {
        Some(mut cargo) => {
            run(cargo.args(program).arg("--release").env(BPF_OBJECT, object))?;
            // Where everybody looks for it. A new file: the old one may be running.
            let new = binary.with_extension("new");
            fs::create_dir_all(paths::target().join("release"))?;
            fs::copy(built(&format!("{HOST}/release")), &new)?;
            fs::rename(new, &binary)?;
        }
        None => run(host_cargo("build")?.args(program).arg("--release").env(BPF_OBJECT, object))?,
    }
    Ok(binary)
}

/// Builds the BPF programs, always optimized as the kernel's verifier wants them, and gives the object's path.
pub fn build_bpf(log: bool) -> Result<PathBuf> {
    let toolchain = BpfToolchain::find().context("no BPF toolchain: run `cargo xtask setup`")?;
    let mut cargo = toolchain.cargo("build")?;
    cargo.args(["--release", "--package", "lj-trace-ebpf"]);
    if log {
        cargo.args(["--features", "log"]);
    }
    if std::env::consts::ARCH == "aarch64" {
        // Their own target does not tell which machine they are for; aya's bindings want to know it, too.
        cargo.args(["--features", "traced-aarch64"]).env("AYA_BPF_TARGET_ARCH", "aarch64");
    }
    run(&mut cargo)?;
    Ok(bpf_object())
}

/// Where [`build_bpf`] puts the object.
pub fn bpf_object() -> PathBuf {
    paths::target().join("bpf/bpfel-unknown-none/release/lj-trace-probe")
}
