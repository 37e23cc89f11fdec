//! Engines that read stored profiles, as Python packages from PyPI, each in a folder of its own: DuckDB for every test
//! run; ClickHouse (chDB) and Spark, half a gigabyte each, for `cargo xtask engines`, which also tests the servers of
//! `servers.rs`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::run::run;
use crate::toolchain::host_cargo;
use crate::{build, lupa, paths, servers};

/// An engine, by its name among the tests.
pub struct Engine {
    /// The name of the package and of its module.
    pub name: &'static str,
    version: &'static str,
}

/// The engine that every test run reads files with.
pub const DUCKDB: Engine = Engine { name: "duckdb", version: "2.0.1" };
const LARGE: [Engine; 2] = [Engine { name: "chdb", version: "4.4.0" }, Engine { name: "pyspark", version: "4.3.0" }];

impl Engine {
    fn folder(&self) -> PathBuf {
        paths::cache().join("engines").join(self.name)
    }

    /// Whether the tested version is installed.
    pub fn is_here(&self) -> bool {
        self.folder().join(format!("{}-{}.dist-info", self.name, self.version)).is_dir()
    }

    /// Installs it into its folder.
    pub fn install(&self) -> Result<()> {
        if !lupa::can_be_had() {
            bail!("there is no python3 with pip");
        }
        let (folder, partial) = (self.folder(), self.folder().with_extension("partial"));
        eprintln!("setup: installing {} {} into {}", self.name, self.version, folder.display());
        for leftover in [&folder, &partial] {
            if leftover.exists() {
                std::fs::remove_dir_all(leftover).with_context(|| format!("cannot remove {}", leftover.display()))?;
            }
        }
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--root-user-action", "ignore", "--target"]).arg(&partial);
        run(pip.arg(format!("{}=={}", self.name, self.version)))?;
        std::fs::rename(&partial, &folder).with_context(|| format!("cannot make {}", folder.display()))
    }
}

/// An S3-compatible server, as a Go module.
const S3: &str = "github.com/versity/versitygw/cmd/versitygw@v1.8.0";

fn s3_server() -> Result<PathBuf> {
    let folder = paths::cache().join("engines/versitygw-1.8.0");
    let program = folder.join("versitygw");
    if !program.is_file() {
        eprintln!("setup: building {S3}");
        run(Command::new("go").args(["install", S3]).env("GOBIN", folder))?;
    }
    Ok(program)
}

/// Options of `cargo xtask engines`.
#[derive(clap::Args)]
pub struct Options {
    /// Only the servers that profiles are sent to
    #[arg(long)]
    sent: bool,
    /// Only the engines that read what is stored, and the storage
    #[arg(long, conflicts_with = "sent")]
    stored: bool,
    /// Test with this Pyroscope from now on
    #[arg(long, value_name = "FILE")]
    pyroscope: Option<PathBuf>,
}

/// Makes engines read stored profiles, and servers accept profiles.
pub fn engines(options: &Options) -> Result<()> {
    if !options.sent {
        stored()?;
    }
    if options.stored { Ok(()) } else { sent(options.pyroscope.as_deref()) }
}

/// Sends profiles from streams and from an agent to the Collector, Parca and Pyroscope, and queries them. Without a
/// Pyroscope, it says so.
fn sent(pyroscope: Option<&Path>) -> Result<()> {
    pyroscope.map_or(Ok(()), servers::take_pyroscope)?;
    servers::install()?;
    let binary = build::build(&build::Options::default())?;
    let mut cargo = host_cargo("test")?;
    cargo.args(["--package", "lj-trace-tests", "--test", "end_to_end", "--"]);
    cargo.args(["export_otlp::", "export_servers::", "export_agent::"]);
    cargo.args(["--include-ignored", "--nocapture", "--test-threads=1"]);
    run(cargo
        .env("LJ_TRACE_BIN", binary)
        .env("LJ_TRACE_TEST_ENGINES", "all")
        .env("LJ_TRACE_TEST_WITHOUT", servers::missing().join(","))
        .env(build::BPF_OBJECT, build::bpf_object()))
}

/// Makes ClickHouse and Spark read stored profiles, with the queries of docs/store.md, and an S3-compatible server
/// accept them.
fn stored() -> Result<()> {
    for engine in LARGE.iter().chain([&DUCKDB]).filter(|engine| !engine.is_here()) {
        engine.install()?;
    }
    if paths::find_command("java").is_none() {
        bail!("Spark needs Java: `apt-get install openjdk-17-jre-headless`");
    }
    let mut cargo = host_cargo("test")?;
    cargo.args(["--package", "lj-trace-store", "--features", "s3", "--test", "remote"]);
    run(cargo.env("LJ_TRACE_TEST_VERSITYGW", s3_server()?))?;
    let binary = build::build(&build::Options::default())?;
    let mut cargo = host_cargo("test")?;
    cargo.args(["--package", "lj-trace-tests", "--test", "end_to_end", "--", "clickhouse_and_spark", "--nocapture"]);
    run(cargo
        .env("LJ_TRACE_BIN", binary)
        .env("LJ_TRACE_TEST_ENGINES", "all")
        .env(build::BPF_OBJECT, build::bpf_object()))
}
