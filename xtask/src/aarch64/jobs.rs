//! Selects the end-to-end tests to run on arm64: those of features that work there.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::build::{BPF_OBJECT, BpfPrograms, build_bpf};
use crate::kernel::jobs::{Job, Jobs, Search};
use crate::packages::END_TO_END;
use crate::paths;
use crate::run::{output, run};
use crate::test_binaries::{self, TestBinary};
use crate::toolchain::{EMULATED, Target};

/// The emulator that runs arm64 programs on this machine's own kernel.
pub const USER_EMULATOR: &str = "qemu-aarch64-static";

/// The files of tests to run.
const FILES: [&str; 6] = ["dump", "heap", "heap_pause", "interpreter", "layouts", "list"];

/// The filter that selects the tests which record.
pub const RECORD: &str = "record";
/// The files of these tests: they take longer, so they run only on request.
const RECORDING: [&str; 8] = [
    "hostile_kill",
    "ledger",
    "memprof_symbols",
    "memprof_traces",
    "memprof_truth",
    "memprof_vms",
    "oracle",
    "request_labels",
];

/// The filter that selects all tests.
pub const ALL: &str = "all";

/// The file of the matrix.
const MATRIX: &str = "matrix";

/// Files of tests, or single tests, that do not run, with the reason.
const LEFT_OUT: &[(&str, &str)] = &[
    ("deep::recursion", SPEED),
    ("deep::recursion_that_is_compiled", SPEED),
    ("deep::recursion_through_c_code", SPEED),
    ("deep::recursion_through_coroutines", SPEED),
    ("dump::is_quick", SPEED),
    ("heap::a_large_heap_is_read_fast", SPEED),
    ("heap::it_and_the_memory_profile_point_at_the_same_leak", SPEED),
    ("hostile_kill::no_breakpoint_slows_what_is_no_longer_recorded", SPEED),
    ("lifetimes::a_leak_is_named", SPEED),
    ("many_processes::a_thousand_vms_are_as_good_as_one", SPEED),
    ("matrix", "`cargo xtask matrix --arch aarch64` runs it"),
    ("memprof_bounded::one_that_changes_threads_all_the_time_keeps_its_budget", SPEED),
    ("soak", SPEED),
    ("soak_memory", SPEED),
    ("stories", "the same as others, for minutes"),
    ("systemd", "boots a systemd, which that root does not have"),
    ("threads::that_start_while_lj_trace_attaches", SPEED),
    ("waits::coroutines_of_luv_are_told_by_who_has_called", LOOKS),
    ("waits::short_waits_are_estimated", LOOKS),
    ("waits::waits_are_grouped_by_the_location_of_their_request", LOOKS),
    ("waits::waits_of_one_location_can_be_kept", LOOKS),
];

const LOOKS: &str = "holds shares against looks, and an emulated machine is so slow that lj-trace looks every 3 s";
const SPEED: &str = "measures speed, which an emulated machine does not have";

/// Builds the tests, and lists those whose file's or own name contains `filter`.
pub fn build(filter: Option<&str>) -> Result<Jobs> {
    let tests = Tests::build()?;
    let is_left_out = |what: &str| LEFT_OUT.iter().any(|(left_out, _)| *left_out == what);
    let is_wanted = |test: &&Test| {
        let (file, name) = (test.file.as_str(), test.name.as_str());
        let usually_runs = !test.is_ignored && !is_left_out(&format!("{file}::{name}"));
        let runs = usually_runs && !is_left_out(file);
        match filter {
            Some(RECORD) => RECORDING.contains(&file) && runs,
            Some(ALL) => runs,
            None => FILES.contains(&file) && runs,
            // A test or a file whose full name is the filter runs in any case.
            Some(filter) => {
                filter == name
                    || filter == file && usually_runs
                    || (file.contains(filter) || name.contains(filter)) && runs
            }
        }
    };
    let jobs: Vec<_> = tests.jobs(is_wanted);
    if jobs.is_empty() {
        bail!("no test that runs on arm64 has a name with {}", filter.unwrap_or_default());
    }
    let of_list = |what: &str| match filter {
        None => FILES.contains(&file_of(what)),
        Some(RECORD) => RECORDING.contains(&file_of(what)),
        Some(filter) => filter == ALL,
    };
    let left_out = LEFT_OUT.iter().filter(|(what, _)| of_list(what)).copied().collect();
    Ok(Jobs { jobs, left_out, need_libraries: true })
}

