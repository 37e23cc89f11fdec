//! With the least privileges everything works; with less, the message names what is missing; and what is not needed any
//! more is given up.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::chown;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::allocations::Allocations;
use lj_trace_tests::capabilities::{
    BPF, Capability, DAC_OVERRIDE, NOBODY, OF_NO_USE, PERFMON, SYS_ADMIN, SYS_PTRACE, has, of_threads, without,
};
use lj_trace_tests::folded::Folded;
use lj_trace_tests::programs::{LUAJIT, Program};
use lj_trace_tests::tracer::{Outcome, Tracer, exit_code};
use lj_trace_tests::windows;
use lj_trace_tests::workload::{STORM, TRUTH, Workload};
use serde_json::Value;

fn luajit() -> Result<Program> {
    Program::find(LUAJIT).context("the demo's luajit is everywhere")
}

/// Runs lj-trace to its end as another user than the target's, with these capabilities.
fn run_with(capabilities: &[Capability], arguments: &[&str]) -> Result<Outcome> {
    let folder = tempfile::tempdir()?;
    Tracer::start_as_nobody_with(capabilities, folder.path(), arguments)?.wait()
}

#[test]
fn what_is_missing_is_named() -> Result<()> {
    let workload = Workload::start(&luajit()?, TRUTH, &["60"])?;
    let pid = workload.pid().to_string();
    let cases: [(&[Capability], &str); 6] = [
        (&[], "CAP_SYS_PTRACE is missing: run as root"),
        (&[BPF, PERFMON], "CAP_SYS_PTRACE is missing: run as root"),
        (&[SYS_ADMIN], "CAP_SYS_PTRACE is missing: run as root"),
        (&[SYS_PTRACE], "CAP_BPF and CAP_PERFMON are missing: run as root"),
        (&[SYS_PTRACE, PERFMON], "CAP_BPF is missing: run as root"),
        (&[SYS_PTRACE, BPF], "CAP_PERFMON is missing: run as root"),
    ];
    for mode in ["sysprof", "memprof", "all"] {
        for (capabilities, said) in cases {
            println!("{mode} with {capabilities:?}");
            let folder = tempfile::tempdir()?;
            let earlier = folder.path().join("run.bin");
            fs::write(&earlier, "an earlier recording")?;
            chown(&earlier, Some(NOBODY), Some(NOBODY))?;
            let [stream, report] = ["run.bin", "run.svg"].map(|name| folder.path().join(name).display().to_string());
            let arguments = [
                "--pid",
                &pid,
                "--mode",
                mode,
                "--duration",
                "1s",
                "--force",
                "--output",
                &stream,
                "--output",
                &report,
            ];
            let outcome = Tracer::start_as_nobody_with(capabilities, folder.path(), &arguments)?.wait();
            outcome?.expect(exit_code::PRIVILEGES, &[said, "AmbientCapabilities"]);
            // What is refused leaves what was there, and nothing else.
            ensure!(fs::read(&earlier)? == b"an earlier recording", "{mode}: an earlier recording was overwritten");
            let left = fs::read_dir(folder.path())?.map(|entry| Ok(entry?.file_name()));
            let left: BTreeSet<_> = left.collect::<Result<_>>()?;
            ensure!(left == ["lj-trace", "run.bin"].map(OsString::from).into(), "{mode} left {left:?}");
        }
    }
    for command in ["dump", "doctor"] {
        run_with(&[BPF, PERFMON], &[command, "--pid", &pid])?.expect(exit_code::PRIVILEGES, &[]);
    }
    Ok(())
}

/// As on kernels that have no `uprobe_multi` links: all that are patched (CVE-2025-38466) want more for perf events.
#[test]
fn probes_that_are_perf_events_need_one_more() -> Result<()> {
    let workload = Workload::start(&luajit()?, TRUTH, &["60"])?;
    let pid = workload.pid().to_string();
    let run = |more: &[Capability]| {
        let folder = tempfile::tempdir()?;
        let output = folder.path().join("m.bin");
        let options = ["--mode", "memprof", "--no-uprobe-multi", "--duration", "300ms"];
        let output = output.to_string_lossy();
        let arguments = [&["--pid", &pid, "--output", &output][..], &options].concat();
        Tracer::start_as_nobody_with(&[&[BPF, PERFMON, SYS_PTRACE], more].concat(), folder.path(), &arguments)?.wait()
    };
    run(&[])?.expect(exit_code::PRIVILEGES, &["CAP_SYS_ADMIN is missing", "since Linux 6.6"]);
    run(&[SYS_ADMIN])?.expect(0, &["allocation events"]);
    Ok(())
}

#[test]
fn looking_at_a_process_needs_no_bpf() -> Result<()> {
    let workload = Workload::start(&luajit()?, TRUTH, &["60"])?;
    let pid = workload.pid().to_string();
    let dumped = run_with(&[SYS_PTRACE], &["dump", "--pid", &pid])?;
    dumped.expect(0, &[]);
    ensure!(dumped.stdout.contains("truth.lua"), "{}", dumped.stdout);
    Ok(())
}

