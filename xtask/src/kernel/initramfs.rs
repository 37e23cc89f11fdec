//! The initramfs: a shell, the modules for the root file system, and a script that mounts it.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use super::guest::quoted;
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
broken() { echo "@@ broken: $1"; $b poweroff -f; }
ROOT
for folder in tmp run; do $b mount -t tmpfs none /host/$folder; done
CLONE
$b mount -t proc none /host/proc
$b mount -t sysfs none /host/sys
$b mount -t devtmpfs none /host/dev
exec $b switch_root /host /bin/sh "#;

/// Makes the shared folder the root.
const SHARED: &str = "$b mount -t virtiofs -o ro host /host || broken 'no root file system'";

/// Copies the root into memory, without what only people read.
const COPIED: &str = "\
$b mount -t virtiofs -o ro host /shared || broken 'no root file system'
$b mount -t tmpfs -o mode=755 none /host
$b mkdir -p /host/usr/share
for file in /shared/* /shared/usr/* /shared/usr/share/*; do
  case ${file#/shared/} in
    usr|usr/share|usr/share/doc|usr/share/info|usr/share/locale|usr/share/man) ;;
    *) $b cp -a \"$file\" \"/host/${file#/shared/}\" || broken \"cannot copy $file\" ;;
  esac
done
$b umount /shared";

/// Where the machine's root comes from.
pub enum Origin<'a> {
    /// It is the shared folder `host`.
    Shared,
    /// It is a copy of the shared folder `host`, in memory.
    ///
    /// QEMU keeps what it has translated of the code in a page of memory until it sees a write to that page. It does not
    /// see the writes of virtiofsd, which is a process of its own. Usually the kernel clears a page before it has a file
    /// read into it, and QEMU sees that; but arm64's kernel does so by `dc zva`, of which QEMU before 8.2 sees only the
    /// first byte in each 64. If such a page had held code that ran, that code may run again in place of the file's.
    Copied {
        /// A folder of this machine, shared under the name `clone`, which the machine mounts at the same path.
        clone: &'a Path,
        /// Programs of the clone: the machine runs their copies in [`PROGRAMS`].
        programs: &'a [&'a Path],
    },
}

/// Where the machine has copies of the clone's programs.
const PROGRAMS: &str = "/lj-trace/copies";

/// The path at which the machine has the copy of a program of the clone.
pub fn copy_of(program: &Path) -> PathBuf {
    Path::new(PROGRAMS).join(program.file_name().unwrap_or_default())
}

impl Origin<'_> {
    /// The whole script.
    fn init(&self, script: &Path) -> String {
        let (root, clone) = match self {
            Self::Shared => (SHARED, String::new()),
            Self::Copied { clone, programs } => {
                let mut lines = format!(
                    "$b mount -t virtiofs -o ro clone {}\n$b mkdir -p '/host{PROGRAMS}'",
                    quoted(&format!("/host{}", clone.display()))
                );
                for program in *programs {
                    let from = quoted(&format!("/host{}", program.display()));
                    let _ = write!(lines, "\n$b cp {from} '/host{PROGRAMS}/' || broken 'cannot copy a program'");
                }
                (COPIED, lines)
            }
        };
        let init = INIT.replace("ROOT", root).replace("CLONE", &clone);
        format!("{init}{}\n", quoted(&script.display().to_string()))
    }
}

/// Creates the archive in `folder`, with a shell for the machine's processor. It runs `script`, a file of this machine.
pub fn make(image: &Image, shell: &Path, origin: &Origin<'_>, script: &Path, folder: &Path) -> Result<PathBuf> {
    let root = tempfile::tempdir_in(folder)?;
    let at = |path: &str| root.path().join(path);
    for inside in ["bin", "modules", "host", "shared", "dev"] {
        fs::create_dir(at(inside))?;
    }
    fs::copy(shell, at("bin/busybox")).with_context(|| format!("no {}", shell.display()))?;
    std::os::unix::fs::symlink("busybox", at("bin/sh"))?;
    let found = MODULES.iter().filter_map(|module| image.module(module));
    for (index, file) in found.enumerate() {
        fs::write(at(&format!("modules/{index}.ko")), module(&file)?)?;
    }
    fs::write(at("init"), origin.init(script))?;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The folders that the machine mounts, each with the file system.
    fn mounts(init: &str) -> Vec<(&str, &str)> {
        let commands = init.lines().filter_map(|line| line.strip_prefix("$b mount -t ")?.split(" ||").next());
        commands.filter_map(|command| Some((command.split(' ').next()?, command.rsplit(' ').next()?))).collect()
    }

    #[test]
    fn no_program_runs_from_a_shared_folder() {
        let programs = [Path::new("/clone/target/it's"), Path::new("/clone/target/lj-trace")];
        let origin = Origin::Copied { clone: Path::new("/clone"), programs: &programs };
        let init = origin.init(Path::new("/clone/script"));
        let shared: Vec<_> = mounts(&init).into_iter().filter(|(system, _)| *system == "virtiofs").collect();
        assert_eq!(shared, [("virtiofs", "/shared"), ("virtiofs", "'/host/clone'")]);
        assert!(mounts(&init).contains(&("tmpfs", "/host")), "{init}");
        assert!(init.contains("$b umount /shared\n"), "{init}");
        assert!(init.contains("$b cp '/host/clone/target/it'\\''s' '/host/lj-trace/copies/'"), "{init}");
        for program in programs {
            assert!(!copy_of(program).starts_with("/clone"));
        }
    }

    #[test]
    fn a_root_may_be_shared() {
        let init = Origin::Shared.init(Path::new("/script"));
        assert_eq!(mounts(&init)[0], ("virtiofs", "/host"));
        assert!(init.ends_with("exec $b switch_root /host /bin/sh '/script'\n"), "{init}");
    }
}
