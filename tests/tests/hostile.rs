//! Programs whose memory misleads, by accident or on purpose: bounded time and memory, no crash, no false VM.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use lj_trace_tests::folded::is_lua;
use lj_trace_tests::programs::{LUAJIT, Program};
use lj_trace_tests::recording::Recording;
use lj_trace_tests::tracer::{Tracer, exit_code, run};
use lj_trace_tests::workload::Workload;

/// The library with which the host makes its VM.
const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/libluajit-5.1.so.2";
/// How long it may take to look at 128 MiB that are full of what looks like VMs, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(15);
/// The most memory that lj-trace may use for it, in KiB.
const MEMORY: u64 = 200 << 10;

/// Starts the host, or says why not.
fn host(folder: &Path, what: &str) -> Result<Option<Workload>> {
    if !Path::new(LIBRARY).exists() {
        println!("not tested: there is no {LIBRARY}");
        return Ok(None);
    }
    Workload::start_host("hostile.c", folder, &[LIBRARY, what]).map(Some)
}

/// The most memory that a process has used, in KiB.
fn most_memory(pid: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

#[test]
fn what_looks_like_vms_is_none() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let Some(host) = host(folder.path(), "nothing")? else { return Ok(()) };
    let start = Instant::now();
    let outcome = run(["--pid", &host.pid().to_string(), "--duration", "1s", "--output", "folded:-"])?;
    outcome.expect(exit_code::NO_LUAJIT, &["no LuaJIT VM in process"]);
    assert!(start.elapsed() < PATIENCE, "it took {:?}", start.elapsed());
    Ok(())
}

#[test]
fn a_vm_is_found_among_its_imitations() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let Some(mut host) = host(folder.path(), "imitations")? else { return Ok(()) };
    let start = Instant::now();
    let recording = Recording::attached(&host, &["--rate", "499"])?;
    assert!(start.elapsed() < PATIENCE, "it took {:?}", start.elapsed());
    let memory = most_memory(recording.tracer.pid())?;
    assert!(memory < MEMORY, "{memory} KiB");
    host.go()?;
    host.report()?;
    let recorded = recording.stop()?;
    let vms = recorded.outcome.stderr.lines().filter(|line| line.starts_with("VM at ")).count();
    assert_eq!(vms, 1, "{}", recorded.outcome.stderr);
    let named = recorded.folded.samples_where(|stack| stack.frames.iter().any(|frame| frame.starts_with("work@")));
    assert!(named * 2 > recorded.folded.samples(), "{named} of {} samples in it", recorded.folded.samples());
    Ok(())
}

/// Prototypes that say they have 4 billion instructions and lines, and refer to nowhere.
#[test]
fn absurd_prototypes_are_survived() -> Result<()> {
    for mode in ["sysprof", "memprof"] {
        let folder = tempfile::tempdir()?;
        let Some(mut host) = host(folder.path(), "prototypes")? else { return Ok(()) };
        let output = folder.path().join("profile.bin");
        let arguments = ["--pid", &host.pid().to_string(), "--mode", mode, "--output", &output.to_string_lossy()];
        let mut tracer = Tracer::start(arguments)?;
        tracer.wait_until_attached()?;
        host.go()?;
        host.report()?;
        let memory = most_memory(tracer.pid())?;
        assert!(memory < MEMORY, "{mode}: {memory} KiB");
        tracer.signal(libc::SIGINT)?;
        tracer.wait()?.expect(0, &["stopped by a signal"]);
        run(["report", &output.to_string_lossy(), "--format", "folded"])?.expect(0, &[]);
    }
    Ok(())
}

#[test]
fn stacks_that_move_give_no_foreign_frames() -> Result<()> {
    let Some(program) = Program::find(LUAJIT) else { return Ok(()) };
    let mut workload = Workload::start(&program, "growing.lua", &["3"])?;
    let recording = Recording::attached(&workload, &["--rate", "999"])?;
    workload.go()?;
    workload.report()?;
    let recorded = recording.stop()?;
    let folded = &recorded.folded;
    let foreign = |frame: &String| is_lua(frame) && !frame.contains("growing.lua:");
    let strange = folded.stacks.iter().find(|stack| stack.frames.iter().any(foreign));
    assert!(strange.is_none(), "{strange:?}");
    // A stack that is just being copied cannot be walked: that is said. Here it takes a few percent of the time.
    let complete = recorded.share("Lua complete")?;
    assert!(complete > 85.0, "{complete}% of the Lua stacks are complete: {}", recorded.outcome.stderr);
    Ok(())
}
