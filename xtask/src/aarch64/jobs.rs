//! Selects the end-to-end tests to run on arm64: those of features that work there.

use std::collections::HashSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::kernel::jobs::{Job, Jobs};
use crate::packages::END_TO_END;
use crate::paths;
use crate::run::{output, run};
use crate::test_binaries::{self, TestBinary};
use crate::toolchain::Target;

/// The emulator that runs arm64 programs on this machine's own kernel.
pub const USER_EMULATOR: &str = "qemu-aarch64-static";

/// The files of tests to run.
const FILES: [&str; 6] = ["dump", "heap", "heap_pause", "interpreter", "layouts", "list"];

/// The filter that selects the tests which record.
pub const RECORD: &str = "record";
/// The files of these tests: they take longer, so they run only on request.
const RECORDING: [&str; 1] = ["oracle"];

/// Tests in these files that do not run, and the reason.
const LEFT_OUT: &[(&str, &str)] = &[
    ("dump::is_quick", SPEED),
    ("heap::a_large_heap_is_read_fast", SPEED),
    ("heap::it_and_the_memory_profile_point_at_the_same_leak", "lj-trace does not record there yet"),
];

const SPEED: &str = "measures speed, which an emulated machine does not have";

/// Builds the tests, and lists those whose file's or own name contains `filter`.
pub fn build(filter: Option<&str>) -> Result<Jobs> {
    let built = test_binaries::build_with(Target::Aarch64.cargo_for_tests("test")?, &[END_TO_END.to_owned()], |_| {})?;
    let binary = built.into_iter().find(TestBinary::is_end_to_end).context("there are no end-to-end tests")?.program;
    let list =
        |more: &[&str]| output(Command::new(USER_EMULATOR).arg(&binary).args(["--list", "--format=terse"]).args(more));
    let (list, ignored) = (list(&[])?, list(&["--ignored"])?);
    // Ignored ones take hours.
    let ignored: HashSet<&str> = ignored.lines().collect();
    let tests = list.lines().filter(|line| !ignored.contains(line));
    let tests = tests.filter_map(|line| line.strip_suffix(": test")?.split_once("::"));
    let is_left_out = |file: &str, name: &str| {
        let whole = format!("{file}::{name}");
        LEFT_OUT.iter().any(|(left_out, _)| *left_out == whole)
    };
    let is_wanted = |(file, name): &(&str, &str)| match filter {
        Some(RECORD) => RECORDING.contains(file) && !is_left_out(file, name),
        None => FILES.contains(file) && !is_left_out(file, name),
        // A test whose full name is the filter runs in any case.
        Some(filter) => {
            filter == *name
                || RECORDING.contains(&filter) && filter == *file
                || (file.contains(filter) || name.contains(filter)) && FILES.contains(file) && !is_left_out(file, name)
        }
    };
    let job = |(file, name): (&str, &str)| Job { file: file.to_owned(), name: name.to_owned(), binary: binary.clone() };
    let jobs: Vec<_> = tests.filter(is_wanted).map(job).collect();
    if jobs.is_empty() {
        bail!("no test that runs on arm64 has a name with {}", filter.unwrap_or_default());
    }
    let left_out = LEFT_OUT.iter().filter(|_| filter.is_none()).copied().collect();
    Ok(Jobs { jobs, left_out })
}

/// Builds the C libraries of the oracle's programs in a folder, because the emulated machine has no compiler.
pub fn build_libraries(folder: &Path) -> Result<()> {
    let mut cargo = Target::Aarch64.cargo_for_tests("build")?;
    run(cargo.args(["--package", END_TO_END, "--bin", "oracle"]))?;
    let oracle = paths::target().join(Target::Aarch64.name()).join("debug/oracle");
    let mut make = Command::new(USER_EMULATOR);
    run(make.arg(oracle).arg("--libraries").arg(folder).env("CC", Target::Aarch64.cc()))
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
        for (test, _) in LEFT_OUT {
            let (name, test) = test.split_once("::").unwrap();
            let text = std::fs::read_to_string(file(name)).unwrap();
            assert!(
                (FILES.contains(&name) || RECORDING.contains(&name)) && text.contains(&format!("fn {test}()")),
                "there is no {name}::{test}"
            );
        }
    }
}
