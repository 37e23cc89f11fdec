//! Programs whose memory misleads, by accident or on purpose: bounded time and memory, no crash, no false VM.
//!
//! LuaJIT's sources: [`resizestack`].
//!
//! [`resizestack`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_state.c#L63-L87

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use lj_trace_tests::chance::of_count;
use lj_trace_tests::folded::{Stack, is_lua, line_in};
use lj_trace_tests::programs::{INSTALLED_LIBRARY, Program};
use lj_trace_tests::recording::Recording;
use lj_trace_tests::skips::skip_without;
use lj_trace_tests::source::definition_of;
use lj_trace_tests::tracer::{Tracer, exit_code, run};
use lj_trace_tests::workload::Workload;

/// The CPU time that it may take to look at 128 MiB that are full of what looks like VMs, on a slow machine, in seconds.
const PATIENCE: u64 = 15;
/// The most memory that lj-trace may use for it, in KiB.
const MEMORY: u64 = 200 << 10;

/// Starts the host, or says why not.
fn host(folder: &Path, what: &str) -> Result<Option<Workload>> {
    if !Path::new(INSTALLED_LIBRARY).exists() {
        skip_without("luajit", &format!("there is no {INSTALLED_LIBRARY}"));
        return Ok(None);
    }
    Workload::start_host("hostile.c", folder, &[INSTALLED_LIBRARY, what]).map(Some)
}

/// The most memory that a process has used, in KiB.
fn most_memory(pid: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

/// The CPU time of all children of this process that have ended.
fn used_by_children() -> Result<Duration> {
    // SAFETY: all zeros are a valid value of this plain structure, which getrusage then fills in.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        anyhow::ensure!(libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage) == 0, "getrusage failed");
        usage
    };
    let time = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    Ok(time(usage.ru_utime) + time(usage.ru_stime))
}

#[test]
fn what_looks_like_vms_is_none() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let Some(host) = host(folder.path(), "nothing")? else { return Ok(()) };
    let before = used_by_children()?;
    let outcome = run(["--pid", &host.pid().to_string(), "--duration", "1s", "--output", "folded:-"])?;
    outcome.expect(exit_code::NO_LUAJIT, &["no LuaJIT VM in process"]);
    let used = used_by_children()? - before;
    assert!(used < lj_trace_tests::patience(PATIENCE), "it took {used:?}");
    Ok(())
}

#[test]
fn a_vm_is_found_among_its_imitations() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let Some(mut host) = host(folder.path(), "imitations")? else { return Ok(()) };
    let before = used_by_children()?;
    let recording = Recording::attached(&host, &["--rate", "499"])?;
    let memory = most_memory(recording.tracer.pid())?;
    assert!(memory < MEMORY, "{memory} KiB");
    host.go()?;
    host.report()?;
    let recorded = recording.stop()?;
    let used = used_by_children()? - before;
    assert!(used < lj_trace_tests::patience(PATIENCE), "it took {used:?}");
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
        let arguments =
            ["--pid", &host.pid().to_string(), "--mode", mode, "--no-limit", "--output", &output.to_string_lossy()];
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

/// The functions that move a Lua stack (`lj_state.c`): while they do, its old place may be gone and `L->base` still be
/// that of the old place, which leads nowhere. Nothing else says where the frames are by then.
const MOVE_STACKS: [&str; 3] = ["resizestack", "lj_state_growstack", "lj_state_shrinkstack"];

#[test]
fn stacks_that_move_are_whole_or_marked() -> Result<()> {
    const SCRIPT: &str = "growing.lua";
    // A build with symbols.
    let Some(program) = Program::find("defaults") else { return Ok(()) };
    let mut workload = Workload::start(&program, SCRIPT, &["3"])?;
    let recording = Recording::attached(&workload, &["--rate", "999"])?;
    workload.go()?;
    workload.report()?;
    let recorded = recording.stop()?;
    let folded = &recorded.folded;
    let said = &recorded.outcome.stderr;
    let [grow, deep] = ["grow", "deep"].map(|name| Some(definition_of(SCRIPT, name) as u32));
    let is_marked = |stack: &Stack| stack.frames.iter().any(|frame| frame.starts_with("[unknown"));
    for stack in &folded.stacks {
        let frames = stack.frames.iter().filter(|frame| is_lua(frame));
        let mut lines: Vec<Option<u32>> = frames.map(|frame| line_in(frame, SCRIPT)).collect();
        // One call of `deep` stands for all.
        lines.dedup();
        assert!([Some(0), grow, deep].starts_with(&lines) || is_marked(stack) && lines == [deep], "{stack:?}");
    }
    let moves = |stack: &Stack| stack.frames.iter().any(|frame| MOVE_STACKS.contains(&frame.as_str()));
    let others = folded.samples_where(|stack| !moves(stack));
    let marked = folded.samples_where(|stack| !moves(stack) && is_marked(stack));
    println!("{marked} of {others} samples are incomplete while no stack is moved");
    // As everywhere: some samples hit the few instructions between two frames, one in a hundred, and what chance makes of it.
    let some = 0.01 * others as f64;
    assert!(
        marked as f64 <= some + of_count(some),
        "{marked} of {others} are incomplete while no stack is moved: {said}"
    );
    Ok(())
}
