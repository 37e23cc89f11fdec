//! A systemd of our own, in namespaces: what runs in it sees other process ids than the rest of this machine.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::tracer::binary;

/// How long it may take to boot: two seconds on an idle machine.
const PATIENCE: u64 = 40;
const INIT: &str = "/lib/systemd/systemd";
/// Its files are in memory: it would empty this machine's /tmp, and leave state in /var/lib
/// and its journal in /var/log. Control groups are those
/// that count memory here: of version 2, or of version 1, each of whose controllers has a hierarchy of its own.
const BOOT: &str =
    "mount --make-rprivate / && for folder in /tmp /run /var/lib /var/log; do mount -t tmpfs none $folder || exit; done
    if cut -f 1,2 /proc/cgroups | grep -q '^memory[[:space:]]0$'; then mount -t cgroup2 none /sys/fs/cgroup || exit; else
        mount -t tmpfs none /sys/fs/cgroup || exit
        for controller in cpu cpuacct memory name=systemd; do
            folder=/sys/fs/cgroup/${controller#name=}
            mkdir $folder && mount -t cgroup -o $controller none $folder || exit
        done
    fi
    exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --system --unit=basic.target";

/// A running systemd. All that runs in it ends when this is dropped.
#[derive(Debug)]
pub struct Systemd {
    outer: Child,
    init: u32,
}

impl Systemd {
    /// Boots it, with `lj-trace` as [`Systemd::program`], and `files` beside it. [`None`], with the reason printed, where
    /// that is not possible.
    ///
    /// # Errors
    /// If a file cannot be copied.
    pub fn boot(files: &[&Path]) -> Result<Option<Self>> {
        if !Path::new(INIT).exists() {
            crate::skips::skip(&format!("this system has no {INIT}"));
            return Ok(None);
        }
        let mut unshare = Command::new("unshare");
        unshare.args(["--fork", "--kill-child", "--pid", "--mount", "--mount-proc", "--cgroup", "sh", "-c", BOOT]);
        let outer = unshare.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let mut systemd = Self { outer, init: 0 };
        let started = Instant::now();
        while !systemd.is_up() {
            if started.elapsed() > crate::patience(PATIENCE) || systemd.outer.try_wait()?.is_some() {
                crate::skips::skip("systemd does not boot in namespaces here");
                return Ok(None);
            }
            sleep(Duration::from_millis(50));
        }
        let folder = systemd.path("run/test");
        std::fs::create_dir(&folder)?;
        for file in files.iter().copied().chain([&*binary()]) {
            let name = file.file_name().context("a file without a name")?;
            std::fs::copy(file, folder.join(name)).with_context(|| format!("cannot copy {}", file.display()))?;
        }
        Ok(Some(systemd))
    }

    fn is_up(&mut self) -> bool {
        let outer = self.outer.id();
        let children = std::fs::read_to_string(format!("/proc/{outer}/task/{outer}/children")).unwrap_or_default();
        self.init = children.split_whitespace().next().and_then(|pid| pid.parse().ok()).unwrap_or(0);
        let state = |this: &Self| this.output("systemctl is-system-running");
        self.init != 0 && state(self).is_ok_and(|output| output.stdout.starts_with(b"running"))
    }

    /// Where `lj-trace` and the other files are, inside.
    pub fn program(&self) -> &'static str {
        "/run/test/lj-trace"
    }

    /// A file inside, seen from outside.
    pub fn path(&self, inside: &str) -> PathBuf {
        Path::new("/proc").join(self.init.to_string()).join("root").join(inside.trim_start_matches('/'))
    }

    fn output(&self, line: &str) -> Result<Output> {
        let mut nsenter = Command::new("nsenter");
        nsenter.args(["-t", &self.init.to_string(), "-m", "-p", "-C", "sh", "-c", line]);
        nsenter.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").stdin(Stdio::null());
        nsenter.output().with_context(|| format!("cannot run {line}"))
    }

    /// Runs a shell's command line inside; gives what it prints.
    ///
    /// # Errors
    /// If it fails.
    pub fn run(&self, line: &str) -> Result<String> {
        let Output { status, stdout, stderr } = self.output(line)?;
        ensure!(status.success(), "{line}: {status}: {}", String::from_utf8_lossy(&stderr));
        Ok(String::from_utf8_lossy(&stdout).trim_end().to_owned())
    }

    /// Waits until a command line prints what is wanted; gives what it prints then.
    ///
    /// # Errors
    /// If that does not happen.
    pub fn wait_for(&self, line: &str, mut wanted: impl FnMut(&str) -> bool) -> Result<String> {
        let started = Instant::now();
        loop {
            let printed = self.run(line)?;
            if wanted(&printed) {
                return Ok(printed);
            }
            if started.elapsed() > crate::patience(PATIENCE) {
                bail!("{line} keeps printing {printed:?}");
            }
            sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Systemd {
    fn drop(&mut self) {
        // Its child, the init of its namespace, dies with it, and takes all others along.
        let _ = self.outer.kill();
        let _ = self.outer.wait();
    }
}
