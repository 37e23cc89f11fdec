//! `cargo xtask bench leak`: nginx with Lua under load from wrk, leaking with each request: what names the leak, and what
//! clients feel of that.
//!
//! How many answers wrk gets depends as much on how it and nginx take turns: whichever is disturbed, both may find
//! themselves in a slower rhythm, or a faster one. So a timer is measured, too, that does nothing but go off as often as
//! lj-trace looks at the collector: what clients feel of that is no cost of a profile.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::Duration;

use anyhow::Result;

use super::table::{Table, verdict};
use crate::leaking::{Attach, LEAKING_TABLE, Leaking};
use crate::wrk::Answers;

/// How long the server warms up, in seconds.
const WARMING: u64 = 3;

/// How often the timer goes off.
const TIMER: Duration = Duration::from_millis(1);

/// Measures each of so many rounds without lj-trace, with a timer, and with lj-trace, each for so many seconds on a server
/// of its own, and prints what came out. [`None`] where this system has no nginx or wrk.
///
/// # Errors
/// If a request or lj-trace has failed.
pub fn leak(seconds: u64, rounds: u32) -> Result<Option<()>> {
    let mut table = Table::new(["", "requests/s", "p50", "p75", "p90", "p99"]);
    let (mut named, mut last) = (0, Vec::new());
    let mut found = 0;
    for round in 1..=rounds {
        let Some(server) = warm()? else { return Ok(None) };
        let Some(bare) = server.load("without lj-trace", seconds)? else { return Ok(None) };
        table.row(cells(format!("{round}: without lj-trace"), &bare, seconds));
        let Some(server) = warm()? else { return Ok(None) };
        let Some(timed) = beside_timer(|| server.load("beside a timer", seconds))? else { return Ok(None) };
        table.row(cells(format!("{round}: a timer of 1 ms"), &timed, seconds));
        let Some(server) = warm()? else { return Ok(None) };
        let Some(recorded) = server.record("recorded at a cost of 5%", seconds, Attach::UnderLoad)? else {
            return Ok(None);
        };
        table.row(cells(format!("{round}: --mode memprof --overhead 5%"), &recorded.answers, seconds));
        print!("{}", recorded.outcome.stderr);
        named += u32::from(recorded.expect_the_leak().is_ok());
        let way = server.largest_table()?;
        println!("  the largest table of the heap is {way}");
        found += u32::from(way.contains(LEAKING_TABLE));
        last = recorded.staying;
    }
    println!("\n{rounds} rounds of {seconds} s, each on a server of its own; no request has failed");
    table.print();
    println!("\nWhat stays, by the last round:");
    last.iter().for_each(|line| println!("{line}"));
    println!();
    let all = format!("{rounds} of {rounds}");
    verdict("the line that leaks is the first", &all, &format!("{named} of {rounds}"), named == rounds);
    verdict("its table is the largest of the heap", &all, &format!("{found} of {rounds}"), found == rounds);
    Ok(Some(()))
}

/// Does something while a timer goes off all the time.
fn beside_timer<T>(work: impl FnOnce() -> T) -> T {
    let is_over = AtomicBool::new(false);
    scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                sleep(TIMER);
            }
        });
        let done = work();
        is_over.store(true, Ordering::Relaxed);
        done
    })
}

fn warm() -> Result<Option<Leaking>> {
    let Some(server) = Leaking::start()? else { return Ok(None) };
    Ok(server.load("warming up", WARMING)?.map(|_| server))
}

fn cells(name: String, answers: &Answers, seconds: u64) -> [String; 6] {
    let percentile = |wanted: &str| {
        let found = answers.latency.iter().find(|(percent, _)| percent == wanted);
        found.map_or_else(|| "-".to_owned(), |(_, time)| time.clone())
    };
    let [half, most, nearly, all] = ["50%", "75%", "90%", "99%"].map(percentile);
    [name, format!("{:.0}", answers.requests as f64 / seconds as f64), half, most, nearly, all]
}
