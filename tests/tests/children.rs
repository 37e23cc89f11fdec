//! Servers with a master and workers: nginx.

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::allocations::Allocations;
use lj_trace_tests::capabilities::{OF_NO_USE, SYS_ADMIN, without};
use lj_trace_tests::folded::Folded;
use lj_trace_tests::nginx::Nginx;
use lj_trace_tests::profiles::whole;
use lj_trace_tests::source::definition_of;
use lj_trace_tests::tracer::{Tracer, exit_code, run};
use serde_json::Value;

const SCRIPT: &str = "worker.lua";
/// CPU time of a worker that is worth a profile, in seconds.
const SECONDS: f64 = 0.6;
/// How long a process is recorded between two events.
const WHILE: Duration = Duration::from_millis(500);
/// How long something may take that takes some milliseconds on an idle machine.
const PATIENCE: u64 = 20;

fn read(folder: &Path, name: &str) -> Result<Folded> {
    let path = folder.join(name);
    Folded::parse(&std::fs::read_to_string(&path).with_context(|| path.display().to_string())?)
}

#[test]
fn a_master_names_its_workers() -> Result<()> {
    let Some(nginx) = Nginx::start(2)? else { return Ok(()) };
    let folder = tempfile::tempdir()?;
    let output = folder.path().join("x.folded");
    let pid = nginx.pid().to_string();
    let outcome = run(["--pid", &pid, "--duration", "200ms", "--output", &output.to_string_lossy()])?;
    outcome.expect(0, &["runs no Lua now", &format!("--pid {pid} --children")]);
    for worker in nginx.workers() {
        ensure!(outcome.stderr.contains(&worker.to_string()), "no {worker} in {}", outcome.stderr);
    }
    // A worker is no master, even though it is idle now and then.
    let worker = nginx.workers()[0].to_string();
    let outcome = run(["--pid", &worker, "--duration", "200ms", "--output", &output.to_string_lossy()])?;
    outcome.expect(0, &[]);
    ensure!(!outcome.stderr.contains("master"), "{}", outcome.stderr);
    Ok(())
}

#[test]
fn all_children_are_recorded_at_once() -> Result<()> {
    let Some(nginx) = Nginx::start(2)? else { return Ok(()) };
    let folder = tempfile::tempdir()?;
    let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let (pid, stream, folded) = (nginx.pid().to_string(), path("cpu.bin"), path("cpu.folded"));
    let outputs = ["--output", &stream, "--output", &folded];
    let arguments = ["--pid", &pid, "--children", "--rate", "199"];
    let mut tracer = Tracer::start(arguments.into_iter().chain(outputs))?;
    for _ in nginx.workers() {
        tracer.wait_until_attached()?;
    }
    nginx.workers().iter().try_for_each(|&worker| nginx.let_work(worker, SECONDS))?;
    tracer.signal(libc::SIGINT)?;
    tracer.wait()?.expect(0, &["stopped by a signal"]);
    let common = read(folder.path(), "cpu.folded")?;
    let compute = format!("compute@{}:", lua_file());
    for worker in nginx.workers() {
        let root = format!("nginx (pid {worker})");
        let own = common.samples_where(|stack| stack.frames.first() == Some(&root));
        ensure!(own > 50, "{own} samples of {root} in {common:#?}");
        // The rest is asking for the time.
        let computing = common.samples_where(|stack| {
            stack.frames.first() == Some(&root) && stack.frames.iter().any(|frame| frame.starts_with(&compute))
        });
        ensure!(computing * 4 > own * 3, "{computing} of {own} samples of {root} compute");
        // Its own stream has the same samples.
        let file = path(&format!("cpu-{worker}.bin"));
        let report = run(["report", &file, "--format", "folded"])?;
        report.expect(0, &[]);
        let samples = Folded::parse(&report.stdout)?.samples();
        ensure!(samples == own, "{samples} in {file}, {own} in cpu.folded");
    }
    let all: u64 = nginx
        .workers()
        .iter()
        .map(|worker| format!("nginx (pid {worker})"))
        .map(|root| common.samples_where(|stack| stack.frames.first() == Some(&root)))
        .sum();
    ensure!(all == common.samples(), "{all} of {}", common.samples());
    Ok(())
}

