//! Ends of every kind, and limits: files are whole, the exit code says why, and nothing panics.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::profiles::whole;
use lj_trace_tests::programs::{LUAJIT, Program};
use lj_trace_tests::tracer::{Tracer, binary, exit_code};
use lj_trace_tests::workload::{STORM, Workload};

fn start() -> Result<Workload> {
    let mut workload = Workload::start(&Program::find(LUAJIT).context("the demo's luajit is everywhere")?, STORM, &[])?;
    workload.go()?;
    workload.leave_unread()?;
    Ok(workload)
}

/// lj-trace that records memory into a stream and a picture.
fn recorder(pid: u32, folder: &Path) -> Command {
    let mut command = Command::new(binary());
    command.args(["--pid", &pid.to_string(), "--mode", "memprof", "--no-limit", "--output"]);
    command.arg(folder.join("run.bin")).arg("--output").arg(folder.join("run.svg"));
    command
}

fn expect_whole(folder: &Path) -> Result<()> {
    whole(&folder.join("run.bin"))?;
    let svg = fs::read_to_string(folder.join("run.svg"))?;
    ensure!(svg.trim_end().ends_with("</svg>"), "the picture is cut off");
    Ok(())
}

#[test]
fn a_terminal_that_goes_is_an_end_like_any_other() -> Result<()> {
    let workload = start()?;
    for signal in [libc::SIGHUP, libc::SIGQUIT, libc::SIGTERM] {
        let folder = tempfile::tempdir()?;
        let mut command = recorder(workload.pid(), folder.path());
        // The tests may themselves have been started so that they outlive their terminal.
        // SAFETY: between fork and exec it makes one system call.
        unsafe {
            command.pre_exec(move || {
                libc::signal(signal, libc::SIG_DFL);
                Ok(())
            });
        }
        let mut tracer = Tracer::spawn(&mut command)?;
        tracer.wait_until_attached()?;
        sleep(Duration::from_millis(300));
        tracer.signal(signal)?;
        tracer.wait()?.expect(0, &["stopped by a signal"]);
        expect_whole(folder.path())?;
    }
    Ok(())
}

#[test]
fn nohup_has_it_go_on() -> Result<()> {
    let workload = start()?;
    let folder = tempfile::tempdir()?;
    let mut command = recorder(workload.pid(), folder.path());
    command.args(["--duration", "1s"]);
    // SAFETY: between fork and exec it makes one system call.
    unsafe {
        command.pre_exec(|| {
            libc::signal(libc::SIGHUP, libc::SIG_IGN);
            Ok(())
        });
    }
    let mut tracer = Tracer::spawn(&mut command)?;
    tracer.wait_until_attached()?;
    tracer.signal(libc::SIGHUP)?;
    tracer.wait()?.expect(0, &["finished: recorded"]);
    expect_whole(folder.path())
}

/// Has a command run with a limit of its own.
fn limited(command: &mut Command, resource: libc::__rlimit_resource_t, limit: u64) {
    // SAFETY: between fork and exec it makes one system call.
    unsafe {
        command.pre_exec(move || {
            let limit = libc::rlimit { rlim_cur: limit, rlim_max: limit };
            if libc::setrlimit(resource, &raw const limit) == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
        });
    }
}

#[test]
fn files_that_may_not_grow_are_whole() -> Result<()> {
    let workload = start()?;
    let folder = tempfile::tempdir()?;
    let mut command = recorder(workload.pid(), folder.path());
    limited(&mut command, libc::RLIMIT_FSIZE, 300 << 10);
    let outcome = Tracer::spawn(&mut command)?.wait()?;
    outcome.expect(exit_code::IO, &["File too large", "is a complete stream", "ulimit -f"]);
    expect_whole(folder.path())
}

