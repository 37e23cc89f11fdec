//! A system of another release that contains only what a package brings along.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::Packages;
use super::machine::Machine;
use crate::run::{Guarded, is_root, run_quietly};
use crate::{aarch64, paths};

/// The oldest release that the packages support.
const OLDEST: &str = "bullseye";
/// How long the tests may take to create it, if there is none yet, in seconds.
const PATIENCE: u64 = 40;

/// How long the emulated machine may take to try them, in minutes.
const MINUTES: u64 = 30;
/// The program whose process is recorded.
const BUSY: &str = "local x = 0; while true do for i = 1, 1e6 do x = x + i % 7 end end";

/// The folder of such a system.
pub struct CleanRoot {
    folder: PathBuf,
    machine: Machine,
}

impl CleanRoot {
    /// The system that the tests use; [`None`], after printing the reason, if it cannot be created quickly.
    pub fn of_tests() -> Result<Option<Self>> {
        if !is_root() {
            println!("NOT RUN: the packages in a clean root: that takes root");
            return Ok(None);
        }
        match Self::make(OLDEST, Machine::X86_64, Some(PATIENCE)) {
            Ok(root) => Ok(Some(root)),
            Err(error) => {
                println!(
                    "NOT RUN: the packages in a clean root (`cargo xtask dist --check {OLDEST}` does it): {error:#}"
                );
                Ok(None)
            }
        }
    }

    /// Creates a system of a release for a kind of machine, if it does not exist yet, within `limit` seconds if there is a limit. The files
    /// of all essential packages are unpacked, but not configured: configuring takes most of the time, and nothing here
    /// needs it.
    pub fn make(release: &str, machine: Machine, limit: Option<u64>) -> Result<Self> {
        let name = match machine {
            Machine::X86_64 => format!("root-{release}"),
            Machine::Aarch64 => format!("root-{release}-{}", machine.debian()),
        };
        let folder = paths::cache().join(name);
        let complete = folder.join("complete");
        if complete.exists() {
            return Ok(Self { folder, machine });
        }
        ensure!(paths::find_command("debootstrap").is_some(), "there is no debootstrap: install it");
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        let mirror = match (release, machine) {
            ("focal" | "jammy" | "noble", Machine::X86_64) => "http://archive.ubuntu.com/ubuntu",
            ("focal" | "jammy" | "noble", Machine::Aarch64) => "http://ports.ubuntu.com/ubuntu-ports",
            _ => "http://deb.debian.org/debian",
        };
        let mut command = Command::new("timeout");
        command.arg(limit.unwrap_or(1800).to_string()).args(["debootstrap", "--foreign", "--variant=minbase"]);
        command.arg(format!("--arch={}", machine.debian())).arg(release).arg(&folder);
        let made = run_quietly(command.arg(mirror));
        if made.is_err() {
            // A half-finished system is useless.
            let _ = fs::remove_dir_all(&folder);
        }
        made.with_context(|| format!("debootstrap of {release}"))?;
        // In a container, debootstrap makes it a link to itself.
        let proc = folder.join("proc");
        if proc.is_symlink() {
            fs::remove_file(&proc)?;
            fs::create_dir(&proc)?;
        }
        fs::write(complete, "")?;
        Ok(Self { folder, machine })
    }

    /// Installs the package, inspects what it installed, and makes both binaries record a process of this machine, or of an
    /// emulated one.
    pub fn check(&self, packages: &Packages) -> Result<()> {
        let inside = self.folder.join("tmp/dist");
        if inside.exists() {
            fs::remove_dir_all(&inside)?;
        }
        fs::create_dir_all(&inside)?;
        fs::copy(&packages.deb, inside.join("lj-trace.deb"))?;
        fs::copy(&packages.tarball, inside.join("lj-trace.tar.gz"))?;
        match self.machine {
            Machine::X86_64 => self.check_here(),
            Machine::Aarch64 => self.check_emulated(),
        }
    }

    fn check_here(&self) -> Result<()> {
        let mut target = Command::new("luajit");
        target.args(["-e", BUSY]);
        let target = Guarded(target.stdin(Stdio::null()).spawn().context("cannot run luajit")?);
        std::thread::sleep(Duration::from_millis(100));
        let script = steps(&self.folder.display().to_string());
        // In namespaces of its own, so that the mounts disappear with it.
        let mut command = Command::new("unshare");
        run_quietly(command.args(["--mount", "sh", "-c", &script]).env("TARGET", target.0.id().to_string()))
    }

    fn check_emulated(&self) -> Result<()> {
        let archive = aarch64::folder()?.join("clean-root.tar");
        run_quietly(Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(&self.folder).arg("."))?;
        let script = format!(
            "#!/bin/sh\nset -e\nmkdir /tmp/clean\n/bin/busybox tar -xf '{}' -C /tmp/clean\n\
             luajit -e '{BUSY}' &\nexport TARGET=$!\nsleep 1\n{}\nkill $TARGET\n",
            archive.display(),
            steps("/tmp/clean")
        );
        aarch64::script("installed_in_a_clean_root", &script, MINUTES)
    }
}

/// What the shell does in the system in the folder `root`; `TARGET` is the process to record.
fn steps(root: &str) -> String {
    format!(
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
            $program record --verbose --pid $TARGET --duration 1s --force --output run.bin --output run.folded > said 2>&1 || {{ cat said; exit 1; }}
            cat said
            grep -q 'Lua complete' said
            $program report run.bin
        done
        dpkg -r lj-trace
        test ! -e /usr/bin/lj-trace
END"
    )
}