/// The workers' chunk, as their frames name it.
fn lua_file() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("lua").join(SCRIPT).to_string_lossy().into_owned()
}

#[test]
fn memory_profiles_of_children_are_files_of_their_own() -> Result<()> {
    let Some(nginx) = Nginx::start(2)? else { return Ok(()) };
    let folder = tempfile::tempdir()?;
    let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let (pid, stream, folded) = (nginx.pid().to_string(), path("mem.bin"), path("mem.folded"));
    let arguments = ["--pid", &pid, "--children", "--mode", "memprof", "--no-limit", "--duration", "300ms"];
    let outcome = run(arguments.into_iter().chain(["--output", &stream, "--output", &folded]))?;
    outcome.expect(0, &["finished: recorded"]);
    for worker in nginx.workers() {
        let profile = read(folder.path(), &format!("mem-{worker}.folded"))?;
        // The tables are made by compiled code, so by traces.
        ensure!(profile.samples() > 10_000, "worker {worker} makes no tables: {profile:#?}");
        run(["report", &path(&format!("mem-{worker}.bin"))])?.expect(0, &[]);
    }
    Ok(())
}

/// Has it given up what attaching to new workers does not take? Where a setting or the kernel's lack of `uprobe_multi`
/// links wants `CAP_SYS_ADMIN` for that, it stays.
fn keeps_what_attaching_takes(tracer: &Tracer) -> Result<()> {
    OF_NO_USE.into_iter().try_for_each(|capability| without(tracer.pid(), capability))?;
    let setting: i32 = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid")?.trim().parse()?;
    let diagnosis = run(["doctor"])?.stdout;
    if setting > 2 || diagnosis.contains("uprobe_multi: not there") {
        return Ok(());
    }
    without(tracer.pid(), SYS_ADMIN)
}

#[test]
fn workers_of_a_reload_are_recorded_too() -> Result<()> {
    let Some(mut nginx) = Nginx::start(1)? else { return Ok(()) };
    let folder = tempfile::tempdir()?;
    let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let (pid, stream, folded) = (nginx.pid().to_string(), path("cpu.bin"), path("cpu.folded"));
    let arguments = ["--pid", &pid, "--children", "--rate", "199", "--output", &stream, "--output", &folded];
    let mut tracer = Tracer::start(arguments)?;
    tracer.wait_until_attached()?;
    let old = nginx.workers()[0];
    keeps_what_attaching_takes(&tracer)?;
    let new = nginx.reload()?;
    // Each says so, when it is.
    tracer.wait_until_attached()?;
    [old, new].into_iter().try_for_each(|worker| nginx.let_work(worker, SECONDS))?;
    // The old one would go on computing; its stream is complete when it ends, not only when lj-trace does.
    nginx.kill(old)?;
    let of_old = folder.path().join(format!("cpu-{old}.bin"));
    let start = Instant::now();
    while whole(&of_old).is_err() {
        ensure!(
            start.elapsed() < lj_trace_tests::patience(PATIENCE),
            "the stream of the worker that has exited stays incomplete"
        );
        sleep(WHILE / 10);
    }
    tracer.signal(libc::SIGINT)?;
    let outcome = tracer.wait()?;
    outcome.expect(0, &["the process has exited", "stopped by a signal", &new.to_string()]);
    let common = read(folder.path(), "cpu.folded")?;
    for worker in [old, new] {
        let root = format!("nginx (pid {worker})");
        let own = common.samples_where(|stack| stack.frames.first() == Some(&root));
        let report = run(["report", &path(&format!("cpu-{worker}.bin")), "--format", "folded"])?;
        report.expect(0, &[]);
        let computing = Folded::parse(&report.stdout)?.samples();
        ensure!(own > 20 && own == computing, "{own} samples of {root} in cpu.folded, {computing} in its stream");
    }
    Ok(())
}

