//! `lj-trace heap` finds every object that a program has made, accounts for every byte of its heap, and says what keeps
//! an object alive.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::heap::{HeapView, Phase, snapshot};
use lj_trace_tests::programs::{ALL, LUAJIT, Program, TARANTOOL};
use lj_trace_tests::source::line_of;
use lj_trace_tests::tracer::{Tracer, binary, exit_code, run};
use lj_trace_tests::usage::{Used, cpu_time, used_by};
use lj_trace_tests::workload::Workload;

/// Makes objects and counts them.
const TRUTH: &str = "heap.lua";
/// Objects of each type that it makes.
const COUNT: &str = "1500";
/// Fills its heap.
const BIG: &str = "heap_big.lua";
/// Leaks.
const LEAK: &str = "heap_leak.lua";

/// The workload on every build: what it says of each phase, and what a snapshot of it says.
fn phases(program: &Program, more: &[&str]) -> Result<Vec<(Phase, HeapView)>> {
    let mut workload = Workload::start(program, TRUTH, &[COUNT])?;
    let mut phases = Vec::new();
    for _ in 0..4 {
        workload.go()?;
        let phase = Phase::parse(&workload.report()?)?;
        let paths = phase.addresses.values().flat_map(|address| ["--path-to", address]);
        let stack = stack_size(workload.pid())?;
        let heap = snapshot(&workload, &paths.chain(more.iter().copied()).collect::<Vec<_>>())?;
        // Kernels before Linux 6.5 make it grow for whoever reads below it.
        ensure!(stack_size(workload.pid())? == stack, "its stack has grown, it was {stack}");
        phases.push((phase, heap));
    }
    Ok(phases)
}

/// The size of a process's stack, in the kernel's words.
fn stack_size(pid: u32) -> Result<String> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    Ok(status.lines().find(|line| line.starts_with("VmStk:")).context("it has no stack")?.to_owned())
}

fn check(program: &Program, more: &[&str]) -> Result<()> {
    let phases = phases(program, more)?;
    let mut before: BTreeMap<String, u64> = BTreeMap::new();
    for (phase, heap) in &phases {
        // To the byte: what the program says, what it has, and what was found.
        ensure!(heap.total == phase.total, "it has {} bytes, of which {} were seen", phase.total, heap.total);
        ensure!(heap.accounted == heap.total, "{} of {} bytes are accounted for", heap.accounted, heap.total);
        ensure!(heap.torn == [0; 3], "{:?}", heap.torn);
        for (kind, made) in &phase.made {
            let now = heap.count(kind);
            // Traces are counted all together; of everything else, what has come to it.
            let then = if kind == "trace" { 0 } else { before.get(kind).copied().unwrap_or(0) };
            ensure!(now - then == *made, "{made} of type {kind} were made, {} found ({then} before)", now - then);
        }
        ensure!(heap.garbage() <= 2, "all garbage was collected, but {} objects are", heap.garbage());
        before = heap.counts();
    }
    let [_, (made, full), .., (_, released)] = &phases[..] else { anyhow::bail!("there are four phases") };
    let path = |name: &str| made.addresses.get(name).and_then(|address| full.path_of(address)).context(name.to_owned());
    ensure!(path("table")? == "globals.shelf.tables[7]", "{}", path("table")?);
    // It is a local variable of the main chunk, which closures have as an upvalue.
    let hidden = path("hidden")?;
    ensure!(hidden.ends_with("hidden).inside.deep"), "{hidden}");
    // All of it is gone, but for what the program needed for its work.
    ensure!(released.total < phases[0].1.total * 2 && released.total * 2 < full.total, "{} bytes", released.total);
    Ok(())
}

#[test]
fn every_object_and_every_byte_is_found() -> Result<()> {
    for name in ALL {
        if let Some(program) = Program::find(name) {
            check(&program, &[]).with_context(|| name.to_owned())?;
        }
    }
    Ok(())
}

#[test]
fn a_stopped_process_goes_on() -> Result<()> {
    let program = Program::find(LUAJIT).context("the demo's luajit is everywhere")?;
    check(&program, &["--pause"])?;
    // While it works, it is consistent as well; and it goes on working.
    let mut workload = Workload::start(&program, LEAK, &["30"])?;
    workload.go()?;
    for _ in 0..3 {
        let heap = snapshot(&workload, &["--pause=5s"])?;
        ensure!(heap.paused.is_some_and(|stopped| stopped > 0.0), "it was not stopped");
        ensure!(heap.total == heap.total_after, "it has allocated while it was stopped");
        let now = cpu_time(workload.pid())?;
        wait_until(|| Ok(cpu_time(workload.pid())? > now))?;
    }
    Ok(())
}

