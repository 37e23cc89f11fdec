//! The initramfs: a shell, the modules for the root file system, and a script that mounts it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use super::image::Image;
use crate::run::output;

/// Modules, each after those that it depends on. Some kernels have them built in.
const MODULES: [&str; 7] = [
    "drivers/virtio/virtio_ring",
    "drivers/virtio/virtio",
    "drivers/virtio/virtio_pci_modern_dev",
    "drivers/virtio/virtio_pci_legacy_dev",
    "drivers/virtio/virtio_pci",
    "fs/fuse/fuse",
    "fs/fuse/virtiofs",
];

/// Mounts the root, and continues there with the script whose path follows.
const INIT: &str = r#"#!/bin/sh
b=/bin/busybox
for module in /modules/*; do [ -f "$module" ] && $b insmod "$module"; done
$b mount -t virtiofs -o ro host /host || { echo '@@ broken: no root file system'; $b poweroff -f; }
for folder in tmp run; do $b mount -t tmpfs none /host/$folder; done
CLONE
$b mount -t proc none /host/proc
$b mount -t sysfs none /host/sys
$b mount -t devtmpfs none /host/dev
exec $b switch_root /host /bin/sh "#;

/// Creates the archive in `folder`, with a shell for the machine's processor. It runs `script`, a file of this machine.
/// `clone` is a folder of this machine, shared under that name, which the machine mounts at the same path.
pub fn make(image: &Image, shell: &Path, clone: Option<&Path>, script: &Path, folder: &Path) -> Result<PathBuf> {
    let root = tempfile::tempdir_in(folder)?;
    let at = |path: &str| root.path().join(path);
    for inside in ["bin", "modules", "host", "dev"] {
        fs::create_dir(at(inside))?;
    }
    fs::copy(shell, at("bin/busybox")).with_context(|| format!("no {}", shell.display()))?;
    std::os::unix::fs::symlink("busybox", at("bin/sh"))?;
    let found = MODULES.iter().filter_map(|module| image.module(module));
    for (index, file) in found.enumerate() {
        fs::write(at(&format!("modules/{index}.ko")), module(&file)?)?;
    }
    let mount = |clone: &Path| format!("$b mount -t virtiofs -o ro clone '/host{}'", clone.display());
    let init = INIT.replace("CLONE", &clone.map(mount).unwrap_or_default());
    fs::write(at("init"), format!("{init}'{}'\n", script.display()))?;
    fs::set_permissions(at("init"), PermissionsExt::from_mode(0o755))?;
    let archive = folder.join("initramfs");
    let list = output(Command::new("find").arg(".").current_dir(root.path()))?;
    let mut cpio = Command::new("cpio");
    cpio.args(["--create", "--format=newc", "--quiet"]).current_dir(root.path());
    let mut cpio = cpio.stdin(Stdio::piped()).stdout(fs::File::create(&archive)?).spawn().context("cannot run cpio")?;
    std::io::Write::write_all(&mut cpio.stdin.take().context("no pipe")?, list.as_bytes())?;
    if !cpio.wait()?.success() {
        bail!("cpio failed");
    }
    Ok(archive)
}

/// A module in the form that the kernel loads: uncompressed.
fn module(file: &Path) -> Result<Vec<u8>> {
    let tool = match file.extension().and_then(|ending| ending.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        _ => return Ok(fs::read(file)?),
    };
    let output = Command::new(tool).args(["--decompress", "--stdout"]).arg(file).output();
    let output = output.with_context(|| format!("cannot run {tool}"))?;
    if !output.status.success() {
        bail!("{tool} cannot decompress {}", file.display());
    }
    Ok(output.stdout)
}