/// Records a busy program in both modes with these capabilities, or as root, and gives what it left and the
/// capabilities of lj-trace's threads while it recorded.
fn record(capabilities: Option<&[Capability]>) -> Result<(Outcome, Vec<(u64, u64)>)> {
    let folder = tempfile::tempdir()?;
    let path = |name: &str| folder.path().join(name);
    let (output, folded) = (path("run.bin"), path("run.folded"));
    let (output, folded) = (output.to_string_lossy(), folded.to_string_lossy());
    let mut workload = Workload::start(&luajit()?, STORM, &[])?;
    let pid = workload.pid().to_string();
    let arguments = ["--pid", &pid, "--mode", "all", "--rate", "499", "--no-limit"];
    let arguments = [&arguments[..], &["--output", &output, "--output", &folded]].concat();
    let mut tracer = match capabilities {
        Some(capabilities) => Tracer::start_as_nobody_with(capabilities, folder.path(), &arguments)?,
        None => Tracer::start(&arguments)?,
    };
    tracer.wait_until_attached()?;
    let attached = Instant::now();
    workload.go()?;
    // The thread that measures what probes cost ends by itself; what has attached gives up at once.
    let few = |threads: &[(u64, u64)]| threads.iter().all(|(_, permitted)| permitted >> BPF & 1 == 0);
    let mut threads = of_threads(tracer.pid())?;
    while !few(&threads) && attached.elapsed() < lj_trace_tests::patience(10) {
        std::thread::sleep(Duration::from_millis(20));
        threads = of_threads(tracer.pid())?;
    }
    while attached.elapsed() < Duration::from_secs(3) {
        workload.line()?;
    }
    tracer.signal(libc::SIGINT)?;
    let outcome = tracer.wait()?;
    outcome.expect(0, &["Lua complete"]);
    ensure!(!outcome.stderr.contains("LOST"), "{}", outcome.stderr);
    let stacks = Folded::parse(&fs::read_to_string(path("run.sysprof.folded"))?)?;
    ensure!(stacks.samples() > 100, "{} samples", stacks.samples());
    let allocations = Allocations::read(&path("run.memprof.bin"))?;
    allocations.check_addresses()?;
    ensure!(allocations.events.len() > 10_000, "{} events", allocations.events.len());
    // Native stacks need the target's files. Where the kernel is about to go into a probe, or to come back, they end.
    for (what, least) in [("Lua complete", 99.0), ("native complete", 80.0)] {
        let share = outcome.share(what)?;
        ensure!(share >= least, "{what} {share}%: {}", outcome.stderr);
    }
    Ok((outcome, threads))
}

/// What is enough here: kernels without `uprobe_multi` links want one more for a memory profile.
fn least() -> Result<Vec<Capability>> {
    let diagnosis: Value = serde_json::from_str(&lj_trace_tests::tracer::run(["doctor", "--json"])?.stdout)?;
    let checks = diagnosis["checks"].as_array().context("no checks")?;
    let uprobe_multi = checks.iter().find(|check| check["name"] == "uprobe_multi").context("no uprobe_multi")?;
    let is_there = !uprobe_multi["found"].as_str().context("nothing found")?.starts_with("not there");
    println!("uprobe_multi: {}", uprobe_multi["found"]);
    Ok([&[BPF, PERFMON, SYS_PTRACE][..], if is_there { &[] } else { &[SYS_ADMIN] }].concat())
}

/// All threads but those that have no capability at all: the one that opens the target's files, and one for each of the two
/// ring buffers, which it empties.
fn those_with_any(threads: &[(u64, u64)]) -> Result<Vec<(u64, u64)>> {
    let (without, with): (Vec<_>, Vec<_>) = threads.iter().partition(|sets| **sets == (0, 0));
    ensure!(without.len() == 3 && !with.is_empty(), "{threads:x?}");
    Ok(with)
}

#[test]
fn three_capabilities_are_enough_and_one_is_to_the_end() -> Result<()> {
    let (_, threads) = record(Some(&least()?))?;
    let (threads, expected) = (those_with_any(&threads)?, 1 << SYS_PTRACE);
    ensure!(threads.iter().all(|sets| *sets == (expected, expected)), "{threads:x?}");
    Ok(())
}

#[test]
fn root_gives_up_its_powers_once_it_has_attached() -> Result<()> {
    let own = of_threads(std::process::id())?;
    let (_, threads) = record(None)?;
    println!("{:x?} before, {threads:x?} while it records", own.first());
    let threads = those_with_any(&threads)?;
    ensure!(threads.iter().all(|(effective, _)| effective >> SYS_PTRACE & 1 == 1), "{threads:x?}");
    // Its outputs are in a folder of its own.
    for capability in OF_NO_USE.into_iter().chain([SYS_ADMIN, PERFMON, BPF, DAC_OVERRIDE]) {
        ensure!(threads.iter().all(|thread| !has(*thread, capability)), "{capability} is in {threads:x?}");
    }
    Ok(())
}

#[test]
fn windows_keep_what_opening_them_takes() -> Result<()> {
    if !windows::are_possible() {
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let mut workload = Workload::start(&luajit()?, STORM, &[])?;
    workload.go()?;
    let (pid, output) = (workload.pid().to_string(), folder.path().join("run.bin"));
    let output = output.to_string_lossy();
    let mut tracer = Tracer::start(["--pid", &pid, "--mode", "all", "--overhead", "5%", "--output", &output])?;
    tracer.wait_until_attached()?;
    for capability in OF_NO_USE.into_iter().chain([SYS_ADMIN]) {
        without(tracer.pid(), capability)?;
    }
    workload.next_turns(20)?;
    tracer.signal(libc::SIGINT)?;
    let outcome = tracer.wait()?;
    outcome.expect(0, &["stopped by a signal", "windows"]);
    Ok(())
}
