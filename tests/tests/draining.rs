//! The kernel's buffers are emptied in time, however long an output keeps lj-trace waiting.

use std::fs::File;
use std::io::Read as _;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::programs::{LUAJIT, Program};
use lj_trace_tests::tracer::Tracer;
use lj_trace_tests::workload::Workload;

/// Each is allocated and freed: with 56 bytes for an event, more than twice what the buffer of 16 MiB holds.
const TABLES: u64 = 350_000;

#[test]
fn a_reader_that_is_late_loses_nothing() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let luajit = Program::find(LUAJIT).context("the demo's luajit is everywhere")?;
    let mut workload = Workload::start(&luajit, "burst.lua", &[&TABLES.to_string()])?;
    let pipe = folder.path().join("pipe.bin");
    ensure!(Command::new("mkfifo").arg(&pipe).status()?.success(), "no FIFO");
    // Open for writing as well, so that opening waits for nobody.
    let mut reader = File::options().read(true).write(true).open(&pipe)?;
    let output = pipe.display().to_string();
    let arguments = ["--mode", "memprof", "--no-limit", "--output", &output, "--pid", &workload.pid().to_string()];
    let mut tracer = Tracer::start(arguments)?;
    tracer.wait_until_attached()?;
    workload.go()?;
    workload.expect("done")?;
    // Nobody has read anything by now.
    let read = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&read);
    thread::spawn(move || {
        let mut bytes = vec![0; 1 << 16];
        // It never sees the end: it holds the other end of the pipe, too.
        while let Ok(count) = reader.read(&mut bytes) {
            counter.fetch_add(count as u64, Ordering::Relaxed);
        }
    });
    // Until all is worked off: streams are written out every second.
    let mut before = 0;
    loop {
        thread::sleep(Duration::from_millis(2500));
        match read.load(Ordering::Relaxed) {
            now if now == before => break,
            now => before = now,
        }
    }
    workload.go()?;
    let outcome = tracer.wait()?;
    outcome.expect(0, &[]);
    let figure = |what: &str| -> Result<u64> {
        let line = outcome.stderr.lines().find(|line| line.trim_start().starts_with(what)).context("no such line")?;
        Ok(line.split_whitespace().last().unwrap_or_default().parse()?)
    };
    ensure!(figure("lost")? == 0, "{}", outcome.stderr);
    let [allocations, frees] = [figure("allocations")?, figure("frees")?];
    ensure!(allocations >= TABLES && frees >= TABLES, "{allocations} allocations, {frees} frees: {}", outcome.stderr);
    Ok(())
}
