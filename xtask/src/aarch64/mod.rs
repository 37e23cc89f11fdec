//! `cargo xtask test --arch aarch64`: the end-to-end tests of features that work on arm64, in an emulated machine.
//!
//! Its root is a copy of an unpacked Debian for arm64, in memory; the clone is mounted read-only at its own path. The tests
//! are the same as on other machines, but cross-compiled.

mod jobs;
mod kind;
mod root;

pub use jobs::{ALL, USER_EMULATOR};
pub use kind::Kind;

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::build::{BPF_OBJECT, BpfPrograms, build_bpf};
use crate::kernel::guest::{self, Times};
use crate::kernel::image::Image;
use crate::kernel::initramfs::Origin;
use crate::kernel::jobs::Jobs;
use crate::kernel::machine::{CONSOLE_LOG, Machine};
use crate::kernel::report::Report;
use crate::kernel::{initramfs, machine, needs};
use crate::programs::Scope;
use crate::run::{is_root, run};
use crate::toolchain::{EMULATED, Target};
use crate::{apt, paths, variants};
use root::Root;

/// How long the whole matrix may take, in minutes.
const MATRIX_MINUTES: u64 = 120;

/// Runs the tests whose names contain `filter` on a kind of machine, and prints a verdict on each.
///
/// # Errors
/// Some have failed, or there is no machine to run them in.
pub fn test(kind: Kind, filter: Option<&str>, minutes: u64) -> Result<()> {
    let root = set_up(kind)?;
    in_machine(kind, &root, jobs::build(filter)?, &[], minutes, |_| ())
}

/// Runs the oracle with these arguments. A program that they name is one of the tests', or a file.
///
/// # Errors
/// A frame was wrong, time was over, or there is no machine to run it in.
pub fn oracle(kind: Kind, mut arguments: Vec<String>, minutes: u64) -> Result<()> {
    let root = set_up(kind)?;
    let mut programs = Vec::new();
    for argument in arguments.iter_mut().filter(|argument| Path::new(argument).is_file()) {
        // The machine sees the clone alone.
        let name = Path::new(argument).file_name().context("a program without a name")?;
        let program = folder()?.join(name);
        std::fs::copy(&*argument, &program).with_context(|| format!("cannot copy {argument}"))?;
        *argument = initramfs::copy_of(&program).display().to_string();
        programs.push(program);
    }
    in_machine(kind, &root, jobs::of_oracle(arguments, minutes)?, &programs, minutes, |_| ())
}

/// Runs all tests of the matrix, and passes each line of the machine's console to `take`, too.
///
/// # Errors
/// Some have failed, or there is no machine to run them in.
pub fn matrix(take: impl FnMut(&str)) -> Result<()> {
    let kind = Kind::default();
    let root = set_up(kind)?;
    root.copy_hosts(&variants::build_for(Scope::Matrix, Some(Target::Aarch64))?)?;
    in_machine(kind, &root, jobs::of_matrix()?, &[], MATRIX_MINUTES, take)
}

/// Installs what a kind of machine needs.
fn set_up(kind: Kind) -> Result<Root> {
    if !is_root() {
        bail!("the machine's root holds programs of others, with their owners: run this as root");
    }
    Target::Aarch64.install()?;
    needs::install(kind.processor())?;
    install_user_emulator()?;
    Root::find(kind)
}

/// Runs a script of the shell, which sees the clone and what it has to say is printed.
///
/// # Errors
/// It fails, or there is no machine to run it in.
pub fn script(name: &str, text: &str, minutes: u64) -> Result<()> {
    let kind = Kind::default();
    let root = set_up(kind)?;
    let program = folder()?.join(name);
    std::fs::write(&program, text)?;
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755))?;
    in_machine(kind, &root, jobs::of_script(name, program, minutes), &[], minutes, |_| ())
}

/// The folder where all is made that the machine needs.
///
/// # Errors
/// It cannot be made.
pub fn folder() -> Result<PathBuf> {
    let folder = paths::target().join("aarch64");
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(folder)
}

/// Runs tests in a machine, which also gets copies of `others`.
fn in_machine(
    kind: Kind,
    root: &Root,
    mut jobs: Jobs,
    others: &[PathBuf],
    minutes: u64,
    mut take: impl FnMut(&str),
) -> Result<()> {
    let folder = folder()?;
    let binary = build()?;
    if jobs.need_libraries {
        jobs::compile(&folder, kind.compiler_options())?;
    }
    let hidden = [paths::root(), &folder].into_iter().find(|path| guest::hides(path));
    if let Some(hidden) = hidden.or_else(|| Some(&*folder).filter(|folder| !folder.starts_with(paths::root()))) {
        bail!(
            "{} cannot be seen in the machine: it sees the clone, and has a /tmp and a /run of its own",
            hidden.display()
        );
    }
    root.make_place_for(paths::root())?;
    let own = jobs.jobs.iter().map(|job| job.binary.clone()).chain([binary.clone()]);
    let mut programs: Vec<_> = own.chain(others.iter().cloned()).collect();
    programs.sort();
    programs.dedup();
    let programs: Vec<_> = programs.iter().map(PathBuf::as_path).collect();
    jobs.jobs.iter_mut().for_each(|job| job.binary = initramfs::copy_of(&job.binary));
    let mut environment = vec![
        ("LJ_TRACE_BIN", initramfs::copy_of(&binary).display().to_string()),
        ("LJ_TRACE_TEST_WITHOUT", root::WITHOUT.join(",")),
        ("LJ_TRACE_TEST_COMPILED", folder.display().to_string()),
        ("CARGO_TARGET_DIR", root.target.to_owned()),
        ("PATH", "/usr/sbin:/usr/bin:/sbin:/bin".to_owned()),
    ];
    // How long the searches are.
    let set = |name| Some((name, std::env::var(name).ok()?));
    environment.extend(["LJ_TRACE_TEST_KILLS", "LJ_TRACE_REQUEST_SEEDS"].into_iter().filter_map(set));
    let script = guest::write_script(&folder, &environment, &jobs, Times::OTHER_KIND)?;
    let image = Image { vmlinuz: root.vmlinuz.clone(), modules: None };
    let shell = root.root.join(needs::BUSYBOX.trim_start_matches('/'));
    let origin = Origin::Copied { clone: paths::root(), programs: &programs };
    let initramfs = initramfs::make(&image, &shell, &origin, &script, &folder)?;
    let machine =
        Machine { processor: kind.processor(), folders: &[("host", root.root.as_path()), ("clone", paths::root())] };
    let mut report = Report::new(&jobs);
    let limit = Duration::from_secs(minutes * 60);
    machine::run(&machine, &image, &initramfs, &folder, limit, |line| {
        report.take(line);
        take(line);
    })?;
    if let Some(test) = report.went_down_in() {
        println!("the machine went down, or time was over, in {test}: see {}", folder.join(CONSOLE_LOG).display());
    }
    report.verdict(&image)
}

/// Installs the emulator that runs arm64 programs on this machine's own kernel, if it is missing.
///
/// # Errors
/// It is not available.
pub fn install_user_emulator() -> Result<()> {
    match paths::find_command(USER_EMULATOR) {
        Some(_) => Ok(()),
        None => apt::install(&["qemu-user-static".to_owned()]),
    }
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
    Ok(built(EMULATED))
}

/// The path where cargo puts lj-trace.
fn built(profile: &str) -> PathBuf {
    paths::target().join(Target::Aarch64.name()).join(profile).join("lj-trace")
}

/// `cargo xtask build --arch aarch64`: builds lj-trace for arm64.
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
