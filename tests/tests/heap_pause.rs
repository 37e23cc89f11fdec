//! `lj-trace heap --pause` lets a program go on when the time is over, whatever is left to read, and reads no more than
//! there is.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::heap::HeapView;
use lj_trace_tests::programs::{LUAJIT, Program, TARANTOOL};
use lj_trace_tests::standstill::{MORE, stands, watch};
use lj_trace_tests::tracer::run;
use lj_trace_tests::workload::Workload;

/// Fills its heap.
const BIG: &str = "heap_big.lua";
/// Has a table with so many keys that are objects of the FFI.
const KEYS: &str = "heap_keys.lua";

/// Takes a snapshot of a workload that may be stopped for this long, and goes on then.
fn stopped_for(workload: &mut Workload, limit: Duration) -> Result<HeapView> {
    let pid = workload.pid();
    let option = format!("--pause={}ms", limit.as_millis());
    let (outcome, seen) = watch(pid, || run(["heap", "--json", "--pid", &pid.to_string(), &option]));
    let outcome = outcome?;
    outcome.expect(0, &["RSS"]);
    let heap = HeapView::parse(&outcome.stdout)?;
    let most = limit + MORE + seen.late;
    ensure!(seen.stood <= most, "it was seen to stand still for {:?}, at most {most:?} are right", seen.stood);
    let said = Duration::from_secs_f64(heap.paused.context("it was not stopped")? / 1e3);
    ensure!(said <= most, "it was stopped for {said:?}, at most {most:?} are right");
    let exact = if heap.went_on { "not exact" } else { "; exact" };
    ensure!(outcome.stderr.contains(exact), "{exact}: {}", outcome.stderr);
    ensure!(!stands(pid), "it does not go on");
    Ok(heap)
}

#[test]
fn what_is_not_luas_is_not_read() -> Result<()> {
    for name in [LUAJIT, TARANTOOL] {
        let Some(program) = Program::find(name) else { continue };
        let mut workload = Workload::start(&program, KEYS, &["50000", "50000", "400"])?;
        let heap = stopped_for(&mut workload, lj_trace_tests::patience(20))?;
        ensure!(!heap.went_on && heap.torn == [0; 3], "{:?}", heap.torn);
        ensure!(heap.accounted == heap.total, "{} of {} bytes are accounted for", heap.accounted, heap.total);
        ensure!(heap.bytes_read < heap.rss / 2, "{name}: {} of {} bytes were read", heap.bytes_read, heap.rss);
    }
    Ok(())
}

fn check(program: &Program, script: &str, argument: &str) -> Result<()> {
    let mut workload = Workload::start(program, script, &[argument])?;
    let short = stopped_for(&mut workload, Duration::from_millis(5))?;
    ensure!(short.went_on, "some {} bytes were read in 5 ms", short.bytes_read);
    let heap = stopped_for(&mut workload, lj_trace_tests::patience(20))?;
    ensure!(!heap.went_on && heap.torn == [0; 3], "{:?}", heap.torn);
    ensure!(heap.accounted == heap.total, "{} of {} bytes are accounted for", heap.accounted, heap.total);
    for heap in [&short, &heap] {
        let share = heap.bytes_read as f64 / heap.rss as f64;
        ensure!(share <= 1.2, "{} bytes were read of a process with {}", heap.bytes_read, heap.rss);
    }
    workload.go()?;
    workload.report()?;
    Ok(())
}

#[test]
fn a_large_heap_keeps_nobody_waiting() -> Result<()> {
    check(&Program::find(LUAJIT).context("the demo's luajit is everywhere")?, BIG, "150")
}

#[test]
fn neither_does_a_table_that_is_one_large_step() -> Result<()> {
    for name in [LUAJIT, TARANTOOL] {
        if let Some(program) = Program::find(name) {
            check(&program, KEYS, "400000").with_context(|| name.to_owned())?;
        }
    }
    Ok(())
}