#[test]
fn a_stream_does_not_outgrow_what_it_may() -> Result<()> {
    const MOST: u64 = 2 << 20;
    let workload = start()?;
    let folder = tempfile::tempdir()?;
    let mut command = recorder(workload.pid(), folder.path());
    Tracer::spawn(command.args(["--max-size", "2M"]))?.wait()?.expect(0, &["a stream has reached --max-size"]);
    expect_whole(folder.path())?;
    let size = fs::metadata(folder.path().join("run.bin"))?.len();
    // What was in the ring buffer by then is in it.
    ensure!((MOST..MOST + (16 << 20)).contains(&size), "{size} bytes");
    Ok(())
}

#[test]
fn messages_that_nobody_takes_end_nothing() -> Result<()> {
    let workload = start()?;
    // A full disk.
    let folder = tempfile::tempdir()?;
    let mut command = recorder(workload.pid(), folder.path());
    command.args(["--duration", "500ms"]).stdin(Stdio::null()).stdout(Stdio::null());
    let status = command.stderr(File::options().write(true).open("/dev/full")?).status()?;
    ensure!(status.success(), "{status}");
    expect_whole(folder.path())?;
    // `2>&1 | head -1`.
    let folder = tempfile::tempdir()?;
    let mut command = recorder(workload.pid(), folder.path());
    command.args(["--duration", "500ms"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let mut stderr = child.stderr.take().context("it is piped")?;
    stderr.read_exact(&mut [0])?;
    drop(stderr);
    let status = child.wait()?;
    ensure!(status.success(), "{status}");
    expect_whole(folder.path())
}

#[test]
fn results_that_nobody_takes_are_no_panic() -> Result<()> {
    for arguments in [&["unit", "--template"][..], &["completions", "bash"], &["--help"], &["list"]] {
        let mut child = Command::new(binary()).args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        drop(child.stdout.take());
        let output = child.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success() && said.is_empty(), "{arguments:?}: {}: {said}", output.status);
        let full = File::options().write(true).open("/dev/full")?;
        let output = Command::new(binary()).args(arguments).stdout(full).stderr(Stdio::piped()).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(!said.contains("panicked"), "{arguments:?}: {}: {said}", output.status);
    }
    Ok(())
}

#[test]
fn too_few_descriptors_are_named() -> Result<()> {
    let workload = start()?;
    let mut seen = 0;
    for files in [20, 30, 40, 60] {
        let folder = tempfile::tempdir()?;
        let mut command = recorder(workload.pid(), folder.path());
        command.args(["--duration", "300ms"]);
        limited(&mut command, libc::RLIMIT_NOFILE, files);
        let outcome = Tracer::spawn(&mut command)?.wait()?;
        if outcome.status.success() {
            continue;
        }
        seen += 1;
        ensure!(!outcome.stderr.contains("panicked"), "{outcome:#?}");
        ensure!(outcome.stderr.contains("ulimit -n"), "{files} files: {outcome:#?}");
        ensure!(matches!(outcome.status.code(), Some(exit_code::UNAVAILABLE | exit_code::IO)), "{outcome:#?}");
    }
    ensure!(seen > 0, "20 files are enough");
    Ok(())
}

/// Wherever lj-trace is when the process is killed, it says so.
#[test]
fn a_process_that_dies_under_it_is_told() -> Result<()> {
    const KILLS: u64 = 16;
    for kill in 0..KILLS {
        let folder = tempfile::tempdir()?;
        let mut workload = start()?;
        let mode = if kill % 2 == 0 { "memprof" } else { "sysprof" };
        let output = folder.path().join("run.bin");
        let tracer = Tracer::start([
            "--pid",
            &workload.pid().to_string(),
            "--mode",
            mode,
            "--output",
            &output.to_string_lossy(),
        ])?;
        sleep(Duration::from_millis(kill * 17));
        workload.kill()?;
        let outcome = tracer.wait()?;
        match outcome.status.code() {
            Some(0) => outcome.expect(0, &["the process has exited"]),
            _ => outcome.expect(exit_code::NO_PROCESS, &["exited"]),
        }
    }
    Ok(())
}
