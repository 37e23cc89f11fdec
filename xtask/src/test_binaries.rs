//! The tests as programs: all are built at once, so that what they share is compiled once, and each is run as it may be.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Instant;
use std::{iter, thread};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::paths;
use crate::run::run;
use crate::toolchain::host_cargo;

/// End-to-end tests that may run two at a time: they look at what lj-trace says of processes of their own, and measure no time, no
/// shares between processes, no cost, and nothing of the whole host.
const BESIDE_OTHERS: [&str; 33] = [
    "alloc_stacks",
    "bad_input",
    "big_streams",
    "comparing",
    "containers",
    "debuginfod",
    "deep",
    "export_agent",
    "export_otlp",
    "export_servers",
    "formats",
    "function_names",
    "heap_diff",
    "host_agent",
    "hostile",
    "hostile_elf",
    "hostile_files",
    "hostile_outputs",
    "hostile_sources",
    "hostile_text",
    "jit_gave_up",
    "memprof_symbols",
    "memprof_traces",
    "memprof_vms",
    "names",
    "renumbered",
    "reuse",
    "soak_agent",
    "store",
    "stories",
    "traces",
    "vms",
    "wrong_input",
];

/// The same of unit tests, by crate or file.
const UNIT_BESIDE_OTHERS: [&str; 15] = [
    "arch",
    "docs",
    "fuzz",
    "layers",
    "lj_trace_luajit",
    "lj_trace_process",
    "lj_trace_profile",
    "lj_trace_streams",
    "lj_trace_unwind",
    "luajit_links",
    "names",
    "saved_memory",
    "vm_truth",
    "walk",
    "xtask",
];

/// How many of these run at a time.
const LANES: usize = 2;

/// One file of tests, or the unit tests of one crate.
pub struct TestBinary {
    /// The folder of its package: where it runs.
    folder: PathBuf,
    /// The name of the file, or of the crate.
    name: String,
    program: PathBuf,
}

impl TestBinary {
    /// Whether it is one of the end-to-end tests.
    pub fn is_end_to_end(&self) -> bool {
        self.folder == paths::root().join("tests")
    }

    /// The command that runs it.
    fn command(&self, prepare: &(dyn Fn(&mut Command) + Sync)) -> Command {
        let mut command = Command::new(&self.program);
        command.current_dir(&self.folder);
        prepare(&mut command);
        command
    }

    /// Of what cargo says about an artifact, if it is a test.
    fn of_artifact(artifact: &Value) -> Option<Self> {
        let is_test = artifact["profile"]["test"].as_bool()?;
        let folder = Path::new(artifact["manifest_path"].as_str()?).parent()?.to_owned();
        let (name, program) = (artifact["target"]["name"].as_str()?, artifact["executable"].as_str()?);
        is_test.then(|| Self { folder, name: name.to_owned(), program: program.into() })
    }
}

/// Builds the tests of these packages.
///
/// # Errors
/// One of them does not compile.
pub fn build(packages: &[String], prepare: impl Fn(&mut Command)) -> Result<Vec<TestBinary>> {
    let mut cargo = host_cargo("test")?;
    cargo.args(["--no-run", "--message-format=json-render-diagnostics"]);
    cargo.args(packages.iter().flat_map(|package| ["--package", package]));
    prepare(&mut cargo);
    let built = cargo.stdin(Stdio::null()).stderr(Stdio::inherit()).output().context("cannot run cargo")?;
    if !built.status.success() {
        bail!("the tests cannot be built: {}", built.status);
    }
    let lines = built.stdout.split(|byte| *byte == b'\n');
    let artifacts = lines.filter_map(|line| serde_json::from_slice(line).ok());
    let mut binaries: Vec<_> = artifacts.filter_map(|artifact: Value| TestBinary::of_artifact(&artifact)).collect();
    binaries.sort_by(|one, other| (&one.folder, &one.name).cmp(&(&other.folder, &other.name)));
    Ok(binaries)
}

/// Runs these, one after the other, but two at a time where that does no harm.
///
/// # Errors
/// Tests have failed: in which of them.
pub fn run_all(binaries: &[&TestBinary], prepare: &(dyn Fn(&mut Command) + Sync)) -> Result<()> {
    let is_shared = |binary: &&&TestBinary| {
        let name = binary.name.as_str();
        let listed: &[&str] = if binary.is_end_to_end() { &BESIDE_OTHERS } else { &UNIT_BESIDE_OTHERS };
        listed.contains(&name)
    };
    let (shared, alone): (Vec<_>, Vec<_>) = binaries.iter().partition(is_shared);
    let failed = Mutex::new(Vec::new());
    let next = Mutex::new(shared.into_iter());
    let take = || next.lock().ok()?.next();
    thread::scope(|scope| {
        for _ in 0..LANES {
            scope.spawn(|| {
                for binary in iter::from_fn(take) {
                    note(&failed, binary, run_beside(&mut binary.command(prepare), binary));
                }
            });
        }
    });
    for binary in alone {
        eprintln!("\n     Running {}", binary.name);
        note(&failed, binary, run(&mut binary.command(prepare)));
    }
    let failed = failed.into_inner().unwrap_or_default();
    if failed.is_empty() {
        Ok(())
    } else {
        bail!("{} of {} failed: {}", failed.len(), binaries.len(), failed.join(", "))
    }
}

fn note(failed: &Mutex<Vec<String>>, binary: &TestBinary, outcome: Result<()>) {
    if outcome.is_err()
        && let Ok(mut failed) = failed.lock()
    {
        failed.push(binary.name.clone());
    }
}

/// Runs one while others run: what it prints is shown in one piece.
fn run_beside(command: &mut Command, binary: &TestBinary) -> Result<()> {
    let began = Instant::now();
    let output = command.stdin(Stdio::null()).output()?;
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let seconds = began.elapsed().as_secs_f64();
    eprintln!("\n     Running {}, beside others: {seconds:.1} s\n{}", binary.name, text.concat());
    if !output.status.success() {
        bail!("{}", output.status);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_may_share_are_there() {
        let folder = paths::root().join("tests/tests");
        for name in BESIDE_OTHERS {
            assert!(folder.join(name).with_extension("rs").is_file(), "{name}");
        }
    }

    #[test]
    fn tests_are_told_from_other_artifacts() {
        let artifact = |test: bool, executable: Option<&str>| {
            serde_json::json!({
                "reason": "compiler-artifact", "manifest_path": paths::root().join("tests/Cargo.toml"), "target": {"name": "dump"},
                "profile": {"test": test}, "executable": executable,
            })
        };
        let found = TestBinary::of_artifact(&artifact(true, Some("/w/target/dump-1"))).unwrap();
        assert!(found.is_end_to_end() && found.name == "dump");
        assert!(TestBinary::of_artifact(&artifact(false, Some("/w/target/agent"))).is_none());
        assert!(TestBinary::of_artifact(&artifact(true, None)).is_none());
    }
}
