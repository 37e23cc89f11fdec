//! A verdict on each test.

use std::collections::BTreeMap;

use anyhow::{Result, bail};

use super::guest::{MARK, NOT_RUN};
use super::image::Image;
use super::jobs::Jobs;

/// The exit code of `timeout` for a program that it has stopped.
const STOPPED: &str = "124";
/// The exit code for a program that ignored that, and was killed.
const KILLED: &str = "137";

/// The results of the tests so far.
pub struct Report<'j> {
    jobs: &'j Jobs,
    kernel: Option<String>,
    /// The result of each test, by file and name, with the line that reports it.
    verdicts: BTreeMap<(String, String), (Outcome, String)>,
    /// The running test.
    running: Option<String>,
}

/// The result of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    /// The test has said why it cannot run there.
    NotRun,
    Failed,
}

impl<'j> Report<'j> {
    /// A report without results.
    pub fn new(jobs: &'j Jobs) -> Self {
        Self { jobs, kernel: None, verdicts: BTreeMap::new(), running: None }
    }

    /// Processes a line of the machine's console, and prints what it says about tests.
    pub fn take(&mut self, line: &str) {
        // The firmware's escape sequences precede the first line.
        let Some((_, line)) = line.split_once(MARK) else { return };
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["kernel", release] => {
                println!("Linux {release}");
                self.kernel = Some(release.to_owned());
            }
            ["begin", file, name] => self.running = Some(format!("{file}: {name}")),
            ["end", file, name, status, seconds] => {
                self.running = None;
                let (outcome, verdict) = match status {
                    "0" => (Outcome::Passed, "ok     "),
                    NOT_RUN => (Outcome::NotRun, "not run"),
                    STOPPED | KILLED => (Outcome::Failed, "TOO LONG"),
                    _ => (Outcome::Failed, "FAILED "),
                };
                let verdict = format!("{verdict} {file}: {name} ({seconds} s)");
                println!("{verdict}");
                self.verdicts.insert((file.to_owned(), name.to_owned()), (outcome, verdict));
            }
            ["|", ..] => println!("    {}", line.trim_start_matches(['|', ' '])),
            ["broken:", ..] => println!("{line}"),
            _ => {}
        }
    }

    /// The test that has started but not ended. If the machine crashed, it crashed in this test.
    pub fn went_down_in(&self) -> Option<&str> {
        self.running.as_deref()
    }

    /// Prints which tests did not run and why, and how many have passed.
    pub fn verdict(self, image: &Image) -> Result<()> {
        let Some(kernel) = self.kernel else { bail!("{} did not boot", image.vmlinuz.display()) };
        for (file, reason) in &self.jobs.left_out {
            println!("not run {file}: {reason}");
        }
        let is_missing = |job: &&super::jobs::Job| !self.verdicts.contains_key(&(job.file.clone(), job.name.clone()));
        let missing: Vec<_> = self.jobs.jobs.iter().filter(is_missing).collect();
        for job in &missing {
            println!("no verdict {}: {}: time was over, or the kernel has crashed", job.file, job.name);
        }
        let of = |outcome| self.verdicts.values().filter(move |(own, _)| *own == outcome);
        let [passed, not_run, failed] =
            [Outcome::Passed, Outcome::NotRun, Outcome::Failed].map(|outcome| of(outcome).count());
        if failed > 0 {
            println!();
        }
        of(Outcome::Failed).for_each(|(_, verdict)| println!("{verdict}"));
        let missing = missing.len();
        println!("Linux {kernel}: {passed} passed, {failed} failed, {not_run} not run, {missing} without a verdict");
        if failed + missing > 0 {
            bail!("{} of {} tests failed on Linux {kernel}", failed + missing, self.jobs.jobs.len());
        }
        if passed == 0 {
            bail!("no test ran on Linux {kernel}");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::jobs::Job;

    #[test]
    fn the_test_is_named_that_it_went_down_in() {
        let jobs = Jobs { jobs: Vec::new(), left_out: Vec::new(), need_libraries: true };
        let mut report = Report::new(&jobs);
        ["@@ begin truth one", "@@ end truth one 0 3"].into_iter().for_each(|line| report.take(line));
        assert_eq!(report.went_down_in(), None);
        report.take("@@ begin truth two");
        assert_eq!(report.went_down_in(), Some("truth: two"));
    }

    fn image() -> Image {
        Image { vmlinuz: "/boot/vmlinuz-6.1".into(), modules: None }
    }

    #[test]
    fn all_tests_must_pass() {
        let job = |name: &str| Job { file: "truth".into(), name: name.into(), binary: "/truth".into(), search: None };
        let jobs = Jobs { jobs: vec![job("one"), job("two")], left_out: Vec::new(), need_libraries: true };
        let of = |lines: &[&str]| {
            let mut report = Report::new(&jobs);
            lines.iter().for_each(|line| report.take(line));
            report.verdict(&image()).map_err(|error| error.to_string())
        };
        let (kernel, one, two) = ("\x1b[2J@@ kernel 6.1", "@@ end truth one 0 3", "@@ end truth two 0 4");
        assert_eq!(of(&[kernel, "noise", one, two]), Ok(()));
        assert_eq!(of(&[kernel, one, "@@ | NOT RUN: why", "@@ end truth two not-run 1"]), Ok(()));
        assert_eq!(of(&[]), Err("/boot/vmlinuz-6.1 did not boot".to_owned()));
        let one_failed = Err("1 of 2 tests failed on Linux 6.1".to_owned());
        assert_eq!(of(&[kernel, one]), one_failed);
        assert_eq!(of(&[kernel, one, "@@ end truth two 124 300"]), one_failed);
        assert_eq!(of(&[kernel, one, "@@ | why", "@@ end truth two 101 1"]), one_failed);
    }
}
