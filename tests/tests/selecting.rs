//! Processes are recorded by their name, unit or container.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::folded::Folded;
use lj_trace_tests::programs::{LUAJIT, Program};
use lj_trace_tests::tracer::{exit_code, run};
use lj_trace_tests::workload::Workload;

/// What each of them does: enough for every process to be sampled.
const SPIN: &str =
    "io.write('ready\\n') io.flush() local sum = 0 while true do for i = 1, 1000 do sum = sum + i end end";

/// Starts it as a program with a file of this name, which nobody else has.
fn start(folder: &Path, name: &str) -> Result<Workload> {
    let luajit = Program::find(LUAJIT).context("the demo's luajit is everywhere")?;
    let file = folder.join(name);
    if !file.exists() {
        fs::copy(fs::canonicalize(&luajit.path)?, &file)?;
    }
    Workload::spawn(Command::new(file).args(["-e", SPIN]))
}

/// The processes that are roots of recorded stacks.
fn roots(folded: &Path) -> Result<BTreeSet<u32>> {
    let folded = Folded::parse(&fs::read_to_string(folded)?)?;
    let pid = |root: &str| root.split_once("(pid ")?.1.split(')').next()?.parse().ok();
    Ok(folded.stacks.iter().filter_map(|stack| pid(&stack.frames[0])).collect())
}

#[test]
fn all_processes_of_a_name_are_recorded() -> Result<()> {
    let folder = tempfile::tempdir()?;
    // Longer than what the kernel keeps of a command's name.
    let name = "lj-selected-by-its-name";
    let output = |name: &str| folder.path().join(name).display().to_string();
    run([name, "-d", "300ms"])?.expect(exit_code::NO_PROCESS, &["no processes called `lj-selected-by-its-name`"]);

    let first = start(folder.path(), name)?;
    let one = output("one.folded");
    run([name, "-d", "500ms", "-o", &one])?.expect(0, &[&format!("recording process {}", first.pid())]);
    ensure!(Path::new(&one).exists(), "nothing was written");

    let second = start(folder.path(), name)?;
    let two = output("two.folded");
    run(["--name", name, "-d", "1s", "-o", &two])?.expect(0, &[]);
    ensure!(roots(Path::new(&two))? == BTreeSet::from([first.pid(), second.pid()]), "{:?}", roots(Path::new(&two))?);

    // What has no VM is told.
    let mut sleep = Command::new("sleep").arg("20").spawn()?;
    let refused = run(["sleep", "-d", "300ms"])?;
    sleep.kill()?;
    sleep.wait()?;
    refused.expect(exit_code::NO_LUAJIT, &["processes called `sleep`", &sleep.id().to_string()]);
    Ok(())
}

/// A control group, which goes when its process has gone.
struct Group(std::path::PathBuf);

impl Drop for Group {
    fn drop(&mut self) {
        // If it is left there is nothing better to do.
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn a_units_and_a_containers_processes_are_recorded() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let output = folder.path().join("cpu.folded").display().to_string();
    let id = "5e1ec7ed".repeat(8);
    for (group, arguments) in [
        ("lj-selected.service".to_owned(), ["--unit", "lj-selected"]),
        (format!("docker-{id}.scope"), ["--container", "5e1ec7ed5e"]),
    ] {
        let mut hierarchies = ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup"].map(Path::new).into_iter();
        let hierarchy = hierarchies.find(|path| path.join("cgroup.procs").exists());
        let group = Group(hierarchy.context("no control groups")?.join(group));
        fs::create_dir(&group.0)?;
        let mut workloads = Vec::new();
        for _ in 0..2 {
            let workload = start(folder.path(), "lj-selected")?;
            fs::write(group.0.join("cgroup.procs"), workload.pid().to_string())?;
            workloads.push(workload);
        }
        // Another one, in another group.
        let _other = start(folder.path(), "lj-selected")?;
        run(arguments.into_iter().chain(["-d", "1s", "--force", "-o", &output]))?.expect(0, &[]);
        let expected: BTreeSet<u32> = workloads.iter().map(Workload::pid).collect();
        ensure!(roots(Path::new(&output))? == expected, "{:?}, not {expected:?}", roots(Path::new(&output))?);
        for mut workload in workloads {
            workload.kill()?;
        }
    }
    Ok(())
}

#[test]
fn what_chooses_processes_is_one_thing() -> Result<()> {
    for arguments in [&["-d", "1s"][..], &["--pid", "1", "nginx"], &["--unit", "a", "nginx"], &["--container", "xyz"]] {
        run(arguments)?.expect(exit_code::USAGE, &[]);
    }
    Ok(())
}
