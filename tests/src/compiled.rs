//! Programs and libraries in C, from `tests/hosts`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

/// Names the folder with what was compiled on another machine, if this one has no compiler.
const COMPILED: &str = "LJ_TRACE_TEST_COMPILED";

/// What is compiled for such a machine: files with options for the compiler.
const ALL: [(&str, &[&str]); 9] = [
    ("churn.c", &[]),
    ("hostile.c", &[]),
    ("late.c", &[]),
    ("ledger.c", &[]),
    ("newcomers.c", &[]),
    ("vms.c", &[]),
    ("vms.c", &["-O0"]),
    ("clock.c", LIBRARY),
    ("module.c", LIBRARY),
];

/// Options for a library.
pub const LIBRARY: &[&str] = &["-shared", "-fPIC"];

/// Compiles a file from `tests/hosts`, by `$CC`, or copies what was compiled before.
///
/// # Errors
/// If there is no C compiler, or it refuses.
pub fn compile(source: &str, binary: &Path, options: &[&str]) -> Result<()> {
    if let Some(compiled) = elsewhere(&name(source, options)) {
        std::fs::copy(&compiled, binary).with_context(|| format!("cannot copy {}", compiled.display()))?;
        return Ok(());
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("hosts").join(source);
    let mut cc = compiler();
    if cfg!(target_arch = "aarch64") && options != LIBRARY {
        // See `library.h`.
        cc.arg("-no-pie");
    }
    cc.args(["-O2", "-Wall", "-Werror", "-pthread"]).args(options).arg("-o").arg(binary).arg(path).arg("-ldl");
    let status = cc.status().context("cannot run cc: install a C compiler")?;
    if !status.success() {
        bail!("cc cannot compile {source}: {status}");
    }
    Ok(())
}

/// The compiler, `$CC`, with the options in `$CFLAGS`.
pub fn compiler() -> Command {
    let mut cc = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    cc.args(std::env::var("CFLAGS").unwrap_or_default().split_whitespace());
    cc
}

/// The path of a file that was compiled on another machine; [`None`] if this machine is to compile it.
pub fn elsewhere(name: &str) -> Option<PathBuf> {
    Some(Path::new(&std::env::var_os(COMPILED)?).join(name))
}

/// Compiles everything for a machine without a compiler, into a folder.
///
/// # Errors
/// As [`compile`].
pub fn compile_all(folder: &Path) -> Result<()> {
    ALL.iter().try_for_each(|(source, options)| compile(source, &folder.join(name(source, options)), options))
}

/// The name of what a file is compiled to.
fn name(source: &str, options: &[&str]) -> String {
    format!("{source}{}", options.concat())
}
