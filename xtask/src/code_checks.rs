//! Checks of the code by the compilers: lints and documentation.

use std::process::Command;

use anyhow::Result;

use crate::build;
use crate::packages::END_TO_END;
use crate::run::{at_leisure, output, run};
use crate::test_binaries::linter;
use crate::toolchain::{Target, host_cargo};

/// Checks the documentation of everything but the BPF programs, at the lowest priority, so that tests can run
/// meanwhile; the lints, if the build of the tests has not; and what is compiled for arm64.
///
/// # Errors
/// There are warnings or errors.
pub fn check_at_leisure() -> Result<()> {
    if linter().is_none() {
        output(&mut at_leisure(host_cargo("clippy")?.args(["--all-targets", "--", "-D", "warnings"])))?;
    }
    output(&mut at_leisure(host_cargo("doc")?.arg("--no-deps").env("RUSTDOCFLAGS", "-Dwarnings")))?;
    check_for(Target::Aarch64)
}

/// Checks that lj-trace and its tests compile for another kind of machine, without warnings, if the tools for that are
/// there: nothing is installed.
fn check_for(machine: Target) -> Result<()> {
    if !machine.is_installed()? {
        println!(
            "NOT RUN: the code for {}: `cargo xtask build --arch aarch64` installs what that takes",
            machine.name()
        );
        return Ok(());
    }
    let mut cargo = machine.cargo_for_tests("check")?;
    output(&mut at_leisure(cargo.args(["--package", "lj-trace", "--package", END_TO_END, "--all-targets"])))?;
    output(&mut at_leisure(&bpf_check(Some(machine))?)).map(drop)
}

/// Compiler warnings are errors in the BPF programs, too. (The distribution's compiler comes without clippy.)
///
/// # Errors
/// There are warnings, or there is no toolchain.
pub fn check_bpf() -> Result<()> {
    run(&mut bpf_check(None)?)
}

/// The command that checks the BPF programs for `machine`, or else for this machine.
fn bpf_check(machine: Option<Target>) -> Result<Command> {
    let mut cargo = build::bpf_cargo("check", build::BpfPrograms::Shipped, machine)?;
    // Including the programs that only a benchmark has.
    cargo.args(["--features", "bench", "-Zwarnings", "--config", "build.warnings=\"deny\""]);
    Ok(cargo)
}
