//! Processes with much memory: it takes no longer to find their VMs.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::attach_time::quickest;
use lj_trace_tests::programs::{LUAJIT, Program, TARANTOOL};
use lj_trace_tests::tracer::run;
use lj_trace_tests::workload::Workload;
use serde_json::Value;

const SCRIPT: &str = "roomy.lua";
/// Memory of the big ones, in MiB: a search of all takes some 0.2 s for each 1024 of them, and no machine does it in
/// [`LONGER`].
const MUCH: &str = "2048";
const LITTLE: &str = "1";
/// By how much a big process may take longer to attach to.
const LONGER: Duration = Duration::from_millis(100);

fn both(name: &'static str) -> Result<()> {
    let Some(program) = Program::find(name) else { return Ok(()) };
    let mut small = Workload::start(&program, SCRIPT, &[LITTLE])?;
    small.go()?;
    let expected = quickest(&small)?;
    small.kill()?;
    let mut big = Workload::start(&program, SCRIPT, &[MUCH])?;
    let listing = run(["list", "--json"])?;
    big.go()?;
    let took = quickest(&big)?;
    println!("{name}: attached in {expected:?}, with {MUCH} MiB in {took:?}");
    ensure!(took < expected + LONGER, "{name}: {took:?} instead of {expected:?}");
    // Where nobody searches the rest, it is told.
    let listing: Value = serde_json::from_str(&listing.stdout)?;
    let process = listing["processes"].as_array().into_iter().flatten().find(|process| process["pid"] == big.pid());
    let process = process.with_context(|| format!("{listing:#}"))?;
    ensure!(
        process["may_have_more"] == true && process["vms"].as_array().is_some_and(|vms| !vms.is_empty()),
        "{process:#}"
    );
    // And where somebody does, all of them are found.
    let dump = run(["dump", "--pid", &big.pid().to_string(), "--json"])?;
    let dump: Value = serde_json::from_str(&dump.stdout)?;
    ensure!(dump["vms"].as_array().map(Vec::len) == Some(2), "{dump:#}");
    big.kill()
}

#[test]
fn luajit_is_attached_to_as_soon() -> Result<()> {
    both(LUAJIT)
}

#[test]
fn tarantool_is_attached_to_as_soon() -> Result<()> {
    both(TARANTOOL)
}