fn wait_until(holds: impl Fn() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    while !holds()? {
        ensure!(start.elapsed() < lj_trace_tests::patience(20), "it does not go on");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

#[test]
fn a_stopped_process_goes_on_when_lj_trace_is_killed() -> Result<()> {
    let program = Program::find(LUAJIT).context("the demo's luajit is everywhere")?;
    let mut big = Workload::start(&program, BIG, &["60"])?;
    let pid = big.pid();
    // It takes long enough to be caught in the act; if it was not, once more.
    let mut caught = false;
    for _ in 0..20 {
        let tracer = Tracer::start(["heap", "--pid", &pid.to_string(), "--pause", "--json"])?;
        let start = Instant::now();
        while !caught
            && start.elapsed() < Duration::from_secs(10)
            && Path::new(&format!("/proc/{}/fd/0", tracer.pid())).exists()
        {
            caught = state(pid)? == "t";
        }
        tracer.signal(libc::SIGKILL)?;
        let _ = tracer.wait();
        if caught {
            break;
        }
    }
    ensure!(caught, "it was never seen to be stopped");
    wait_until(|| Ok(state(pid)? != "t"))?;
    big.go()?;
    big.report()?;
    Ok(())
}

/// The state of a process, as `ps` shows it: `t` while it is stopped by a tracer.
fn state(pid: u32) -> Result<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let rest = stat.rsplit_once(") ").context("no state in stat")?.1;
    Ok(rest.chars().take(1).collect())
}

#[test]
fn it_and_the_memory_profile_point_at_the_same_leak() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let program = Program::find(LUAJIT).context("the demo's luajit is everywhere")?;
    let mut workload = Workload::start(&program, LEAK, &["1", "off"])?;
    let pid = workload.pid().to_string();
    let (before, after, profile) = (path("before.heap.gz"), path("after.heap.gz"), path("leak.txt"));
    run(["heap", "--pid", &pid, "--output", &before])?.expect(0, &[]);
    let arguments = ["--pid", &pid, "--mode", "memprof", "--weight", "held", "--no-limit", "--output", &profile];
    let mut tracer = Tracer::start(arguments)?;
    tracer.wait_until_attached()?;
    workload.go()?;
    workload.report()?;
    tracer.signal(libc::SIGINT)?;
    tracer.wait()?.expect(0, &[]);
    run(["heap", "--pid", &pid, "--output", &after])?.expect(0, &[]);

    // The profile: the line that allocates what stays.
    let text = std::fs::read_to_string(&profile)?;
    let (_, held) = text.split_once("Still held").with_context(|| format!("nothing is held: {text}"))?;
    let line = format!("{LEAK}:{}", line_of(LEAK, "leaks"));
    let first = held.lines().nth(2).context("no line holds anything")?;
    ensure!(first.contains(&line), "{first} in\n{text}");

    // The heap: the path to what has come to it, and the table that has grown.
    let outcome = run(["heap", &after, "--diff", &before, "--json"])?;
    outcome.expect(0, &[]);
    let diff: serde_json::Value = serde_json::from_str(&outcome.stdout)?;
    let paths = diff["vms"][0]["paths"].as_array().context("no paths")?;
    let grown: Vec<&str> = paths.iter().filter_map(|path| path["path"].as_str()).take(3).collect();
    ensure!(grown.iter().all(|path| path.contains("failures")), "{grown:#?}");
    let text = run(["heap", &after, "--diff", &before])?.stdout;
    ensure!(text.contains("failures)[*]") || text.contains(".failures[*]"), "{text}");
    let outcome = run(["heap", &after, "--json"])?;
    let now: serde_json::Value = serde_json::from_str(&outcome.stdout)?;
    let biggest = &now["vms"][0]["tables"][0]["path"];
    ensure!(
        biggest.as_str().is_some_and(|path| path.ends_with("failures)") || path.ends_with(".failures")),
        "{biggest}"
    );
    Ok(())
}

#[test]
fn a_heap_that_moves_is_read_and_its_motion_is_said() -> Result<()> {
    let program = Program::find(LUAJIT).context("the demo's luajit is everywhere")?;
    let mut workload = Workload::start(&program, LEAK, &["20"])?;
    workload.go()?;
    for _ in 0..5 {
        let heap = snapshot(&workload, &[])?;
        ensure!(heap.count("table") > 0 && heap.count("string") > 0, "{:?}", heap.counts());
        // Whatever moves, what is found is about what there is.
        let there = heap.total.min(heap.total_after) / 8..heap.total.max(heap.total_after) * 8;
        ensure!(there.contains(&heap.accounted), "{} of {there:?} bytes are accounted for", heap.accounted);
    }
    Ok(())
}

