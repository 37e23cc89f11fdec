//! A system of another release that contains only what a package brings along.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use super::Packages;
use crate::paths;
use crate::run::{Guarded, is_root, output, run_quietly};

/// The oldest release that the packages support.
const OLDEST: &str = "bullseye";
/// How long the tests may take to create it, if there is none yet, in seconds.
const PATIENCE: u64 = 40;

/// The folder of such a system.
pub struct CleanRoot(PathBuf);

impl CleanRoot {
    /// The system that the tests use; [`None`], after printing the reason, if it cannot be created quickly.
    pub fn of_tests() -> Result<Option<Self>> {
        if !is_root() {
            println!("NOT RUN: the packages in a clean root: that takes root");
            return Ok(None);
        }
        let folder = paths::cache().join(format!("root-{OLDEST}"));
        match Self::make(OLDEST, &folder, Some(PATIENCE)) {
            Ok(root) => Ok(Some(root)),
            Err(error) => {
                println!(
                    "NOT RUN: the packages in a clean root (`cargo xtask dist --check {OLDEST}` does it): {error:#}"
                );
                Ok(None)
            }
        }
    }

    /// Creates a system of a release, if it does not exist yet, within `limit` seconds if there is a limit. The files
    /// of all essential packages are unpacked, but not configured: configuring takes most of the time, and nothing here
    /// needs it.
    pub fn make(release: &str, folder: &Path, limit: Option<u64>) -> Result<Self> {
        let complete = folder.join("complete");
        if complete.exists() {
            return Ok(Self(folder.to_owned()));
        }
        ensure!(paths::find_command("debootstrap").is_some(), "there is no debootstrap: install it");
        if folder.exists() {
            fs::remove_dir_all(folder)?;
        }
        let mirror = match release {
            "focal" | "jammy" | "noble" => "http://archive.ubuntu.com/ubuntu",
            _ => "http://deb.debian.org/debian",
        };
        let mut command = Command::new("timeout");
        command.arg(limit.unwrap_or(1800).to_string()).args(["debootstrap", "--foreign", "--variant=minbase", release]);
        command.arg(folder);
        let made = run_quietly(command.arg(mirror));
        if made.is_err() {
            // A half-finished system is useless.
            let _ = fs::remove_dir_all(folder);
        }
        made.with_context(|| format!("debootstrap of {release}"))?;
        // In a container, debootstrap makes it a link to itself.
        let proc = folder.join("proc");
        if proc.is_symlink() {
            fs::remove_file(&proc)?;
            fs::create_dir(&proc)?;
        }
        fs::write(complete, "")?;
        Ok(Self(folder.to_owned()))
    }

    /// Installs the package, inspects what it installed, and makes both binaries record a process of this machine.
    pub fn check(&self, packages: &Packages) -> Result<()> {
        let inside = self.0.join("tmp/dist");
        if inside.exists() {
            fs::remove_dir_all(&inside)?;
        }
        fs::create_dir_all(&inside)?;
        fs::copy(&packages.deb, inside.join("lj-trace.deb"))?;
        fs::copy(&packages.tarball, inside.join("lj-trace.tar.gz"))?;
        let mut target = Command::new("luajit");
        target.args(["-e", "local x = 0; while true do for i = 1, 1e6 do x = x + i % 7 end end"]);
        let target = Guarded(target.stdin(Stdio::null()).spawn().context("cannot run luajit")?);
        std::thread::sleep(Duration::from_millis(100));
        let pid = target.0.id();
        // In namespaces of its own, so that the mounts disappear with it.
        let script = format!(
            "set -e
            mount --make-rprivate /
            for folder in proc sys; do mount --rbind /$folder {root}/$folder; done
            chroot {root} /bin/sh -e <<'END'
            export HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin
            cd /tmp/dist
            dpkg -i lj-trace.deb
            for file in $(dpkg -L lj-trace); do test -e $file; done
            test -f /usr/share/man/man1/lj-trace-record.1.gz
            test -f /usr/lib/systemd/system/lj-trace@.service
            test -f /usr/lib/systemd/system/lj-trace-agent.service
            test ! -e /etc/systemd/system/multi-user.target.wants/lj-trace-agent.service
            lj-trace agent --dry-run --config /etc/lj-trace/agent.toml
            tar -xzf lj-trace.tar.gz
            for program in /usr/bin/lj-trace $(echo lj-trace-*/bin/lj-trace); do
                echo running $program
                $program --version
                $program record --verbose --pid {pid} --duration 1s --force --output run.bin --output run.folded 2>&1
                $program report run.bin
            done
            dpkg -r lj-trace
            test ! -e /usr/bin/lj-trace
END",
            root = self.0.display()
        );
        let said = output(Command::new("unshare").args(["--mount", "sh", "-c", &script]))?;
        if said.matches("running ").count() != 2 || said.matches("Lua complete").count() < 2 {
            bail!("not both binaries have recorded: {said}");
        }
        Ok(())
    }
}
