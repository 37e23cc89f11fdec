//! What runs in the machine: a script that runs one test after the other and says how it went.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::jobs::Jobs;
use crate::paths;

/// What the script's lines begin with: all else on the console is the kernel's.
pub const MARK: &str = "@@ ";

/// The status of a test that says `NOT RUN` or `not tested`, and why.
pub const NOT_RUN: &str = "not-run";

/// How slow a machine is.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// How many times longer the tests wait for what they wait for.
    pub slower: u32,
    /// How long one test may take, in seconds.
    pub limit: u32,
}

impl Times {
    /// On an emulated processor of this machine's kind: a test may take about ten times what it takes on a real one.
    pub const SAME_KIND: Self = Self { slower: 5, limit: 300 };
    /// On one of another kind, which is 12 to 20 times slower, or more beside other work.
    pub const OTHER_KIND: Self = Self { slower: 20, limit: 600 };
}

/// How a test begins to say why it has failed: what it shows after that may be long.
const WHY: &str = "panicked at|^Error:";

/// Lines that are shown of what a failed test has printed, the last ones.
const SHOWN: u32 = 40;

/// Whether the machine has something of its own in this place.
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
    // Debian's kernels start with 3, at which they want more than CAP_PERFMON for perf events.
    let _ = writeln!(script, "echo 2 > /proc/sys/kernel/perf_event_paranoid");
    let _ = writeln!(script, "export LJ_TRACE_TEST_PATIENCE={slower}");
    for (name, value) in environment {
        let _ = writeln!(script, "export {name}={}", quoted(value));
    }
    let _ = writeln!(script, "export PATH=\"$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\"");
    let _ = writeln!(script, "ip link set lo up");
    let _ = writeln!(script, "cd {}", quoted(&paths::root().join("tests").display().to_string()));
    let _ = writeln!(script, "echo \"{MARK}kernel $(uname -r)\"");
    for job in &jobs.jobs {
        let binary = quoted(&job.binary.display().to_string());
        let name = &job.name;
        let file = &job.file;
        // A test that is stopped leaves its processes behind: they go with its process group.
        let _ = writeln!(
            script,
            "began=$(date +%s)\n\
             echo '{MARK}begin {file} {name}'\n\
             timeout --kill-after=5 {limit} {binary} --exact '{file}::{name}' --test-threads=1 --nocapture > /tmp/output 2>&1\n\
             status=$?\n\
             reason=$(grep -oE '(NOT RUN|not tested): .*' /tmp/output)\n\
             if [ $status != 0 ]; then {{ grep -m1 -A3 -E '{WHY}' /tmp/output; tail -{SHOWN} /tmp/output; }} | sed 's/^/{MARK}| /'\n\
             elif [ -n \"$reason\" ]; then status={NOT_RUN}; echo \"{MARK}| $reason\"; fi\n\
             echo \"{MARK}end {file} {name} $status $(($(date +%s) - began))\""
        );
    }
    let _ = writeln!(script, "echo '{MARK}complete'\n{} poweroff -f", super::needs::BUSYBOX);
    script
}

/// A word as the shell takes it.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::jobs::Job;

    #[test]
    fn the_script_runs_every_job() {
        let job = |name: &str| Job { file: "truth".into(), name: name.into(), binary: "/target/it's".into() };
        let jobs = Jobs { jobs: vec![job("one"), job("two")], left_out: Vec::new() };
        let script = script(&[("LJ_TRACE_BIN", "/a b".into())], &jobs, Times::SAME_KIND);
        assert!(script.contains("export LJ_TRACE_BIN='/a b'\n"), "{script}");
        assert!(script.contains("'/target/it'\\''s' --exact 'truth::two'"), "{script}");
        assert_eq!(script.matches("@@ begin").count(), 2);
    }

    #[test]
    fn what_the_machine_has_of_its_own_is_known() {
        assert!(hides(Path::new("/tmp/clone")) && !hides(Path::new("/home/tmp")));
    }
}
