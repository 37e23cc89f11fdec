//! The compilers: the host's, with workarounds to build aya with a compiler that is older than aya requires, and the
//! compiler for BPF. All workarounds for compiler versions are in this file.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::build::BPF_OBJECT;
use crate::run::{output, run};
use crate::{apt, debian_compiler, paths};

/// The version of bpf-linker to build if none is found.
pub const BPF_LINKER_VERSION: &str = "0.13.0";

/// The first release (1.N) of the standard library with all that aya 0.16 uses.
const AYA_NEEDS: u32 = 98;
/// The only part of it that earlier compilers lack; there, a feature gate enables it.
const AYA_FEATURE: &str = "-Zcrate-attr=feature(result_option_map_or_default)";
/// Rust 1.96 and later warn of each crate that does not use it.
const NO_WARNING: &str = "-Aunused_features";

/// A `cargo SUBCOMMAND` for the host crates.
///
/// If the compiler is older than aya declares, cargo is told to build all the same.
///
/// # Errors
/// If there is no compiler, or its version cannot be read.
pub fn host_cargo(subcommand: &str) -> Result<Command> {
    let command = |variable: &str, otherwise: &str| env::var_os(variable).unwrap_or_else(|| otherwise.into());
    cargo_with(&command("CARGO", "cargo"), &command("RUSTC", "rustc"), subcommand)
}

/// The same with this cargo, which uses this compiler.
fn cargo_with(cargo: &OsStr, rustc: &OsStr, subcommand: &str) -> Result<Command> {
    let mut command = Command::new(cargo);
    command.current_dir(paths::root()).arg(subcommand);
    if compiler_release(rustc)? < AYA_NEEDS {
        let mut flags = env::var("RUSTFLAGS").unwrap_or_default();
        // The caller may have set it already: twice is an error.
        if !flags.contains(AYA_FEATURE) {
            flags = format!("{flags} {AYA_FEATURE} {NO_WARNING}").trim_start().to_owned();
        }
        command.arg("--ignore-rust-version").env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", flags);
    }
    Ok(command)
}

/// The host, as cargo names it. Without an explicit target, a static build would also make the procedural macros
/// static, which does not work.
pub fn host() -> String {
    format!("{}-unknown-linux-gnu", env::consts::ARCH)
}

/// A `cargo SUBCOMMAND` for a binary that needs no shared library, and so runs with any libc; [`None`] if the C library
/// cannot be linked statically.
///
/// # Errors
/// As [`host_cargo`].
pub fn static_cargo(subcommand: &str) -> Result<Option<Command>> {
    // It prints a path if the file exists.
    let library = output(Command::new("cc").arg("-print-file-name=libc.a")).unwrap_or_default();
    if !Path::new(library.trim()).is_absolute() {
        return Ok(None);
    }
    let mut command = host_cargo(subcommand)?;
    let flags = format!("{} -Ctarget-feature=+crt-static", flags(&command));
    command.args(["--target", &host()]).env("RUSTFLAGS", flags.trim_start());
    Ok(Some(command))
}

/// Another kind of machine that lj-trace is built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Target {
    /// arm64.
    Aarch64,
}

