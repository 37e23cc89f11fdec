//! A Debian for arm64, unpacked into a folder: its programs, which QEMU runs, and a kernel. Nothing is installed: an
//! apt with its own configuration, which leaves this system's alone, fetches the packages.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::kind::Kind;
use crate::debian_arm64::Apt;
use crate::paths;

/// The packages in the root, besides their dependencies: programs with LuaJIT, and what the tests' script and programs
/// run.
const PACKAGES: [&str; 30] = [
    "luajit",
    "nginx",
    "libnginx-mod-http-lua",
    "dnsdist",
    "knot-resolver",
    "sysbench",
    "wrk",
    "lua-copas",
    "lua-cqueues",
    "lua-luv",
    "busybox-static",
    "bash",
    "dash",
    "coreutils",
    "grep",
    "sed",
    "mount",
    "base-files",
    "libc-bin",
    "findutils",
    "mawk",
    "debianutils",
    "util-linux",
    "procps",
    "hostname",
    "iproute2",
    "gcc",
    "libc6-dev",
    "tmux",
    "ncurses-base",
];

/// Programs that exclude others, by their names among the tests: each is in a folder of its own.
const APART: [(&str, &[&str]); 1] = [("luajit2", &["luajit2", "libluajit2-5.1-2"])];

/// What the tests expect in a folder of its own, and where it is: in the root, or beside another program.
const ELSEWHERE: [(&str, &str); 13] = [
    ("dnsdist", "/"),
    ("knot-resolver", "/"),
    ("sysbench", "/"),
    ("wrk", "/"),
    ("lua-copas", "/"),
    ("lua-cqueues", "/"),
    ("lua-luv", "/"),
    ("nginx", "/"),
    ("libnginx-mod-http-lua", "/"),
    ("libnginx-mod-http-ndk", "/"),
    ("lua-resty-core", "/"),
    ("lua-resty-lrucache", "/"),
    ("libluajit2-5.1-2", "luajit2"),
];

/// Programs of the tests that Debian does not have for arm64, or not with LuaJIT (neovim), that cannot be built for it, or that
/// are too large.
pub const WITHOUT: [&str; 15] = [
    "chromium",
    "duckdb",
    "gc64-off",
    "gdb",
    "go",
    "lupa",
    "neovim",
    "npm-packages",
    "otelcol",
    "parca",
    "perf",
    "pyroscope",
    "sysmalloc",
    "tarantool",
    "tmux",
];

/// The folder with programs for the tests, relative to the folder of this module.
const PROGRAMS: &str = "root/lj-trace/programs";

/// The folder for everything.
fn folder() -> PathBuf {
    paths::cache().join("aarch64")
}

/// The unpacked system.
pub struct Root {
    /// The root.
    pub root: PathBuf,
    /// The kernel.
    pub vmlinuz: PathBuf,
    /// The path of the clone's `target` folder inside the machine: the programs are there.
    pub target: &'static str,
}

impl Root {
    /// The unpacked system, with the kernel for a kind of machine. Fetches what is missing.
    ///
    /// # Errors
    /// Something cannot be fetched.
    pub fn find(kind: Kind) -> Result<Self> {
        let folder = folder();
        let (done, packages) = (folder.join("complete"), PACKAGES.join("\n"));
        // One that was fetched before may lack some.
        if fs::read_to_string(&done).unwrap_or_default() != packages {
            fetch(&folder)?;
            fs::write(&done, packages)?;
        }
        // Each time, because an earlier fetch may lack some.
        for (name, target) in ELSEWHERE {
            let place = folder.join(PROGRAMS).join(name);
            if place.symlink_metadata().is_err() {
                symlink(target, &place).with_context(|| format!("cannot make {}", place.display()))?;
            }
        }
        let kernel = folder.join(kind.kernel_folder());
        if !kernel.is_dir() {
            fetch_kernel(&folder, kind)?;
        }
        let vmlinuz = image(&kernel).with_context(|| format!("no vmlinuz in {}", kernel.display()))?;
        Ok(Self { root: folder.join("root"), vmlinuz, target: "/lj-trace" })
    }

    /// Puts host programs where the tests expect them.
    ///
    /// # Errors
    /// They cannot be copied.
    pub fn copy_hosts(&self, from: &Path) -> Result<()> {
        let to = self.root.join(self.target.trim_start_matches('/')).join("hosts");
        fs::create_dir_all(&to)?;
        for file in from.read_dir().with_context(|| format!("no {}", from.display()))?.flatten() {
            if file.file_type()?.is_file() {
                fs::copy(file.path(), to.join(file.file_name()))?;
            }
        }
        Ok(())
    }

    /// Creates the mount point for a folder of this machine, at the same path inside the root.
    ///
    /// # Errors
    /// It cannot be created.
    pub fn make_place_for(&self, folder: &Path) -> Result<()> {
        let place = self.root.join(folder.strip_prefix("/")?);
        fs::create_dir_all(&place).with_context(|| format!("cannot make {}", place.display()))
    }
}

/// The kernel's file in its unpacked package: newer packages have it beside the modules.
fn image(kernel: &Path) -> Option<PathBuf> {
    let files = |folder: PathBuf| folder.read_dir().into_iter().flatten().flatten().map(|file| file.path());
    let folders = [kernel.join("boot")].into_iter().chain(files(kernel.join("usr/lib/modules")));
    let is_image = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz"));
    folders.flat_map(files).find(is_image)
}

fn fetch(folder: &Path) -> Result<()> {
    let apt = Apt::set_up(&folder.join("apt"))?;
    eprintln!("fetching a Debian for arm64 into {}", folder.display());
    apt.update()?;
    // One after another: asked for all at once, apt cannot decide between some alternatives.
    PACKAGES.iter().try_for_each(|package| apt.download_with_dependencies(package))?;
    let root = folder.join("root");
    apt.unpack(&root)?;
    // No package's script has run, so these files are missing.
    fs::write(root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/bash\n")?;
    fs::write(root.join("etc/group"), "root:x:0:\n")?;
    for (name, target) in [("bin/sh", "dash"), ("usr/bin/cc", "gcc")] {
        let place = root.join(name);
        if place.symlink_metadata().is_err() {
            symlink(target, place)?;
        }
    }
    let programs = folder.join(PROGRAMS);
    for (name, packages) in APART {
        packages.iter().try_for_each(|package| apt.download(package))?;
        apt.unpack(&programs.join(name))?;
    }
    Ok(())
}

fn fetch_kernel(folder: &Path, kind: Kind) -> Result<()> {
    let apt = Apt::set_up(&folder.join("apt"))?;
    apt.update()?;
    let kernels = apt.names(kind.kernel());
    let kernel = kernels.last().with_context(|| format!("Debian has no {}", kind.kernel()))?;
    apt.download(kernel)?;
    // Complete or not there.
    let unfinished = folder.join("kernel-unfinished");
    apt.unpack(&unfinished)?;
    fs::rename(unfinished, folder.join(kind.kernel_folder())).context("cannot keep the kernel")
}
