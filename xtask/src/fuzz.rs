//! `cargo xtask fuzz`: uses cargo-fuzz to search for input that breaks the readers, for any length of time. Every test
//! run does so for some seconds, with damage that knows nothing of the code (`agent/tests/fuzz.rs`).

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use clap::ValueEnum;

use crate::run::run;
use crate::toolchain::host_cargo;
use crate::{build, paths, setup};

/// The version of cargo-fuzz to build if there is none.
const CARGO_FUZZ: &str = "0.13.2";

/// Options of `cargo xtask fuzz`.
#[derive(clap::Args)]
pub struct Options {
    /// What gets the input
    target: Target,
    /// How long it takes, after it was compiled
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
}

#[derive(Clone, Copy, ValueEnum)]
enum Target {
    /// Streams, on their way to every report
    Stream,
    /// ELF files: symbols, unwind tables, debug information
    Elf,
    /// The walkers and decoders, on saved memory that the input changes
    Vm,
    /// What is read of a JIT compiler, from such memory
    Jit,
}

impl Target {
    /// Its name in `fuzz/Cargo.toml`.
    fn name(self) -> &'static str {
        match self {
            Self::Stream => "stream",
            Self::Elf => "elf",
            Self::Vm => "vm",
            Self::Jit => "jit",
        }
    }

    /// The initial inputs.
    fn first(self) -> Result<Vec<PathBuf>> {
        match self {
            Self::Stream => {
                let golden = fs::read_dir(paths::root().join("crates/streams/tests/golden"))?;
                let paths = golden.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
                Ok(paths.into_iter().filter(|path| path.extension().is_some_and(|it| it == "bin")).collect())
            }
            Self::Elf | Self::Vm | Self::Jit => Ok(vec!["/bin/true".into()]),
        }
    }
}

/// Builds the target, and runs it until the time is over or an input breaks it.
pub fn fuzz(options: &Options) -> Result<()> {
    setup::setup()?;
    let name = options.target.name();
    let folder = paths::target().join("fuzz");
    let [corpus, artifacts, commands] = ["corpus", "artifacts", "bin"].map(|part| folder.join(part));
    let (corpus, artifacts) = (corpus.join(name), artifacts.join(name));
    for folder in [&corpus, &artifacts, &commands] {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    for first in options.target.first()? {
        let place = corpus.join(first.file_name().context("a corpus has files")?);
        fs::copy(&first, place).with_context(|| format!("cannot copy {}", first.display()))?;
    }
    let mut command = Command::new(cargo_fuzz()?);
    command.current_dir(paths::root()).args(["fuzz", "run", "--fuzz-dir", "fuzz", "--sanitizer", "none", name]);
    command.arg(&corpus).args(["--", "-max_len=16384", "-rss_limit_mb=1024"]);
    command.arg(format!("-max_total_time={}", (options.minutes * 60.0).ceil()));
    command.arg(format!("-artifact_prefix={}/", artifacts.display()));
    as_host_cargo(&mut command, &commands)?;
    command.env("CARGO_TARGET_DIR", folder.join("build")).env_remove(build::BPF_OBJECT);
    run(&mut command).with_context(|| format!("what it found is in {}", artifacts.display()))
}

/// The `cargo-fuzz` command; builds it if there is none.
fn cargo_fuzz() -> Result<PathBuf> {
    let root = paths::cache().join(format!("cargo-fuzz-{CARGO_FUZZ}"));
    let built = root.join("bin/cargo-fuzz");
    if let Some(found) = paths::find_command("cargo-fuzz").or_else(|| built.is_file().then(|| built.clone())) {
        return Ok(found);
    }
    let mut cargo = Command::new("cargo");
    run(cargo.args(["install", "cargo-fuzz", "--locked", "--version", CARGO_FUZZ, "--root"]).arg(&root))?;
    Ok(built)
}

/// Makes a command that calls `cargo` call what [`host_cargo`] would call, because cargo-fuzz cannot pass on
/// `--ignore-rust-version`. It also lets the compiler accept cargo-fuzz's flags, which are those of a nightly.
fn as_host_cargo(command: &mut Command, folder: &Path) -> Result<()> {
    let real = host_cargo("build")?;
    let program = Path::new(real.get_program());
    // By its full path: the name alone would find the script itself.
    let found = if program.is_absolute() { Some(program.to_owned()) } else { paths::find_command("cargo") };
    let program = found.context("there is no cargo in PATH")?;
    let more = real.get_args().skip(1).map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    let script =
        format!("#!/bin/sh\nsubcommand=$1\nshift\nexec '{}' \"$subcommand\" {more} \"$@\"\n", program.display());
    let shim = folder.join("cargo");
    fs::write(&shim, script)?;
    fs::set_permissions(&shim, fs::Permissions::from_mode(0o755))?;
    command.envs(real.get_envs().filter_map(|(key, value)| Some((key, value?)))).env("RUSTC_BOOTSTRAP", "1");
    let mut path = OsString::from(folder);
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    command.env("PATH", path);
    Ok(())
}
