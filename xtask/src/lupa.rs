//! The Python package `lupa`, which contains several LuaJITs: installed from PyPI, into a folder of its own.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};

use crate::paths;
use crate::run::run;

/// Its name among the tests.
pub const NAME: &str = "lupa";
/// The version that is tested.
const VERSION: &str = "2.8";

fn folder() -> PathBuf {
    paths::programs().join(NAME)
}

/// Whether it is installed.
pub fn is_here() -> bool {
    folder().join("lupa/__init__.py").is_file()
}

/// Whether it can be installed: that needs Python with pip.
pub fn can_be_had() -> bool {
    let mut pip = Command::new("python3");
    let pip = pip.args(["-m", "pip", "--version"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    pip.status().is_ok_and(|status| status.success())
}

/// Installs it into its folder.
pub fn install() -> Result<()> {
    let partial = folder().with_extension("partial");
    if partial.exists() {
        std::fs::remove_dir_all(&partial).with_context(|| format!("cannot remove {}", partial.display()))?;
    }
    let mut pip = Command::new("python3");
    pip.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--root-user-action",
        "ignore",
    ]);
    run(pip.arg("--target").arg(&partial).arg(format!("{NAME}=={VERSION}")))?;
    std::fs::rename(&partial, folder()).with_context(|| format!("cannot make {}", folder().display()))
}
