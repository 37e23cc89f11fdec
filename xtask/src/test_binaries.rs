//! The tests as programs: all are built together, so that shared code is compiled once; each is then run alone or
//! beside others.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Instant;
use std::{iter, thread};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::paths;
use crate::run::{at_leisure, output, run};
use crate::toolchain::host_cargo;

/// Files of end-to-end tests that need the machine to themselves: they measure time, cost, or shares between processes,
/// need something to finish within a time, or observe the whole host.
const ALONE: [&str; 16] = [
    "blockers",
    "blockers_edges",
    "dump",
    "dump_busy",
    "many_processes",
    "many_prototypes",
    "memprof_bounded",
    "memprof_harmless",
    "offcpu",
    "oracle",
    "overhead",
    "roomy",
    "sampling",
    "short_lived",
    "soak_memory",
    "waits",
];

/// The same for unit tests, by crate or file.
const UNIT_ALONE: [&str; 3] = ["bounds", "lj_trace_engine", "lj_trace_heap"];

/// Files of end-to-end tests that wait most of their time, and how many of their tests run at the same time. The tests in
/// other files run one after another, because they measure shares of CPU time.
const WAITING: [(&str, usize); 5] =
    [("blockers_edges", 2), ("containers", 3), ("deep", 2), ("target_life", 3), ("waits", 16)];

/// How many files to run at a time if they need not be alone. Each waits for half of its time, but the compiler uses
/// the rest: with a third file, the whole took as long.
const LANES: usize = 2;

/// Files that take a minute or longer. They start first, so that none of them runs on when all others have ended.
const LONG: [&str; 5] = ["deep", "export_agent", "export_servers", "systemd", "truth"];

/// The name of the program that has all end-to-end tests: a module for each file.
const END_TO_END: &str = "end_to_end";

/// One file of tests, or the unit tests of one crate.
#[derive(Clone)]
pub struct TestBinary {
    /// The folder of its package, where it runs.
    folder: PathBuf,
    /// The name of the file, or of the crate.
    name: String,
    /// The program with it.
    pub program: PathBuf,
    /// The arguments that select its tests.
    arguments: Vec<String>,
}

impl TestBinary {
    /// Whether it is one of the end-to-end tests.
    pub fn is_end_to_end(&self) -> bool {
        self.program.file_name().is_some_and(|name| name.to_string_lossy().starts_with(END_TO_END))
    }

    /// The command that runs it.
    fn command(&self, prepare: &(dyn Fn(&mut Command) + Sync)) -> Command {
        let mut command = Command::new(&self.program);
        command.current_dir(&self.folder).args(&self.arguments);
        prepare(&mut command);
        command
    }

    /// The test in a cargo message about an artifact, if it is one.
    fn of_artifact(artifact: &Value) -> Option<Self> {
        let is_test = artifact["profile"]["test"].as_bool()?;
        let folder = Path::new(artifact["manifest_path"].as_str()?).parent()?.to_owned();
        let (name, program) = (artifact["target"]["name"].as_str()?, artifact["executable"].as_str()?);
        is_test.then(|| Self { folder, name: name.to_owned(), program: program.into(), arguments: Vec::new() })
    }

    /// Its tests with `filter` in their names. End-to-end tests are split by file.
    fn filtered(self, filter: Option<&str>) -> Result<Vec<Self>> {
        if !self.is_end_to_end() {
            return Ok(vec![Self { arguments: filter.map(str::to_owned).into_iter().collect(), ..self }]);
        }
        let tests = list(&self.program)?;
        let of_files =
            by_file(tests.iter().map(String::as_str).filter(|test| filter.is_none_or(|part| test.contains(part))));
        let of_file = |(file, tests): (&str, Vec<&str>)| {
            let at_once = WAITING.iter().find(|(name, _)| *name == file).map_or(1, |(_, tests)| *tests);
            let options = ["--exact".to_owned(), format!("--test-threads={at_once}")];
            Self {
                folder: self.folder.clone(),
                name: file.to_owned(),
                program: self.program.clone(),
                arguments: options.into_iter().chain(tests.into_iter().map(str::to_owned)).collect(),
            }
        };
        Ok(of_files.into_iter().map(of_file).collect())
    }
}

