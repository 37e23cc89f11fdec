//! Files that lj-trace writes as root where others have prepared something for it.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt, chown, lchown, symlink};
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::capabilities::NOBODY;
use lj_trace_tests::programs::{LUAJIT, Program};
use lj_trace_tests::tracer::{Tracer, binary, exit_code, run};
use lj_trace_tests::workload::{SERVICE, Workload};

fn start() -> Result<Workload> {
    Workload::start(&Program::find(LUAJIT).context("the demo's luajit is everywhere")?, SERVICE, &[])
}

/// Ways to write a file about a process.
fn commands<'a>(pid: &'a str, stream: &'a str) -> [(&'static str, Vec<&'a str>); 5] {
    [
        ("run.bin", vec!["--pid", pid, "--duration", "300ms", "--output"]),
        ("mem.bin", vec!["--pid", pid, "--mode", "memprof", "--duration", "300ms", "--output"]),
        ("run.svg", vec!["--pid", pid, "--duration", "300ms", "--output"]),
        ("run.heap.gz", vec!["heap", "--pid", pid, "--output"]),
        ("report.svg", vec!["report", stream, "--output"]),
    ]
}

#[test]
fn only_the_owner_reads_and_links_of_others_lead_nowhere() -> Result<()> {
    let workload = start()?;
    let folder = tempfile::tempdir()?;
    let path = |name: &str| folder.path().join(name);
    let (pid, stream) = (workload.pid().to_string(), path("stream.bin").display().to_string());
    run(["--pid", &pid, "--duration", "300ms", "--output", &stream])?.expect(0, &[]);
    // As /tmp: everybody may make files there, and links.
    let shared = path("shared");
    fs::create_dir(&shared)?;
    fs::set_permissions(&shared, PermissionsExt::from_mode(0o1777))?;
    for (name, command) in commands(&pid, &stream) {
        let with = |output: &Path| run(command.iter().copied().chain([&*output.to_string_lossy()]));
        let output = path(name);
        with(&output)?.expect(0, &[]);
        let mode = fs::metadata(&output)?.mode() & 0o777;
        ensure!(mode == 0o600, "{name} has mode {mode:o}");
        // A link to a file of root's.
        let (victim, planted) = (path("victim"), shared.join(name));
        fs::write(&victim, "precious")?;
        symlink(&victim, &planted)?;
        lchown(&planted, Some(NOBODY), Some(NOBODY))?;
        let refused = with(&planted)?;
        refused.expect(exit_code::IO, &["a link of another user's"]);
        ensure!(fs::read(&victim)? == b"precious", "{name}: the link was followed");
        // A file that somebody else will read.
        fs::remove_file(&planted)?;
        fs::write(&planted, "")?;
        chown(&planted, Some(NOBODY), Some(NOBODY))?;
        with(&planted)?.expect(exit_code::IO, &["another user's, who could read"]);
        ensure!(fs::metadata(&planted)?.len() == 0, "{name} was written to another user's file");
    }
    Ok(())
}

#[test]
fn a_recording_is_not_overwritten() -> Result<()> {
    let workload = start()?;
    let folder = tempfile::tempdir()?;
    let pid = workload.pid().to_string();
    for (name, command) in &commands(&pid, "")[..4] {
        let output = folder.path().join(name).display().to_string();
        let with = |more: &[&str]| run(command.iter().copied().chain([&*output]).chain(more.iter().copied()));
        with(&[])?.expect(0, &[]);
        let before = fs::read(&output)?;
        with(&[])?.expect(exit_code::IO, &["it is there already", "--force"]);
        ensure!(fs::read(&output)? == before, "{name} was overwritten");
        with(&["--force"])?.expect(0, &[]);
    }
    Ok(())
}

#[test]
fn names_that_were_not_chosen_say_when() -> Result<()> {
    let workload = start()?;
    let folder = tempfile::tempdir()?;
    let pid = workload.pid().to_string();
    let mut command = std::process::Command::new(binary());
    command.args(["--pid", &pid, "--duration", "300ms", "--mode", "all"]).current_dir(folder.path());
    Tracer::spawn(&mut command)?.wait()?.expect(0, &[]);
    let names = fs::read_dir(folder.path())?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let names: Vec<String> = names.collect::<Result<_>>()?;
    for kind in ["sysprof", "memprof"] {
        let is_of_kind = |name: &String| {
            let time = name.strip_prefix(&format!("lj-trace-{pid}-"))?;
            let time = [".bin", ".svg"].iter().find_map(|end| time.strip_suffix(&format!(".{kind}{end}")))?;
            Some(time.len() == 16 && time.starts_with("20") && time.ends_with('Z'))
        };
        ensure!(names.iter().filter_map(is_of_kind).filter(|is| *is).count() == 2, "no {kind} in {names:?}");
    }
    Ok(())
}
