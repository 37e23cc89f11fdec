//! Attaching to programs that allocate all the time: their memory moves while their VM is proven, which is no reason to
//! refuse them.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Result, bail};
use lj_trace_luajit::find_vms;
use lj_trace_process::Process;
use lj_trace_tests::programs::{LUAJIT, LUAJIT2, Program, TARANTOOL};
use lj_trace_tests::workload::Workload;

/// The workload.
const SCRIPT: &str = "churn.lua";
/// What moves in it.
const KINDS: [&str; 9] =
    ["tables", "interpreted", "strings", "closures", "coroutines", "stack", "traces", "flushed", "all"];
/// How often each is looked for: those who want to know more exactly set `LJ_TRACE_TEST_ATTACHMENTS`.
const ATTACHMENTS: u32 = 18;

/// Finds the VM of a program over and over while it moves.
fn check(program: &'static str) -> Result<()> {
    let Some(program) = Program::find(program) else { return Ok(()) };
    let attachments = match std::env::var("LJ_TRACE_TEST_ATTACHMENTS") {
        Ok(attachments) => attachments.parse()?,
        Err(_) => ATTACHMENTS,
    };
    let mut refused = Vec::new();
    for kind in KINDS {
        let workload = Workload::start(&program, SCRIPT, &[kind])?;
        let process = Process::open(workload.pid())?;
        let mut builds: BTreeMap<Vec<String>, u32> = BTreeMap::new();
        let mut times = Vec::new();
        for _ in 0..attachments {
            let began = Instant::now();
            match find_vms(&process, &process.maps()?) {
                Ok(vms) if vms.len() == 1 => *builds.entry(vms[0].builds.clone()).or_default() += 1,
                Ok(vms) => refused.push(format!("{kind}: {} VMs", vms.len())),
                Err(error) => refused.push(format!("{kind}: {error}")),
            }
            times.push(began.elapsed());
        }
        times.sort_unstable();
        let (median, longest) = (times[times.len() / 2], times[times.len() - 1]);
        println!("{} {kind}: {attachments} times in {median:.1?}, {longest:.1?} at most: {builds:?}", program.name);
        // Whatever moves, it is the same build; while there are no traces, it may be another one as well.
        let of_table = builds.keys().filter(|builds| !builds[0].starts_with("what the debug information"));
        let first = of_table.clone().next().cloned().unwrap_or_default();
        if !first.iter().any(|build| of_table.clone().all(|builds| builds.contains(build))) {
            // Rare on tarantool: builds that only traces tell apart, while traces come and go.
            let verdict = format!("{kind}: taken for different builds: {builds:?}");
            println!("{verdict}");
            if program.name != TARANTOOL {
                refused.push(verdict);
            }
        }
    }
    if !refused.is_empty() {
        bail!("{}: {} of {}: {}", program.name, refused.len(), attachments * KINDS.len() as u32, refused.join("\n"));
    }
    Ok(())
}

#[test]
fn to_luajit() -> Result<()> {
    check(LUAJIT)
}

#[test]
fn to_luajit2() -> Result<()> {
    check(LUAJIT2)
}

#[test]
fn to_tarantool() -> Result<()> {
    check(TARANTOOL)
}