/// The tests that a program has, ignored ones included.
///
/// # Errors
/// The program does not list them.
pub fn list(program: &Path) -> Result<Vec<String>> {
    listed(program, &[])
}

/// The ignored tests that a program has.
///
/// # Errors
/// As [`list`].
pub fn list_ignored(program: &Path) -> Result<Vec<String>> {
    listed(program, &["--ignored"])
}

fn listed(program: &Path, more: &[&str]) -> Result<Vec<String>> {
    let list = output(Command::new(program).args(["--list", "--format=terse"]).args(more))?;
    Ok(list.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
}

/// Groups tests by their outermost module.
fn by_file<'a>(tests: impl Iterator<Item = &'a str>) -> BTreeMap<&'a str, Vec<&'a str>> {
    let mut files = BTreeMap::<_, Vec<_>>::new();
    for test in tests {
        let file = test.split_once("::").map_or("", |(file, _)| file);
        files.entry(file).or_default().push(test);
    }
    files
}

/// What was built.
#[derive(Default)]
pub struct Built {
    /// The tests.
    pub binaries: Vec<TestBinary>,
    /// How many warnings there were.
    pub warnings: usize,
}

/// Builds the tests of these packages that have `filter` in their names. The lints of [`linter`] are checked meanwhile.
///
/// # Errors
/// One of them does not compile.
pub fn build(packages: &[String], filter: Option<&str>, prepare: impl Fn(&mut Command)) -> Result<Built> {
    let mut cargo = host_cargo("test")?;
    if let Some(linter) = linter() {
        cargo.env("RUSTC_WORKSPACE_WRAPPER", linter);
    }
    let Built { binaries, warnings } = build_with(cargo, packages, prepare)?;
    let mut binaries = binaries.into_iter().map(|binary| binary.filtered(filter)).collect::<Result<Vec<_>>>()?.concat();
    binaries.sort_by(|one, other| (&one.folder, &one.name).cmp(&(&other.folder, &other.name)));
    Ok(Built { binaries, warnings })
}

/// The compiler that also checks clippy's lints: so nothing is compiled once more for them. [`None`] if there is none for
/// the compiler in use.
pub fn linter() -> Option<PathBuf> {
    if std::env::var_os("RUSTC").is_some() { None } else { paths::find_command("clippy-driver") }
}

/// The same with this `cargo test`; each file has all of its tests.
///
/// # Errors
/// As [`build`].
pub fn build_with(mut cargo: Command, packages: &[String], prepare: impl Fn(&mut Command)) -> Result<Built> {
    cargo.args(["--no-run", "--message-format=json"]);
    cargo.args(packages.iter().flat_map(|package| ["--package", package]));
    prepare(&mut cargo);
    // The build of lj-trace runs beside it. It has long stretches for one CPU, and all tests wait for it.
    let mut cargo = at_leisure(&cargo);
    let built = cargo.stdin(Stdio::null()).stderr(Stdio::inherit()).output().context("cannot run cargo")?;
    let lines = built.stdout.split(|byte| *byte == b'\n');
    let messages: Vec<Value> = lines.filter_map(|line| serde_json::from_slice(line).ok()).collect();
    let shown = messages.iter().filter_map(|message| message["message"]["rendered"].as_str());
    let warnings = shown.inspect(|text| eprint!("{text}")).count();
    if !built.status.success() {
        bail!("the tests cannot be built: {}", built.status);
    }
    Ok(Built { binaries: messages.iter().filter_map(TestBinary::of_artifact).collect(), warnings })
}

