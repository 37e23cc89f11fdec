//! Which tests run in the machine, and why others do not.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::run::output;
use crate::test::END_TO_END;
use crate::toolchain::host_cargo;

/// Files of tests that are not run, and the reason.
const LEFT_OUT: [(&str, &str); 15] = [
    ("bad_input", USER_SPACE),
    ("big_streams", USER_SPACE),
    ("dump", USER_SPACE),
    ("formats", USER_SPACE),
    ("heap", USER_SPACE),
    ("hostile_files", USER_SPACE),
    ("layouts", USER_SPACE),
    ("list", USER_SPACE),
    ("matrix", "the same as truth and memprof_truth, on more programs"),
    ("overhead", TIME),
    ("soak", TIME),
    ("stories", "the same as others, for minutes"),
    ("systemd", "boots a systemd, which wants to write to /var"),
    ("top", "draws what other tests look at"),
    ("trace_flush", TIME),
];

const USER_SPACE: &str = "does not use what differs between kernels";
const TIME: &str = "measures time, which an emulated CPU distorts";

/// One test.
#[derive(Debug)]
pub struct Job {
    /// The file it is in, without ending.
    pub file: String,
    /// Its name there.
    pub name: String,
    /// The program with it.
    pub binary: PathBuf,
}

/// All tests.
#[derive(Debug)]
pub struct Jobs {
    /// Those that run.
    pub jobs: Vec<Job>,
    /// Files that do not, and the reason.
    pub left_out: Vec<(&'static str, &'static str)>,
}

impl Jobs {
    /// Builds the tests whose file's or own name contains `filter`. What is asked for by its file's name runs in any
    /// case.
    pub fn build(filter: Option<&str>) -> Result<Self> {
        let mut jobs = Vec::new();
        for (file, binary) in build_tests()? {
            let is_asked_for = filter == Some(&*file);
            if !is_asked_for && reason(&file).is_some() {
                continue;
            }
            let wanted = |name: &&str| filter.is_none_or(|filter| file.contains(filter) || name.contains(filter));
            let list = output(Command::new(&binary).args(["--list", "--format=terse"]))?;
            let names = list.lines().filter_map(|line| line.strip_suffix(": test")).filter(wanted);
            jobs.extend(names.map(|name| Job { file: file.clone(), name: name.to_owned(), binary: binary.clone() }));
        }
        if jobs.is_empty() {
            bail!("no test that runs on other kernels has a name with {}", filter.unwrap_or_default());
        }
        let left_out = LEFT_OUT.into_iter().filter(|_| filter.is_none()).collect();
        Ok(Self { jobs, left_out })
    }
}

/// Why the tests in a file are not run.
fn reason(file: &str) -> Option<&'static str> {
    LEFT_OUT.iter().find(|(left_out, _)| *left_out == file).map(|(_, reason)| *reason)
}

/// The programs with the end-to-end tests, by the names of their files.
fn build_tests() -> Result<Vec<(String, PathBuf)>> {
    let mut cargo = host_cargo("test")?;
    cargo.args(["--package", END_TO_END, "--tests", "--no-run", "--message-format=json-render-diagnostics"]);
    let built = cargo.stderr(Stdio::inherit()).output().context("cannot run cargo")?;
    if !built.status.success() {
        bail!("the tests cannot be built");
    }
    let mut tests: Vec<_> = String::from_utf8_lossy(&built.stdout).lines().filter_map(artifact).collect();
    tests.sort();
    Ok(tests)
}

/// The test program that a message of cargo's is about.
fn artifact(line: &str) -> Option<(String, PathBuf)> {
    let message: Value = serde_json::from_str(line).ok()?;
    let is_test = message["target"]["kind"].as_array()?.iter().any(|kind| kind == "test");
    let name = message["target"]["name"].as_str()?;
    is_test.then_some(())?;
    Some((name.to_owned(), PathBuf::from(message["executable"].as_str()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_in_what_cargo_says() {
        let line =
            r#"{"reason":"compiler-artifact","target":{"kind":["test"],"name":"truth"},"executable":"/t/truth-1"}"#;
        assert_eq!(artifact(line), Some(("truth".to_owned(), PathBuf::from("/t/truth-1"))));
        let library = line.replace("[\"test\"]", "[\"lib\"]");
        assert_eq!(artifact(&library), None);
        assert_eq!(artifact("{\"reason\":\"build-finished\"}"), None);
    }

    #[test]
    fn what_is_left_out_exists() {
        for (file, _) in LEFT_OUT {
            let path = crate::paths::root().join("tests/tests").join(format!("{file}.rs"));
            assert!(path.is_file(), "there is no {}", path.display());
        }
    }
}
