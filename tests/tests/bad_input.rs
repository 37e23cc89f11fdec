//! Whatever happens to the process or the files that lj-trace is given, it ends with the exit code for it, names the cause, and
//! does not panic. What is wrong from the beginning is in `wrong_input.rs`.

use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use lj_trace_tests::programs::{LUAJIT, Program};
use lj_trace_tests::tracer::{Tracer, exit_code, run};
use lj_trace_tests::workload::{TRUTH, Workload};

/// A process that is ended with the test.
struct Process(Child);

impl Process {
    fn start(command: &str, argument: &str) -> Result<Self> {
        Ok(Self(Command::new(command).arg(argument).stdin(Stdio::null()).stdout(Stdio::null()).spawn()?))
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself: then there is nothing to end, only to collect.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A workload that does nothing yet.
fn idle_luajit() -> Result<Workload> {
    let program = Program::find(LUAJIT).expect("the demo's luajit is everywhere");
    Workload::start(&program, TRUTH, &["1"])
}

#[test]
fn a_process_that_has_exited() -> Result<()> {
    let mut process = Process::start("true", "")?;
    process.0.wait()?;
    run(["--pid", &process.pid()])?.expect(exit_code::NO_PROCESS, &[&process.pid()]);
    Ok(())
}

#[test]
fn a_full_disk() -> Result<()> {
    let mut workload = idle_luajit()?;
    let pid = workload.pid().to_string();
    let mut tracer = Tracer::start(["--pid", &pid, "--output", "folded:/dev/full"])?;
    tracer.wait_until_attached()?;
    workload.go()?;
    workload.truth()?;
    tracer.signal(libc::SIGINT)?;
    tracer.wait()?.expect(exit_code::IO, &["/dev/full"]);
    Ok(())
}

#[test]
fn a_garbage_stream() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let long = [&b"ljs\x03\0\0\0"[..], &[0xff; 4096]].concat();
    let contents: [&[u8]; 6] = [b"", b"ljp", b"hello, world\n", b"ljs\x09\0\0\0", b"ljs\x03\0\0\0\x80ljp\x02\0", &long];
    for content in contents {
        let file = folder.path().join("garbage.bin");
        std::fs::write(&file, content)?;
        let file = file.to_string_lossy();
        run(["report", &file])?.expect(exit_code::IO, &[&file]);
    }
    let missing = folder.path().join("missing.bin");
    run(["report", &missing.to_string_lossy()])?.expect(exit_code::IO, &["missing.bin"]);
    Ok(())
}

#[test]
fn without_privileges() -> Result<()> {
    let workload = idle_luajit()?;
    let folder = tempfile::tempdir()?;
    let outcome = Tracer::start_as_nobody(folder.path(), &["--pid", &workload.pid().to_string()])?.wait()?;
    outcome.expect(exit_code::PRIVILEGES, &["root"]);
    Ok(())
}

#[test]
fn a_process_that_exits_while_lj_trace_attaches() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let output = folder.path().join("profile.bin");
    for milliseconds in [0, 2, 5, 10, 20, 40, 60, 80, 120, 200] {
        let mut workload = idle_luajit()?;
        workload.go()?;
        let (pid, output) = (workload.pid().to_string(), output.to_string_lossy());
        let tracer = Tracer::start(["--pid", &pid, "--output", &output, "--force"])?;
        thread::sleep(Duration::from_millis(milliseconds));
        workload.kill()?;
        let outcome = tracer.wait()?;
        // Gone before lj-trace had looked at it, or a short but good run.
        let code = outcome.status.code();
        assert!(matches!(code, Some(0 | exit_code::NO_PROCESS)), "after {milliseconds} ms: {outcome:#?}");
        assert!(!outcome.stderr.contains("panicked at"), "{outcome:#?}");
    }
    Ok(())
}