/// Reads a heap of that many megabytes; at how many megabytes a second of CPU time, and what lj-trace has used.
fn rate(megabytes: u64) -> Result<(f64, Used)> {
    let program = Program::find(LUAJIT).context("the demo's luajit is everywhere")?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("heap.json");
    let big = Workload::start(&program, BIG, &[&megabytes.to_string()])?;
    let mut command = Command::new(binary());
    let used = used_by(command.args(["heap", "--json", "--pid", &big.pid().to_string()]), &file)?;
    let heap = HeapView::parse(&std::fs::read_to_string(file)?)?;
    ensure!(heap.accounted == heap.total && heap.torn == [0; 3], "{} of {} bytes", heap.accounted, heap.total);
    let read = heap.total as f64 / 1e6;
    ensure!(read > 0.9 * megabytes as f64, "a heap of {read} MB is too small");
    Ok((read / used.cpu, used))
}

#[test]
fn a_large_heap_is_read_fast() -> Result<()> {
    let (rate, used) = rate(100)?;
    // 1 GB in 10 s is 100 MB/s; machines differ. A build without optimization is some ten times as slow.
    let least = if binary().to_string_lossy().contains("/debug/") { 3.0 } else { 40.0 };
    ensure!(rate > least, "{rate:.0} MB a second of CPU time: {used:?}");
    ensure!(used.memory < 256 << 20, "{used:?}");
    println!("100 MB: {rate:.0} MB a second of CPU time, {used:?}");
    Ok(())
}

#[test]
#[ignore = "it takes more than a gigabyte and half a minute"]
fn a_gigabyte_is_read_in_ten_seconds() -> Result<()> {
    let (rate, used) = rate(1000)?;
    println!("1 GB: {rate:.0} MB a second of CPU time, {used:?}");
    ensure!(used.cpu < 10.0, "{rate:.0} MB a second of CPU time: {used:?}");
    ensure!(used.memory < 512 << 20, "{used:?}");
    Ok(())
}

#[test]
fn types_pictures_and_files() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let Some(program) = Program::find(TARANTOOL) else { return Ok(()) };
    let mut workload = Workload::start(&program, TRUTH, &["200"])?;
    for _ in 0..2 {
        workload.go()?;
        workload.report()?;
    }
    let pid = workload.pid().to_string();
    let outcome = run(["heap", "--pid", &pid, "--path-to", "coroutine"])?;
    outcome.expect(0, &[]);
    ensure!(outcome.stdout.contains("200  globals.shelf.coroutines[*]"), "{}", outcome.stdout);
    let files = ["heap.svg", "heap.folded", "heap.txt", "heap.json", "heap.heap.gz"].map(path);
    run(["heap", "--pid", &pid].into_iter().chain(files.iter().flat_map(|file| ["--output", file])))?.expect(0, &[]);
    let svg = std::fs::read_to_string(&files[0])?;
    ensure!(svg.contains("Lua heap of tarantool") && svg.contains(".coroutines"), "{}", &svg[..svg.len().min(2000)]);
    let folded = std::fs::read_to_string(&files[1])?;
    let sum: u64 = folded.lines().filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).sum();
    let json: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&files[3])?)?;
    ensure!(
        json["vms"][0]["total_after"] == sum,
        "{sum} of {} bytes are in the picture",
        json["vms"][0]["total_after"]
    );
    // What was saved says the same.
    let saved = run(["heap", &files[4], "--json"])?;
    ensure!(serde_json::from_str::<serde_json::Value>(&saved.stdout)? == json, "{}", saved.stdout);
    Ok(())
}

#[test]
fn what_cannot_be_is_said() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let text = folder.path().join("x.heap.gz").to_string_lossy().into_owned();
    std::fs::write(&text, "nothing")?;
    run(["heap", &text])?.expect(exit_code::IO, &["no snapshot of a heap"]);
    run(["heap"])?.expect(exit_code::USAGE, &["--pid"]);
    run(["heap", "--pid", "4194305"])?.expect(exit_code::NO_PROCESS, &["4194305"]);
    run(["heap", "--pid", &std::process::id().to_string()])?.expect(exit_code::NO_LUAJIT, &["no LuaJIT VM"]);
    run(["heap", &text, "--output", "x.bin"])?.expect(exit_code::USAGE, &["x.bin"]);
    run(["heap", "--pid", "1", "--path-to", "nonsense"])?.expect(exit_code::USAGE, &["userdata"]);
    Ok(())
}
