//! What the compilers say of the code: lints and documentation.

use std::process::Command;

use anyhow::{Result, bail};

use crate::build;
use crate::run::{output, run};
use crate::toolchain::{BpfToolchain, host_cargo};

/// Lints and documentation of everything but the BPF programs, at the lowest priority, so that tests can run meanwhile.
///
/// # Errors
/// There is something to mend: what.
pub fn check_at_leisure() -> Result<()> {
    output(&mut at_leisure(host_cargo("clippy")?.args(["--all-targets", "--", "-D", "warnings"])))?;
    output(&mut at_leisure(host_cargo("doc")?.arg("--no-deps").env("RUSTDOCFLAGS", "-Dwarnings")))?;
    Ok(())
}

/// The same command, run by `nice`.
fn at_leisure(command: &Command) -> Command {
    let mut nice = Command::new("nice");
    nice.args(["-n", "19"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => nice.env(name, value),
            None => nice.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        nice.current_dir(folder);
    }
    nice
}

/// Compiler warnings are errors in the BPF programs too. (The distribution's compiler comes without clippy.)
///
/// # Errors
/// There are some, or there is no toolchain.
pub fn check_bpf() -> Result<()> {
    let Some(toolchain) = BpfToolchain::find() else { bail!("no BPF toolchain: run `cargo xtask setup`") };
    let mut cargo = toolchain.cargo("check", &build::BpfPrograms::Shipped.target())?;
    // With those that only a benchmark has.
    cargo.args([
        "--release",
        "--package",
        "lj-trace-ebpf",
        "--features",
        "bench",
        "-Zwarnings",
        "--config",
        "build.warnings=\"deny\"",
    ]);
    run(&mut cargo)
}
