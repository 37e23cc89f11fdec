//! Selects the tests to run in the machine, and gives the reasons for leaving out others.

use std::collections::HashSet;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};

use crate::build;
use crate::packages::END_TO_END;
use crate::test_binaries::{self, TestBinary};

/// Files of tests, or single tests, that do not run, with the reason.
const LEFT_OUT: &[(&str, &str)] = &[
    ("bad_input", USER_SPACE),
    ("big_streams", USER_SPACE),
    ("dump", USER_SPACE),
    ("fiber_labels::ids_are_those_of_the_fiber_that_runs", "the same as names, read with a program of the host"),
    ("fiber_labels::labels_are_those_of_the_function_that_runs", TICKS),
    ("fiber_labels::waits_have_the_fiber_that_waits", USER_SPACE),
    ("formats", USER_SPACE),
    ("heap", USER_SPACE),
    ("hostile_files", USER_SPACE),
    ("jit", TICKS),
    ("jit_gave_up", USER_SPACE),
    ("layouts", USER_SPACE),
    ("lifetimes::deaths_on_gc64", LOAD),
    ("lifetimes::deaths_on_tarantool", LOAD),
    ("list", USER_SPACE),
    ("matrix", "the same as truth and memprof_truth, on more programs"),
    ("memprof_truth::samples_cost_no_events", TICKS),
    ("offcpu", TIME),
    ("overhead", TIME),
    ("per_request::every_request_is_counted_and_its_cpu_time_is_told", TICKS),
    ("per_request::kills_leave_nothing_in_nginx", TIME),
    ("per_request::requests_are_counted_by_route", TIME),
    ("per_request::the_time_that_one_request_waits_is_told", TIME),
    ("privileges::root_gives_up_its_powers_once_it_has_attached", LOAD),
    ("privileges::three_capabilities_are_enough_and_one_is_to_the_end", LOAD),
    ("request_allocations", LOAD),
    ("soak", TIME),
    ("soak_memory", TIME),
    ("stories", "the same as others, for minutes"),
    ("systemd", "boots a systemd, which wants to write to /var"),
    ("threads", TICKS),
    ("top", "draws what other tests look at"),
    ("trace_flush", TIME),
    ("trace_shares", TICKS),
    ("truth::nearly_all_the_time_is_sampled", TICKS),
    ("truth::shares_are_what_the_program_measured", TICKS),
    ("waits", USER_SPACE),
];

const USER_SPACE: &str = "does not use what differs between kernels";
const TICKS: &str =
    "counts on ticks of the sampler, most of which an emulated CPU misses that has to wait for a real one";
const LOAD: &str = "records a program that does nothing but allocate: more than an emulated CPU does in that time";
const TIME: &str = "measures time, which an emulated CPU distorts";

/// Files whose tests are ignored elsewhere, since they would harm whoever else uses the machine: this one is its own.
const ONLY_HERE: &[&str] = &["cpu_hotplug"];

/// One test.
#[derive(Debug)]
pub struct Job {
    /// Its file, without extension.
    pub file: String,
    /// Its name within the file.
    pub name: String,
    /// The program with it.
    pub binary: PathBuf,
    /// What else is known, if it is no test but a search.
    pub search: Option<Search>,
}

/// A program that looks for failures for long, and says what it finds as it goes on.
#[derive(Debug)]
pub struct Search {
    /// Its arguments.
    pub arguments: Vec<String>,
    /// How long it may take, in seconds.
    pub limit: u64,
}

/// All tests.
#[derive(Debug)]
pub struct Jobs {
    /// The tests that run.
    pub jobs: Vec<Job>,
    /// The files and tests that do not run, with the reason.
    pub left_out: Vec<(&'static str, &'static str)>,
    /// Whether they need the C programs of the tests.
    pub need_libraries: bool,
}

impl Jobs {
    /// Builds the tests whose file or name contains `filter`. A test whose full name is the filter runs in any case. Ignored
    /// tests take hours, or are those that only run here.
    pub fn build(filter: Option<&str>) -> Result<Self> {
        let binary = build_tests()?;
        let is_wanted = |test: &FileAndTest<'_>| {
            let (file, name) = *test;
            let is_meant = filter.is_none_or(|filter| file.contains(filter) || name.contains(filter));
            let is_left_out = is_left_out(file) && filter != Some(file)
                || is_left_out(&format!("{file}::{name}")) && filter != Some(name);
            is_meant && !is_left_out
        };
        let list = test_binaries::list(&binary)?;
        let ignored: HashSet<String> = test_binaries::list_ignored(&binary)?.into_iter().collect();
        let runs = |test: &&String| {
            let is_for_here = ONLY_HERE.iter().any(|file| test.split("::").next() == Some(*file));
            !ignored.contains(*test) || is_for_here || filter == Some(test.as_str())
        };
        let tests = list.iter().filter(runs).filter_map(|test| test.split_once("::")).filter(is_wanted);
        let jobs = tests.map(|(file, name)| Job {
            file: file.to_owned(),
            name: name.to_owned(),
            binary: binary.clone(),
            search: None,
        });
        let jobs: Vec<_> = jobs.collect();
        if jobs.is_empty() {
            bail!("no test that runs on other kernels has a name with {}", filter.unwrap_or_default());
        }
        let left_out = LEFT_OUT.iter().filter(|_| filter.is_none()).copied().collect();
        Ok(Self { jobs, left_out, need_libraries: true })
    }
}

/// Whether a file or a test is left out.
fn is_left_out(what: &str) -> bool {
    LEFT_OUT.iter().any(|(left_out, _)| *left_out == what)
}

/// The file of a test, and its name within the file.
type FileAndTest<'a> = (&'a str, &'a str);

/// The program with the end-to-end tests.
fn build_tests() -> Result<PathBuf> {
    let built = test_binaries::build(&[END_TO_END.to_owned()], None, |cargo| {
        _ = cargo.env(build::BPF_OBJECT, build::bpf_object())
    })?;
    let test = built.binaries.into_iter().find(TestBinary::is_end_to_end);
    Ok(test.context("there are no end-to-end tests")?.program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_exists() {
        let only_here = ONLY_HERE.iter().map(|file| (*file, ""));
        for (file, _) in LEFT_OUT.iter().copied().chain(only_here) {
            let (file, test) = file.split_once("::").unwrap_or((file, ""));
            let path = crate::paths::root().join("tests/tests").join(format!("{file}.rs"));
            let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            assert!(test.is_empty() || text.contains(&format!("fn {test}()")), "there is no {file}::{test}");
        }
    }
}