#[test]
fn a_worker_that_replaces_another_has_a_memory_profile() -> Result<()> {
    let Some(mut nginx) = Nginx::start(1)? else { return Ok(()) };
    let folder = tempfile::tempdir()?;
    let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let (pid, stream) = (nginx.pid().to_string(), path("mem.bin"));
    let mut tracer =
        Tracer::start(["--pid", &pid, "--children", "--mode", "memprof", "--no-limit", "--output", &stream])?;
    tracer.wait_until_attached()?;
    let old = nginx.workers()[0];
    keeps_what_attaching_takes(&tracer)?;
    nginx.let_work(old, SECONDS / 4.0)?;
    nginx.kill(old)?;
    let new = nginx.wait_for_new()?;
    tracer.wait_until_attached()?;
    nginx.let_work(new, SECONDS / 4.0)?;
    tracer.signal(libc::SIGINT)?;
    tracer.wait()?.expect(0, &["the process has exited", "stopped by a signal"]);
    for worker in [old, new] {
        let allocations = Allocations::read(&folder.path().join(format!("mem-{worker}.bin")))?;
        ensure!(!allocations.events.is_empty(), "worker {worker} has no events");
    }
    Ok(())
}

/// The children may go on without their parent, and are recorded until they end.
#[test]
fn it_ends_with_the_last_of_the_family() -> Result<()> {
    let Some(mut nginx) = Nginx::start(2)? else { return Ok(()) };
    let folder = tempfile::tempdir()?;
    let stream = folder.path().join("cpu.bin").to_string_lossy().into_owned();
    let mut tracer = Tracer::start(["--pid", &nginx.pid().to_string(), "--children", "--output", &stream])?;
    tracer.wait_until_attached()?;
    tracer.wait_until_attached()?;
    nginx.kill_master()?;
    sleep(WHILE);
    let [first, last] = nginx.workers()[..] else { anyhow::bail!("{:?}", nginx.workers()) };
    nginx.kill(first)?;
    sleep(WHILE);
    let start = Instant::now();
    nginx.kill(last)?;
    tracer.wait()?.expect(0, &["the process has exited"]);
    ensure!(start.elapsed() < lj_trace_tests::patience(PATIENCE), "it took {:?}", start.elapsed());
    for worker in nginx.workers() {
        run(["report", &stream.replace(".bin", &format!("-{worker}.bin"))])?.expect(0, &[]);
    }
    Ok(())
}

#[test]
fn what_has_no_children_with_lua_is_refused() -> Result<()> {
    let Some(nginx) = Nginx::start(1)? else { return Ok(()) };
    let worker = nginx.workers()[0].to_string();
    run(["--pid", &worker, "--children"])?.expect(exit_code::NO_LUAJIT, &["has no running child with a LuaJIT VM"]);
    run(["--pid", "4000000", "--children"])?.expect(exit_code::NO_PROCESS, &["no process 4000000"]);
    // This test itself has no Lua, but its child's children have.
    let own = std::process::id().to_string();
    let expected = format!("processes that it started have one: {}", nginx.pid());
    run(["--pid", &own])?.expect(exit_code::NO_LUAJIT, &["no LuaJIT VM", &expected]);
    Ok(())
}

#[test]
fn list_and_dump_know_masters_from_workers() -> Result<()> {
    let Some(nginx) = Nginx::start(1)? else { return Ok(()) };
    let worker = nginx.workers()[0];
    // The worker runs all the time: a look may catch it where no function can be told, but not each of ten.
    let mut is_told = false;
    for _ in 0..10 {
        let outcome = run(["list", "--json"])?;
        outcome.expect(0, &[]);
        let listing: Value = serde_json::from_str(&outcome.stdout)?;
        let all = listing["processes"].as_array().context("no processes")?;
        let vm = |pid: u32| {
            let process = all.iter().find(|process| process["pid"] == pid);
            process.map(|process| &process["vms"][0]).with_context(|| format!("no {pid} in {listing:#}"))
        };
        ensure!(vm(nginx.pid())?["doing"].is_null(), "{listing:#}");
        let function = vm(worker)?["doing"]["function"].as_str().unwrap_or_default();
        is_told |= function.contains(SCRIPT);
    }
    ensure!(is_told, "no look has told what the worker does");
    let outcome = run(["dump", "--pid", &worker.to_string()])?;
    outcome.expect(0, &[]);
    let work = format!("@{}:{}", lua_file(), definition_of(SCRIPT, "work"));
    ensure!(outcome.stdout.contains(&work), "no {work} in {}", outcome.stdout);
    ensure!(outcome.stdout.contains("OpenResty's LuaJIT 2.1.0-beta3, GC64"), "{}", outcome.stdout);
    Ok(())
}