impl Target {
    /// The compiler's name for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Aarch64 => "aarch64-unknown-linux-gnu",
        }
    }

    /// Its C compiler, which is also the linker.
    pub const fn cc(self) -> &'static str {
        match self {
            Self::Aarch64 => "aarch64-linux-gnu-gcc",
        }
    }

    /// The packages with that compiler, and with the C library.
    const fn packages(self) -> [&'static str; 2] {
        match self {
            Self::Aarch64 => ["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"],
        }
    }

    /// Installs what a build for it needs: the standard library of the compiler in use, and a C compiler.
    ///
    /// # Errors
    /// It is not available.
    pub fn install(self) -> Result<()> {
        if !self.has_library()? && debian_compiler::compiler().is_none() {
            let mut add = Command::new("rustup");
            let added = run(add.args(["target", "add", self.name()]).current_dir(paths::root()));
            // Not everybody has rustup, and not every mirror of it has other targets.
            added.or_else(|error| {
                eprintln!("{error:#}: trying Debian's compiler");
                debian_compiler::set_up().with_context(|| format!("no library for {}", self.name()))
            })?;
        }
        if paths::find_command(self.cc()).is_none() {
            apt::install(&self.packages().map(str::to_owned))?;
        }
        Ok(())
    }

    /// Whether the compiler in use has a library for it.
    fn has_library(self) -> Result<bool> {
        let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let sysroot = output(Command::new(&rustc).args(["--print", "sysroot"]).current_dir(paths::root()))?;
        Ok(Path::new(sysroot.trim()).join("lib/rustlib").join(self.name()).is_dir())
    }

    /// The same for programs that an emulated processor runs. Errors are those of [`host_cargo`].
    pub fn cargo_for_tests(self, subcommand: &str) -> Result<Command> {
        let mut command = self.cargo(subcommand)?;
        command.args(["--profile", EMULATED]);
        Ok(command)
    }

    /// A `cargo SUBCOMMAND` for this target, for binaries that need no shared library. The BPF programs in the user's
    /// environment are for the host, so the binary contains none, unless the caller names others.
    ///
    /// # Errors
    /// As [`host_cargo`].
    pub fn cargo(self, subcommand: &str) -> Result<Command> {
        let mut command = match debian_compiler::compiler() {
            Some(rustc) if !self.has_library()? => {
                let mut command = cargo_with(debian_compiler::CARGO.as_ref(), rustc.as_os_str(), subcommand)?;
                command.env("RUSTC", rustc).env_remove("RUSTUP_TOOLCHAIN");
                command
            }
            _ => host_cargo(subcommand)?,
        };
        let flags = format!("{} -Ctarget-feature=+crt-static", flags(&command));
        let name = self.name().replace('-', "_");
        command.args(["--target", self.name()]).env("RUSTFLAGS", flags.trim_start());
        command.env(format!("CARGO_TARGET_{}_LINKER", name.to_uppercase()), self.cc());
        command.env(format!("CC_{name}"), self.cc()).env_remove(BPF_OBJECT);
        Ok(command)
    }
}

/// The profile of programs that an emulated processor runs, and the folder for them.
pub const EMULATED: &str = "emulated";

/// The compiler flags in a command's environment.
fn flags(command: &Command) -> String {
    let set = |(key, value): (&OsStr, Option<&OsStr>)| {
        (key == "RUSTFLAGS").then(|| value.unwrap_or_default().to_string_lossy().into_owned())
    };
    command.get_envs().find_map(set).or_else(|| env::var("RUSTFLAGS").ok()).unwrap_or_default()
}

/// The tools for the BPF programs: a compiler with the sources of its `core` library, and bpf-linker.
pub struct BpfToolchain {
    /// The compiler.
    pub compiler: BpfCompiler,
    /// The folder with the `bpf-linker` command.
    pub linker: PathBuf,
}

/// A Rust compiler that can build `core` for BPF.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BpfCompiler {
    /// rustup's nightly with the component `rust-src`: its folder.
    Nightly(PathBuf),
    /// The distribution's, in `/usr/bin`, with the sources of its library.
    System,
}

impl BpfToolchain {
    /// The installed toolchain, if it is complete.
    pub fn find() -> Option<Self> {
        let compiler = BpfCompiler::find()?;
        let linker = find_bpf_linker(&compiler)?;
        Some(Self { compiler, linker })
    }

    /// A `cargo SUBCOMMAND` that compiles for BPF, into a target folder of its own.
    pub fn cargo(&self, subcommand: &str, target: &Path) -> Result<Command> {
        let bin = self.compiler.bin();
        let mut command = Command::new(bin.join("cargo"));
        let mut path = OsString::from(&self.linker);
        for folder in [bin.into_os_string(), env::var_os("PATH").unwrap_or_default()] {
            path.push(":");
            path.push(folder);
        }
        command.current_dir(paths::root());
        command.args([subcommand, "-Zbuild-std=core", "--target", "bpfel-unknown-none", "--ignore-rust-version"]);
        command.arg("--target-dir").arg(target);
        command.env("PATH", path).env("RUSTC", self.compiler.bin().join("rustc")).env("RUSTC_BOOTSTRAP", "1");
        // Incremental builds split code into pieces, which makes it longer than the verifier allows.
        command.env("CARGO_INCREMENTAL", "0");
        // The user (or rustup, for the compiler that runs these tasks) has set these for the host.
        for variable in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "RUSTUP_TOOLCHAIN", "RUSTC_WRAPPER", "CARGO"] {
            command.env_remove(variable);
        }
        Ok(command)
    }
}

impl BpfCompiler {
    /// The installed compiler: rustup's nightly takes precedence over the distribution's.
    pub fn find() -> Option<Self> {
        Self::nightly().or_else(Self::system)
    }

