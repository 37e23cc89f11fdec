//! The script that runs in the machine: it runs the tests one after another, and reports their results.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::jobs::Jobs;
use crate::paths;

/// The prefix of the script's lines: everything else on the console comes from the kernel.
pub const MARK: &str = "@@ ";

/// Finds what a test says for the matrix, as sed does. libtest prints a test's name before the test's first line.
const CELL: &str = "s/^(test [^ ]* [.]{3} )?(cell: )/MARK| \\2/p";

/// The status of a test that prints `NOT RUN` or `not tested` with a reason.
pub const NOT_RUN: &str = "not-run";

/// How slow a machine is.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// By which factor the tests extend their timeouts.
    pub slower: u32,
    /// The time limit of one test, in seconds.
    pub limit: u32,
}

impl Times {
    /// For an emulated processor of this machine's kind: a test may take about ten times as long as on a real one.
    pub const SAME_KIND: Self = Self { slower: 5, limit: 300 };
    /// For a processor of another kind, which is 12 to 20 times slower, or more beside other work.
    pub const OTHER_KIND: Self = Self { slower: 20, limit: 900 };
}

/// How a failing test begins to say why; the lines after that may be many.
const WHY: &str = "panicked at|^Error:";

/// How many of the last lines of a failed test's output to show.
const SHOWN: u32 = 40;

/// Whether the machine mounts something of its own over this path.
pub fn hides(path: &Path) -> bool {
    ["/tmp", "/run", "/dev", "/proc", "/sys"].iter().any(|own| path.starts_with(own))
}

/// Writes the script into `folder`.
pub fn write_script(folder: &Path, environment: &[(&str, String)], jobs: &Jobs, times: Times) -> Result<PathBuf> {
    let path = folder.join("guest.sh");
    fs::write(&path, script(environment, jobs, times)).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

fn script(environment: &[(&str, String)], jobs: &Jobs, times: Times) -> String {
    let Times { slower, limit } = times;
    let mut script = String::from(
        "export HOME=/root RUST_LIB_BACKTRACE=0\n\
         mkdir -p /dev/shm /dev/pts\n\
         mount -t devpts none /dev/pts\n\
         mount -t tmpfs none /dev/shm\n\
         mount -t cgroup2 none /sys/fs/cgroup\n\
         ln -sf /proc/self/fd /dev/fd\n",
    );
    // Debian's kernels start with level 3, where perf events require more than CAP_PERFMON.
    let _ = writeln!(script, "echo 2 > /proc/sys/kernel/perf_event_paranoid");
    let _ = writeln!(script, "export LJ_TRACE_TEST_PATIENCE={slower}");
    for (name, value) in environment {
        let _ = writeln!(script, "export {name}={}", quoted(value));
    }
    let _ = writeln!(script, "export PATH=\"$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\"");
    let _ = writeln!(script, "ip link set lo up");
    let _ = writeln!(script, "cd {}", quoted(&paths::root().join("tests").display().to_string()));
    let _ = writeln!(script, "echo \"{MARK}kernel $(uname -r)\"");
    let cell = CELL.replace("MARK", MARK);
    for job in &jobs.jobs {
        let binary = quoted(&job.binary.display().to_string());
        let name = &job.name;
        let file = &job.file;
        if let Some(search) = &job.search {
            let _ = writeln!(
                script,
                "began=$(date +%s)\n\
                 echo '{MARK}begin {file} {name}'\n\
                 {{ timeout --kill-after=5 {} {binary} {} 2>&1; echo $? > /tmp/status; }} | sed -u 's/^/{MARK}| /'\n\
                 echo \"{MARK}end {file} {name} $(cat /tmp/status) $(($(date +%s) - began))\"",
                search.limit,
                search.arguments.iter().map(|argument| quoted(argument)).collect::<Vec<_>>().join(" ")
            );
            continue;
        }
        // A test that is stopped leaves processes behind; they are killed with its process group.
        let _ = writeln!(
            script,
            "began=$(date +%s)\n\
             echo '{MARK}begin {file} {name}'\n\
             timeout --kill-after=5 {limit} {binary} --exact '{file}::{name}' --include-ignored --test-threads=1 --nocapture > /tmp/output 2>&1\n\
             status=$?\n\
             sed -nE '{cell}' /tmp/output\n\
             reason=$(grep -oE '(NOT RUN|not tested): .*' /tmp/output)\n\
             if [ $status != 0 ]; then {{ grep -m1 -A3 -E '{WHY}' /tmp/output; tail -{SHOWN} /tmp/output; }} | sed 's/^/{MARK}| /'\n\
             elif [ -n \"$reason\" ]; then status={NOT_RUN}; echo \"{MARK}| $reason\"; fi\n\
             echo \"{MARK}end {file} {name} $status $(($(date +%s) - began))\""
        );
    }
    let _ = writeln!(script, "echo '{MARK}complete'\n{} poweroff -f", super::needs::BUSYBOX);
    script
}

/// Quotes a word for the shell.
pub fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::jobs::{Job, Search};

    #[test]
    fn the_script_runs_every_job() {
        let job =
            |name: &str| Job { file: "truth".into(), name: name.into(), binary: "/target/it's".into(), search: None };
        let jobs = Jobs { jobs: vec![job("one"), job("two")], left_out: Vec::new(), need_libraries: true };
        let script = script(&[("LJ_TRACE_BIN", "/a b".into())], &jobs, Times::SAME_KIND);
        assert!(script.contains("export LJ_TRACE_BIN='/a b'\n"), "{script}");
        assert!(script.contains("'/target/it'\\''s' --exact 'truth::two' --include-ignored"), "{script}");
        assert_eq!(script.matches("@@ begin").count(), 2);
    }

    #[test]
    fn a_search_says_all_and_its_status_is_kept() {
        let search = Search { arguments: vec!["-c".into(), "echo 'it fails'; exit 3".into()], limit: 10 };
        let job = Job { file: "oracle".into(), name: "one".into(), binary: "/bin/sh".into(), search: Some(search) };
        let script =
            script(&[], &Jobs { jobs: vec![job], left_out: Vec::new(), need_libraries: true }, Times::SAME_KIND);
        let (_, search) = script.split_once("began=").unwrap();
        let (search, _) = search.split_once("echo '@@ complete'").unwrap();
        let search = format!("began={}", search.replace("/tmp/status", "$PLACE/status"));
        let place = tempfile::tempdir().unwrap();
        let said =
            crate::run::output(std::process::Command::new("sh").args(["-c", &search]).env("PLACE", place.path()));
        let said = said.unwrap();
        assert!(said.contains("@@ | it fails\n@@ end oracle one 3 "), "{said}");
    }

    #[test]
    fn all_is_found_that_a_test_says_for_the_matrix() {
        let said = "running 1 test\ntest matrix::a::b ... cell: title: `a`\nno cell: figures\ncell: figures: 1\nok\n";
        let (output, expression) = (quoted(said), quoted(&CELL.replace("MARK", MARK)));
        let sed = format!("printf %s {output} | sed -nE {expression}");
        let found = crate::run::output(std::process::Command::new("sh").args(["-c", &sed])).unwrap();
        assert_eq!(found.lines().collect::<Vec<_>>(), ["@@ | cell: title: `a`", "@@ | cell: figures: 1"]);
    }

    #[test]
    fn what_the_machine_has_of_its_own_is_known() {
        assert!(hides(Path::new("/tmp/clone")) && !hides(Path::new("/home/tmp")));
    }
}
