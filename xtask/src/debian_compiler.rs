//! A compiler for arm64 where rustup has none: Debian's, with its library for arm64 beside it.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::debian_arm64::Apt;
use crate::run::output;
use crate::toolchain::Target;
use crate::{apt, paths};

/// Debian's compiler, and its cargo.
const RUSTC: &str = "/usr/bin/rustc";
pub const CARGO: &str = "/usr/bin/cargo";

/// The folder for everything.
fn folder() -> PathBuf {
    paths::cache().join("aarch64-rust")
}

/// The command that compiles for arm64, if it was set up.
pub fn compiler() -> Option<PathBuf> {
    Some(folder().join("rustc")).filter(|command| command.is_file())
}

/// Sets it up: Debian has the library of the compiler in use for arm64, in a package of the same name and version.
///
/// # Errors
/// There is no such compiler, or the package cannot be fetched.
pub fn set_up() -> Result<()> {
    ensure!(Path::new(RUSTC).is_file() && Path::new(CARGO).is_file(), "there is no {RUSTC}");
    let host = Path::new("/usr/lib/rustlib").join(crate::toolchain::host());
    let package = apt::owner(&host).with_context(|| format!("no package owns {}", host.display()))?;
    let version = output(Command::new("dpkg-query").args(["--show", "--showformat=${Version}", &package]))?;
    let folder = folder();
    let apt = Apt::set_up(&folder.join("apt"))?;
    apt.update()?;
    apt.download(&format!("{package}={version}"))?;
    let unpacked = folder.join("unpacked");
    apt.unpack(&unpacked)?;
    let libraries = folder.join("sysroot/lib/rustlib");
    fs::create_dir_all(&libraries)?;
    let name = Target::Aarch64.name();
    for (from, name) in
        [(host.as_path(), crate::toolchain::host()), (&unpacked.join("usr/lib/rustlib").join(name), name.to_owned())]
    {
        let link = libraries.join(name);
        if link.symlink_metadata().is_ok() {
            fs::remove_file(&link)?;
        }
        symlink(from, &link).with_context(|| format!("cannot make {}", link.display()))?;
    }
    let script = format!("#!/bin/sh\nexec {RUSTC} --sysroot '{}' \"$@\"\n", folder.join("sysroot").display());
    let command = folder.join("rustc");
    fs::write(&command, script)?;
    fs::set_permissions(&command, fs::Permissions::from_mode(0o755))?;
    Ok(())
}
