//! Functions that are inlined into traces have the shares of the time that they take.

use anyhow::{Result, bail};
use lj_trace_tests::inlined::record;
use lj_trace_tests::programs::{LUAJIT, LUAJIT2, TARANTOOL};
use lj_trace_tests::workload::seconds;

/// CPU time that the workload uses up, in seconds.
const SECONDS: u32 = 6;
/// By how many percentage points a share may be off, beyond what chance explains: what is not division.
const POINTS: f64 = 3.0;

fn check(program: &'static str) -> Result<()> {
    let Some((functions, recorded)) = record(program, "trace_shares.lua", &[&seconds(SECONDS)], &["--rate", "999"])?
    else {
        return Ok(());
    };
    let wrong = functions.wrong_shares(&recorded.folded, POINTS);
    if !wrong.is_empty() {
        bail!("{program}: {}", wrong.join("; "));
    }
    Ok(())
}

#[test]
fn on_luajit() -> Result<()> {
    check(LUAJIT)
}

#[test]
fn on_luajit2() -> Result<()> {
    check(LUAJIT2)
}

#[test]
fn on_tarantool() -> Result<()> {
    check(TARANTOOL)
}