/// The file that is left out, or that of the test.
fn file_of(what: &str) -> &str {
    what.split_once("::").map_or(what, |(file, _)| file)
}

/// Builds the tests, and lists those of the matrix.
pub fn of_matrix() -> Result<Jobs> {
    Ok(Jobs { jobs: Tests::build()?.jobs(|test| test.file == MATRIX), left_out: Vec::new(), need_libraries: true })
}

/// A test.
struct Test {
    file: String,
    /// Its name within the file.
    name: String,
    /// Whether it takes long, and runs only on request.
    is_ignored: bool,
}

/// The end-to-end tests for arm64.
struct Tests {
    binary: PathBuf,
    tests: Vec<Test>,
}

impl Tests {
    fn build() -> Result<Self> {
        let cargo = Target::Aarch64.cargo_for_tests("test")?;
        // Some of the tests use the agent's library, including the BPF programs.
        let object = build_bpf(BpfPrograms::Shipped, Some(Target::Aarch64))?;
        let built =
            test_binaries::build_with(cargo, &[END_TO_END.to_owned()], |cargo| _ = cargo.env(BPF_OBJECT, &object))?;
        let binary = built.binaries.into_iter().find(TestBinary::is_end_to_end);
        let binary = binary.context("there are no end-to-end tests")?.program;
        let list = |more: &[&str]| {
            output(Command::new(USER_EMULATOR).arg(&binary).args(["--list", "--format=terse"]).args(more))
        };
        let (list, ignored) = (list(&[])?, list(&["--ignored"])?);
        let ignored: HashSet<&str> = ignored.lines().collect();
        let tests = list.lines().filter_map(|line| {
            let (file, name) = line.strip_suffix(": test")?.split_once("::")?;
            Some(Test { file: file.to_owned(), name: name.to_owned(), is_ignored: ignored.contains(line) })
        });
        Ok(Self { tests: tests.collect(), binary })
    }

    fn jobs(&self, is_wanted: impl FnMut(&&Test) -> bool) -> Vec<Job> {
        let wanted = self.tests.iter().filter(is_wanted);
        let job = |test: &Test| Job {
            file: test.file.clone(),
            name: test.name.clone(),
            binary: self.binary.clone(),
            search: None,
        };
        wanted.map(job).collect()
    }
}

/// Builds the oracle, which takes these `arguments` and may take so many `minutes`.
pub fn of_oracle(arguments: Vec<String>, minutes: u64) -> Result<Jobs> {
    let search = Some(Search { arguments, limit: minutes * 60 });
    let job = Job { file: "oracle".to_owned(), name: "random_programs".to_owned(), binary: build_oracle()?, search };
    Ok(Jobs { jobs: vec![job], left_out: Vec::new(), need_libraries: true })
}

/// A script of the shell, which may take so many `minutes`.
pub fn of_script(name: &str, script: PathBuf, minutes: u64) -> Jobs {
    let search = Some(Search { arguments: Vec::new(), limit: minutes * 60 });
    let job = Job { file: "script".to_owned(), name: name.to_owned(), binary: script, search };
    Jobs { jobs: vec![job], left_out: Vec::new(), need_libraries: false }
}

fn build_oracle() -> Result<PathBuf> {
    let mut cargo = Target::Aarch64.cargo_for_tests("build")?;
    run(cargo.args(["--package", END_TO_END, "--bin", "oracle"]))?;
    Ok(paths::target().join(Target::Aarch64.name()).join(EMULATED).join("oracle"))
}

/// Compiles the C programs of the tests in a folder, because the emulated machine has no compiler.
pub fn compile(folder: &Path, options: &str) -> Result<()> {
    let mut make = Command::new(USER_EMULATOR);
    run(make.arg(build_oracle()?).arg("--libraries").arg(folder).env("CC", Target::Aarch64.cc()).env("CFLAGS", options))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_exists() {
        let file = |name: &str| paths::root().join("tests/tests").join(name).with_extension("rs");
        for name in FILES.into_iter().chain(RECORDING) {
            assert!(file(name).is_file(), "{name}");
        }
        for (what, _) in LEFT_OUT {
            let text = std::fs::read_to_string(file(file_of(what))).unwrap();
            let test = what.split_once("::").map_or("", |(_, test)| test);
            assert!(test.is_empty() || text.contains(&format!("fn {test}()")), "there is no {what}");
        }
    }
}