    fn nightly() -> Option<Self> {
        let home = || Some(Path::new(&env::var_os("HOME")?).join(".rustup"));
        let rustup = env::var_os("RUSTUP_HOME").map(PathBuf::from).or_else(home)?;
        let toolchains = rustup.join("toolchains").read_dir().ok()?;
        let mut folders: Vec<_> = toolchains.flatten().map(|entry| entry.path()).collect();
        folders.retain(|folder| {
            let name = folder.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with(&format!("nightly-{}", env::consts::ARCH)) && has_core_sources(folder)
        });
        folders.pop().map(Self::Nightly)
    }

    fn system() -> Option<Self> {
        let there = Path::new("/usr/bin/cargo").is_file() && Path::new("/usr/bin/rustc").is_file();
        // Distributions also package far older compilers, with the same files.
        let recent = || compiler_release("/usr/bin/rustc").is_ok_and(|release| release >= OLDEST_FOR_BPF);
        (there && has_core_sources(Path::new("/usr")) && recent()).then_some(Self::System)
    }

    fn bin(&self) -> PathBuf {
        match self {
            Self::Nightly(toolchain) => toolchain.join("bin"),
            Self::System => "/usr/bin".into(),
        }
    }

    /// The major version of the compiler's LLVM. bpf-linker's LLVM must not be older.
    ///
    /// # Errors
    /// The compiler does not report it.
    pub fn llvm(&self) -> Result<u32> {
        let text = output(Command::new(self.bin().join("rustc")).arg("-vV").env_remove("RUSTUP_TOOLCHAIN"))?;
        parse_llvm(&text).with_context(|| format!("no LLVM version in `rustc -vV`: {text}"))
    }
}

/// The oldest release (1.N) of a distribution's compiler to try for the BPF programs (edition 2024 with `if let`
/// chains).
pub const OLDEST_FOR_BPF: u32 = 88;

/// The folder where [`BPF_LINKER_VERSION`] is installed for a compiler with this LLVM.
pub fn own_bpf_linker(llvm: u32) -> PathBuf {
    paths::cache().join(format!("bpf-linker-{BPF_LINKER_VERSION}-llvm-{llvm}"))
}

/// The folder of a `bpf-linker`: the user's, or the one that setup has built for this compiler.
fn find_bpf_linker(compiler: &BpfCompiler) -> Option<PathBuf> {
    let own = own_bpf_linker(compiler.llvm().ok()?).join("bin");
    if own.join("bpf-linker").is_file() {
        return Some(own);
    }
    // The user's bpf-linker was built for the user's nightly. Its LLVM might be too old for the distribution's
    // compiler.
    let users = || {
        let cargo = env::var_os("CARGO_HOME").map(PathBuf::from);
        let cargo = cargo.or_else(|| Some(Path::new(&env::var_os("HOME")?).join(".cargo")));
        let installed = cargo.map(|cargo| cargo.join("bin/bpf-linker")).filter(|file| file.is_file());
        Some(paths::find_command("bpf-linker").or(installed)?.parent()?.to_owned())
    };
    users()
}

/// Whether a toolchain has the sources of its `core` library.
fn has_core_sources(sysroot: &Path) -> bool {
    sysroot.join("lib/rustlib/src/rust/library/core/src/lib.rs").is_file()
}

/// The N of a compiler's version 1.N.
fn compiler_release(rustc: impl AsRef<OsStr>) -> Result<u32> {
    let text = output(Command::new(rustc).arg("--version"))?;
    parse_release(&text).with_context(|| format!("no version in `rustc --version`: {text}"))
}

fn parse_release(text: &str) -> Option<u32> {
    text.strip_prefix("rustc 1.")?.split('.').next()?.parse().ok()
}

fn parse_llvm(text: &str) -> Option<u32> {
    let version = text.lines().find_map(|line| line.strip_prefix("LLVM version: "))?;
    version.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_versions() {
        assert_eq!(parse_release("rustc 1.96.0 (ac68faa20 2026-05-25) (built from a source tarball)"), Some(96));
        assert_eq!(parse_release("rustc 1.97.0-nightly (e50aa6fba 2026-05-19)"), Some(97));
        assert_eq!(parse_release("clang 1.0"), None);
        assert_eq!(parse_llvm("release: 1.96.0\nLLVM version: 22.1.8\n"), Some(22));
        assert_eq!(parse_llvm("release: 1.96.0\n"), None);
    }
}
