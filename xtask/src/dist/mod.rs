//! `cargo xtask dist`: packages, a tarball and an image of the binary that runs on any recent Linux.

mod clean_root;
mod files;
mod image;
mod machine;
mod rpm;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::run::{output, run_quietly};
use crate::toolchain::Target;
use crate::{aarch64, build, paths, setup};
use clean_root::CleanRoot;
use files::Stage;
use machine::Machine;

/// Options of `cargo xtask dist`.
#[derive(clap::Args)]
pub struct Options {
    /// Install and run the package in a clean root of this release too, made by debootstrap: bullseye, bookworm, focal
    #[arg(long, value_name = "RELEASE")]
    check: Option<String>,
    /// Build and pack for another kind of machine
    #[arg(long, value_enum, conflicts_with = "binary")]
    arch: Option<Target>,
    /// Pack this binary, in place of building one
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
}

/// The files that were made.
pub struct Packages {
    /// The package for Debian and its relatives.
    pub deb: PathBuf,
    /// The package for Fedora and its relatives, if there is an `rpmbuild`.
    pub rpm: Option<PathBuf>,
    /// The tarball for all other systems.
    pub tarball: PathBuf,
    /// The OCI image for containers.
    pub image: PathBuf,
}

/// Builds and packs.
pub fn dist(options: &Options) -> Result<()> {
    let binary = match &options.binary {
        Some(binary) => binary.canonicalize().with_context(|| format!("no {}", binary.display()))?,
        None => {
            setup::setup()?;
            match options.arch {
                None => build::build(&build::Options::default())?,
                Some(Target::Aarch64) => {
                    aarch64::install_user_emulator()?;
                    aarch64::cross_build(false)?
                }
            }
        }
    };
    let packages = pack(&binary)?;
    let Packages { deb, rpm, tarball, image } = &packages;
    [Some(deb), rpm.as_ref(), Some(tarball), Some(image)]
        .into_iter()
        .flatten()
        .for_each(|file| println!("{}", file.display()));
    if rpm.is_none() {
        println!("no .rpm: this system has no rpmbuild (Debian: rpm, Fedora: rpm-build)");
    }
    if let Some(release) = &options.check {
        CleanRoot::make(release, Machine::of(&binary)?, None)?.check(&packages)?;
        println!("ok: both are installed and run in a clean {release}");
    }
    Ok(())
}

/// A step of `cargo xtask test`: packs the binary, and tries the packages where that takes seconds.
pub fn check(binary: &Path) -> Result<()> {
    if paths::find_command("dpkg-deb").is_none() {
        println!("NOT RUN: packages: this system has no dpkg-deb");
        return Ok(());
    }
    if let Err(error) = expect_static(binary) {
        println!("NOT RUN: packages: {error:#}");
        return Ok(());
    }
    let packages = pack(binary)?;
    match CleanRoot::of_tests()? {
        Some(root) => root.check(&packages),
        None => Ok(()),
    }
}

/// Packs a binary.
fn pack(binary: &Path) -> Result<Packages> {
    expect_static(binary)?;
    let machine = Machine::of(binary)?;
    let version = version(machine, binary)?;
    let folder = paths::target().join("dist");
    std::fs::create_dir_all(&folder)?;
    let stage = Stage::fill(machine, binary, &version)?;
    let deb = folder.join(format!("lj-trace_{version}_{}.deb", machine.debian()));
    run_quietly(Command::new("dpkg-deb").args(["--root-owner-group", "-Zxz", "--build"]).arg(stage.path()).arg(&deb))?;
    let name = format!("lj-trace-{version}-{}-linux", machine.name());
    let tarball = folder.join(format!("{name}.tar.gz"));
    let mut tar = Command::new("tar");
    tar.args(["--owner=0", "--group=0", "--numeric-owner", "--exclude=./DEBIAN", "--sort=name", "-czf"]).arg(&tarball);
    // `lj-trace-1.2.3-x86_64-linux/usr/bin/lj-trace` becomes `.../bin/lj-trace`.
    tar.arg(format!("--transform=s,^\\./usr,{name},;s,^\\.,{name},")).arg("-C").arg(stage.path()).arg(".");
    run_quietly(&mut tar)?;
    let rpm = paths::find_command("rpmbuild").map(|_| rpm::pack(machine, &stage, &version, &folder)).transpose()?;
    let image = folder.join(image::name(machine, &version));
    image::pack(machine, &stage.path().join("usr/bin/lj-trace"), &version, &folder.join("image"), &image)?;
    Ok(Packages { deb, rpm, tarball, image })
}

/// The version, as the binary itself reports it: `0.1.0`.
fn version(machine: Machine, binary: &Path) -> Result<String> {
    let said = output(machine.run(binary).arg("--version"))?;
    let version = said.trim().strip_prefix("lj-trace ").with_context(|| format!("lj-trace says {said:?}"))?;
    Ok(version.to_owned())
}

/// A binary without shared libraries runs wherever the kernel does. A dynamic one might need newer glibc symbols than
/// those of Debian 11 and Ubuntu 20.04 (2.31).
fn expect_static(binary: &Path) -> Result<()> {
    let headers = output(Command::new("readelf").args(["--program-headers", "--dynamic", "--wide"]).arg(binary))?;
    if headers.contains("INTERP") || headers.contains("(NEEDED)") {
        bail!(
            "{} needs shared libraries: install glibc's static library (Debian: libc6-dev, Fedora: glibc-static), and \
             build again",
            binary.display()
        );
    }
    Ok(())
}
