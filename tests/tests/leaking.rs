//! Servers that leak with each request: within seconds under load, both kinds of memory profile say where.

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::estimates::staying;
use lj_trace_tests::leaking::{Attach, LEAKING_TABLE, Leaking};
use lj_trace_tests::programs::{Program, TARANTOOL};
use lj_trace_tests::source::line_of;
use lj_trace_tests::tracer::Tracer;
use lj_trace_tests::windows;
use lj_trace_tests::workload::Workload;

#[test]
fn a_leak_is_named_under_load_and_no_request_fails() -> Result<()> {
    if !windows::are_possible() {
        return Ok(());
    }
    let Some(server) = Leaking::start()? else { return Ok(()) };
    let Some(recorded) = server.record("recorded at a cost of 5%", 10, Attach::Before)? else { return Ok(()) };
    println!("{}", recorded.outcome.stderr);
    recorded.expect_the_leak()?;
    // The heap that is left says the same.
    let way = server.largest_table()?;
    ensure!(way.contains(LEAKING_TABLE), "the largest table is {way}");
    Ok(())
}

/// A Tarantool that stores each visit by way of C, and makes much garbage beside what it keeps.
#[test]
fn a_leak_of_tarantool_is_the_first_row() -> Result<()> {
    if !windows::are_possible() {
        return Ok(());
    }
    let Some(program) = Program::find(TARANTOOL) else { return Ok(()) };
    let folder = tempfile::tempdir()?;
    let script = "leaking_box.lua";
    let mut workload = Workload::start(&program, script, &[&folder.path().to_string_lossy()])?;
    workload.go()?;
    let text = folder.path().join("leak.txt");
    let (pid, output) = (workload.pid().to_string(), text.display().to_string());
    let mut tracer =
        Tracer::start(["--pid", &pid, "--mode", "memprof", "--overhead", "5%", "--duration", "10s", "-o", &output])?;
    tracer.wait_until_attached()?;
    let outcome = tracer.wait()?;
    outcome.expect(0, &["lost               0"]);
    let text = std::fs::read_to_string(text)?;
    println!("{}{text}", outcome.stderr);
    let first = *staying(&text).first().with_context(|| format!("nothing stays: {text}"))?;
    let leak = line_of(script, "leak");
    // The line; or, where a trace is not certain of it, the line that the trace begins at: in the function, or the loop around.
    let trace = first.split_once(&format!(" @{script}:")).and_then(|(_, trace)| trace.split_once(" (TRACE"));
    let begins: u64 = trace.map_or(Ok(0), |(line, _)| line.parse())?;
    let is_it = first.contains(&format!(" {script}:{leak} ")) || begins + 4 > leak;
    ensure!(is_it, "{script}:{leak} is not first: {text}");
    Ok(())
}