/// Splits the tests into those that may run beside others and those that need the machine to themselves.
pub fn by_company(binaries: Vec<&TestBinary>) -> (Vec<&TestBinary>, Vec<&TestBinary>) {
    binaries.into_iter().partition(|binary| {
        let alone: &[&str] = if binary.is_end_to_end() { &ALONE } else { &UNIT_ALONE };
        !alone.contains(&binary.name.as_str())
    })
}

/// Runs several at a time.
///
/// # Errors
/// Tests have failed; the message names their files.
pub fn run_shared(binaries: &[&TestBinary], prepare: &(dyn Fn(&mut Command) + Sync)) -> Result<()> {
    let failed = Mutex::new(Vec::new());
    let (long, others): (Vec<&TestBinary>, Vec<&TestBinary>) =
        binaries.iter().copied().partition(|binary| LONG.contains(&binary.name.as_str()));
    let next = Mutex::new(long.into_iter().chain(others));
    let take = || next.lock().ok()?.next();
    thread::scope(|scope| {
        for _ in 0..LANES {
            scope.spawn(|| {
                for binary in iter::from_fn(take) {
                    let outcome = run_beside(&mut binary.command(prepare), binary);
                    if outcome.is_err()
                        && let Ok(mut failed) = failed.lock()
                    {
                        failed.push(binary.name.as_str());
                    }
                }
            });
        }
    });
    verdict(&failed.into_inner().unwrap_or_default(), binaries.len())
}

/// Runs them one after another.
///
/// # Errors
/// As of [`run_shared`].
pub fn run_alone(binaries: &[&TestBinary], prepare: &(dyn Fn(&mut Command) + Sync)) -> Result<()> {
    let mut failed = Vec::new();
    for binary in binaries {
        eprintln!("\n     Running {}", binary.name);
        if run(&mut binary.command(prepare)).is_err() {
            failed.push(binary.name.as_str());
        }
    }
    verdict(&failed, binaries.len())
}

fn verdict(failed: &[&str], all: usize) -> Result<()> {
    if failed.is_empty() {
        return Ok(());
    }
    bail!("{} of {all} failed: {}", failed.len(), failed.join(", "))
}

/// Runs one beside others: its output is printed in one piece.
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
    use crate::paths;

    #[test]
    fn those_that_run_alone_are_there() {
        let folder = paths::root().join("tests/tests");
        let waiting = WAITING.iter().map(|(name, _)| name);
        for name in ALONE.iter().chain(waiting).chain(&LONG) {
            assert!(folder.join(name).with_extension("rs").is_file(), "{name}");
        }
    }

    #[test]
    fn every_file_has_its_module() {
        let folder = paths::root().join("tests/tests");
        let main = std::fs::read_to_string(folder.join("main.rs")).unwrap();
        let modules: Vec<_> = main.lines().filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';')).collect();
        let files = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<_> = files.map(|path| path.file_stem().unwrap().to_string_lossy().into_owned()).collect();
        files.retain(|name| name != "main");
        files.sort();
        assert_eq!(modules, files, "{}", folder.join("main.rs").display());
    }

    #[test]
    fn tests_are_told_from_other_artifacts() {
        let artifact = |test: bool, executable: Option<&str>| {
            serde_json::json!({
                "reason": "compiler-artifact", "manifest_path": paths::root().join("tests/Cargo.toml"),
                "target": {"name": "end_to_end"}, "profile": {"test": test}, "executable": executable,
            })
        };
        let found = TestBinary::of_artifact(&artifact(true, Some("/w/target/end_to_end-1"))).unwrap();
        assert!(found.is_end_to_end());
        assert!(TestBinary::of_artifact(&artifact(false, Some("/w/target/agent"))).is_none());
        assert!(TestBinary::of_artifact(&artifact(true, None)).is_none());
    }

    #[test]
    fn tests_are_told_apart_by_their_files() {
        let files = by_file(["dump::idle", "dump::busy", "matrix::luajit::sysprof"].into_iter());
        assert_eq!(files["dump"], ["dump::idle", "dump::busy"]);
        assert_eq!(files["matrix"], ["matrix::luajit::sysprof"]);
    }
}
