//! `lj-trace agent` and processes that live for a moment: the kernel reports them, so that they are recorded before they end.

use anyhow::{Result, ensure};
use lj_trace_tests::benches::host;
use lj_trace_tests::chance::of_count;
use lj_trace_tests::pauses::Pauses;
use lj_trace_tests::usage::stolen;

#[test]
fn nearly_all_of_many_are_recorded() -> Result<()> {
    /// A second.
    const RATE: u32 = 10;
    let (stolen_before, pauses) = (stolen()?, Pauses::watch());
    let outcome = host::come_and_go(RATE, 300, 6)?;
    let gone = pauses.end() + stolen()? - stolen_before;
    ensure!(outcome.harmed == 0 && outcome.failed == 0.0, "{outcome:?}");
    // One of a hundred may be over before its turn comes, as many more as chance makes of it, and those that lived while the machine
    // stood still.
    let missed = 0.01 * outcome.started as f64;
    let most = missed + of_count(missed) + gone * f64::from(RATE);
    ensure!(outcome.started as f64 - outcome.recorded <= most, "{most} may be missed: {outcome:?}");
    Ok(())
}

#[test]
fn a_single_one_wakes_the_agent() -> Result<()> {
    let (stolen_before, pauses) = (stolen()?, Pauses::watch());
    let outcome = host::come_and_go(1, 100, 12)?;
    let gone = pauses.end() + stolen()? - stolen_before;
    // One that looked every 200 ms would meet half of those that live for 100 ms: 9 of 12 in 7 of 100 runs. A machine that stands
    // still may cost one each time.
    let least = 0.75 * outcome.started as f64 - gone / 0.1;
    ensure!(outcome.harmed == 0 && outcome.recorded >= least, "{least} at least: {outcome:?}");
    Ok(())
}
