//! Checks of the code by the compilers: lints and documentation.

use anyhow::Result;

use crate::build;
use crate::run::{at_leisure, output, run};
use crate::test_binaries::linter;
use crate::toolchain::host_cargo;

/// Checks the documentation of everything but the BPF programs, at the lowest priority, so that tests can run
/// meanwhile; and the lints, if the build of the tests has not.
///
/// # Errors
/// There are warnings or errors.
pub fn check_at_leisure() -> Result<()> {
    if linter().is_none() {
        output(&mut at_leisure(host_cargo("clippy")?.args(["--all-targets", "--", "-D", "warnings"])))?;
    }
    output(&mut at_leisure(host_cargo("doc")?.arg("--no-deps").env("RUSTDOCFLAGS", "-Dwarnings")))?;
    Ok(())
}

/// Compiler warnings are errors in the BPF programs, too. (The distribution's compiler comes without clippy.)
///
/// # Errors
/// There are warnings, or there is no toolchain.
pub fn check_bpf() -> Result<()> {
    let mut cargo = build::bpf_cargo("check", build::BpfPrograms::Shipped, None)?;
    // Including the programs that only a benchmark has.
    cargo.args(["--features", "bench", "-Zwarnings", "--config", "build.warnings=\"deny\""]);
    run(&mut cargo)
}
