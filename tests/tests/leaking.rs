//! A server that leaks with each request: within seconds under load, both kinds of memory profile say where.

use anyhow::{Result, ensure};
use lj_trace_tests::leaking::{Attach, LEAKING_TABLE, Leaking};
use lj_trace_tests::windows;

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
