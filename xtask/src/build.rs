//! `cargo xtask build`: builds the BPF programs, then the agent that contains them.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::paths;
use crate::run::run;
use crate::toolchain::{BpfToolchain, Target, host, host_cargo, static_cargo};

/// The variable that names the compiled BPF programs for the agent's build script.
pub const BPF_OBJECT: &str = "LJ_TRACE_BPF_OBJECT";

/// Options of `cargo xtask build`.
#[derive(Default, clap::Args)]
pub struct Options {
    /// Build the agent without optimization, as target/debug/lj-trace
    #[arg(long)]
    pub debug: bool,
    /// Build for another kind of machine: target/aarch64-unknown-linux-gnu/release/lj-trace
    #[arg(long, value_enum, conflicts_with = "bpf_log")]
    pub arch: Option<Target>,
    /// Have the BPF programs log what they do: `lj-trace record -vv` shows it
    #[arg(long)]
    pub bpf_log: bool,
}

/// Builds lj-trace and returns the binary's path. An optimized binary needs no shared library, if the C library can be
/// linked statically. Everything that setup installs must be there.
pub fn build(options: &Options) -> Result<PathBuf> {
    let programs = if options.bpf_log { BpfPrograms::Logging } else { BpfPrograms::Shipped };
    let object = build_bpf(programs, None)?;
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
            // Copied to where everybody looks for it. As a new file, because the old one may be running.
            let new = binary.with_extension("new");
            fs::create_dir_all(paths::target().join("release"))?;
            fs::copy(built(&format!("{}/release", host())), &new)?;
            fs::rename(new, &binary)?;
        }
        None => run(host_cargo("build")?.args(program).arg("--release").env(BPF_OBJECT, object))?,
    }
    Ok(binary)
}

/// Builds, for a benchmark, the program whose probes on allocators do less than lj-trace's, and returns its path.
///
/// It is an example of the crate that attaches probes, with BPF programs that lj-trace does not have.
pub fn build_bare_probes() -> Result<PathBuf> {
    let object = build_bpf(BpfPrograms::Bench, None)?;
    let example = ["--package", "lj-trace-probes", "--example", "bare_probes", "--release"];
    let (mut cargo, folder) = match static_cargo("build")? {
        Some(cargo) => (cargo, paths::target().join(host())),
        None => (host_cargo("build")?, paths::target()),
    };
    run(cargo.args(example).env(BPF_OBJECT, object))?;
    Ok(folder.join("release/examples/bare_probes"))
}

/// The path of the object within the target folder of the BPF programs.
const OBJECT: &str = "bpfel-unknown-none/release/lj-trace-probe";

/// A set of BPF programs to build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BpfPrograms {
    /// The programs of lj-trace.
    Shipped,
    /// The same programs, with log messages.
    Logging,
    /// The same programs, and those that a benchmark compares with.
    Bench,
}

impl BpfPrograms {
    /// The target folder: the programs for tests must not change while tests run.
    pub fn target(self) -> PathBuf {
        paths::target().join(if self == Self::Bench { "bpf-bench" } else { "bpf" })
    }

    fn object(self) -> PathBuf {
        self.target().join(OBJECT)
    }
}

/// Builds the BPF programs for `machine`, or else for this machine, always optimized, as the kernel's verifier
/// requires. Returns the object's path.
pub fn build_bpf(programs: BpfPrograms, machine: Option<Target>) -> Result<PathBuf> {
    let mut cargo = bpf_cargo("build", programs, machine)?;
    match programs {
        BpfPrograms::Shipped => {}
        BpfPrograms::Logging => _ = cargo.args(["--features", "log"]),
        BpfPrograms::Bench => _ = cargo.args(["--features", "bench"]),
    }
    run(&mut cargo)?;
    Ok(bpf_target(programs, machine).join(OBJECT))
}

/// A `cargo SUBCOMMAND` for the BPF programs that trace programs of `machine`, or else of this machine.
///
/// # Errors
/// There is no toolchain.
pub fn bpf_cargo(subcommand: &str, programs: BpfPrograms, machine: Option<Target>) -> Result<Command> {
    let toolchain = BpfToolchain::find().context("no BPF toolchain: run `cargo xtask setup`")?;
    let mut cargo = toolchain.cargo(subcommand, &bpf_target(programs, machine))?;
    cargo.args(["--release", "--package", "lj-trace-ebpf"]);
    if machine == Some(Target::Aarch64) || machine.is_none() && std::env::consts::ARCH == "aarch64" {
        // The BPF target does not say which processor the programs are for; aya's bindings need to know, too.
        cargo.args(["--features", "traced-aarch64"]).env("AYA_BPF_TARGET_ARCH", "aarch64");
    }
    Ok(cargo)
}

/// The target folder of the BPF programs.
fn bpf_target(programs: BpfPrograms, machine: Option<Target>) -> PathBuf {
    machine.map_or_else(|| programs.target(), |machine| paths::target().join(machine.name()).join("bpf"))
}

/// The path of lj-trace's compiled BPF programs.
pub fn bpf_object() -> PathBuf {
    BpfPrograms::Shipped.object()
}
