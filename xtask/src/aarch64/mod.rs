//! `cargo xtask test --arch aarch64`: the end-to-end tests of features that work on arm64, in an emulated machine.
//!
//! Its root is a copy of an unpacked Debian for arm64, in memory; the clone is mounted read-only at its own path. The tests
//! are the same as on other machines, but cross-compiled.

mod jobs;
mod root;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::build::{BPF_OBJECT, BpfPrograms, build_bpf};
use crate::kernel::guest::{self, Times};
use crate::kernel::image::Image;
use crate::kernel::initramfs::Origin;
use crate::kernel::machine::{CONSOLE_LOG, Machine, Processor};
use crate::kernel::report::Report;
use crate::kernel::{initramfs, machine, needs};
use crate::run::{is_root, run};
use crate::toolchain::Target;
use crate::{apt, paths};
use root::Root;

/// Programs of the tests that are not available, because there is no arm64 package, or none with LuaJIT (neovim).
const WITHOUT: &str = "tarantool,neovim,dnsdist,knot-resolver,wrk,sysbench,lupa,go,chromium,otelcol,pyroscope,parca,npm-packages,duckdb,\
                       luajit-2.0,luajit-no-jit,luajit-no-ffi,perf,gdb,tmux";

/// Runs the tests whose names contain `filter`, and prints a verdict on each.
///
/// # Errors
/// Some have failed, or there is no machine to run them in.
pub fn test(filter: Option<&str>, minutes: u64) -> Result<()> {
    if !is_root() {
        bail!(
            "the machine's root holds programs of others, with their owners: run `cargo xtask test --arch aarch64` as root"
        );
    }
    Target::Aarch64.install()?;
    needs::install(Processor::Aarch64)?;
    if paths::find_command(jobs::USER_EMULATOR).is_none() {
        apt::install(&["qemu-user-static".to_owned()])?;
    }
    let root = Root::find()?;
    let folder = paths::target().join("aarch64");
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let binary = build()?;
    let mut jobs = jobs::build(filter)?;
    if jobs.jobs.iter().any(|job| job.file == "oracle") {
        jobs::build_libraries(&folder)?;
    }
    let hidden = [paths::root(), &folder].into_iter().find(|path| guest::hides(path));
    if let Some(hidden) = hidden.or_else(|| Some(&*folder).filter(|folder| !folder.starts_with(paths::root()))) {
        bail!(
            "{} cannot be seen in the machine: it sees the clone, and has a /tmp and a /run of its own",
            hidden.display()
        );
    }
    root.make_place_for(paths::root())?;
    let mut programs: Vec<_> = jobs.jobs.iter().map(|job| job.binary.clone()).chain([binary.clone()]).collect();
    programs.sort();
    programs.dedup();
    let programs: Vec<_> = programs.iter().map(PathBuf::as_path).collect();
    jobs.jobs.iter_mut().for_each(|job| job.binary = initramfs::copy_of(&job.binary));
    let environment = [
        ("LJ_TRACE_BIN", initramfs::copy_of(&binary).display().to_string()),
        ("LJ_TRACE_TEST_WITHOUT", WITHOUT.to_owned()),
        ("LJ_TRACE_TEST_UNTRIED", "1".to_owned()),
        ("LJ_TRACE_TEST_ORACLE_LIBRARIES", folder.display().to_string()),
        ("CARGO_TARGET_DIR", root.target.to_owned()),
        ("PATH", "/usr/sbin:/usr/bin:/sbin:/bin".to_owned()),
    ];
    let script = guest::write_script(&folder, &environment, &jobs, Times::OTHER_KIND)?;
    let image = Image { vmlinuz: root.vmlinuz.clone(), modules: None };
    let shell = root.root.join(needs::BUSYBOX.trim_start_matches('/'));
    let origin = Origin::Copied { clone: paths::root(), programs: &programs };
    let initramfs = initramfs::make(&image, &shell, &origin, &script, &folder)?;
    let machine =
        Machine { processor: Processor::Aarch64, folders: &[("host", root.root.as_path()), ("clone", paths::root())] };
    let mut report = Report::new(&jobs);
    let limit = Duration::from_secs(minutes * 60);
    machine::run(&machine, &image, &initramfs, &folder, limit, |line| report.take(line))?;
    if let Some(test) = report.went_down_in() {
        println!("the machine went down, or time was over, in {test}: see {}", folder.join(CONSOLE_LOG).display());
    }
    report.verdict(&image)
}

/// Builds lj-trace.
fn build() -> Result<PathBuf> {
    if let Some(binary) = std::env::var_os("LJ_TRACE_BIN") {
        // It was built before.
        return Ok(binary.into());
    }
    let object = build_bpf(BpfPrograms::Shipped, Some(Target::Aarch64))?;
    let mut cargo = Target::Aarch64.cargo_for_tests("build")?;
    run(cargo.args(["--package", "lj-trace", "--bin", "lj-trace"]).env(BPF_OBJECT, object))?;
    Ok(built("debug"))
}

/// The path where cargo puts lj-trace.
fn built(profile: &str) -> PathBuf {
    paths::target().join(Target::Aarch64.name()).join(profile).join("lj-trace")
}

/// `cargo xtask build --arch aarch64`: builds lj-trace as far as it works there.
///
/// # Errors
/// It cannot be built.
pub fn cross_build(debug: bool) -> Result<PathBuf> {
    Target::Aarch64.install()?;
    let mut cargo = Target::Aarch64.cargo("build")?;
    let object = build_bpf(BpfPrograms::Shipped, Some(Target::Aarch64))?;
    cargo.args(["--package", "lj-trace", "--bin", "lj-trace"]).env(BPF_OBJECT, object);
    if !debug {
        cargo.arg("--release");
    }
    run(&mut cargo)?;
    let binary = built(if debug { "debug" } else { "release" });
    println!("{}", Path::new(&binary).display());
    Ok(binary)
}
