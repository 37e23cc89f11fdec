//! `cargo xtask bench waits`: what it costs to look at very many coroutines, and whether the program feels it.

use std::time::Duration;

use anyhow::Result;

use super::table::{Table, verdict};
use crate::programs::Program;
use crate::tracer::Tracer;
use crate::usage::{cpu_time, memory};
use crate::workload::Workload;

/// The most of a core that looks may take.
const MOST: f64 = 0.01;
/// The most that the program may be slower, as a share: it is only read.
const SLOWER: f64 = 0.01;
/// Turns of the program that are compared at a time.
const TURNS: usize = 300;

/// Looks at so many coroutines for so many seconds, of which none moves, or a tenth or all of them each second.
///
/// # Errors
/// If a workload or lj-trace fails.
pub fn waits(coroutines: u32, seconds: u64, program: &Program) -> Result<()> {
    let mut table = Table::new(["coroutines", "move/s", "CPU", "peak MB", "turn without", "with", "slower"]);
    let (mut most, mut slowest) = (0.0_f64, f64::NEG_INFINITY);
    for moves in [0, coroutines / 10, coroutines] {
        let mut workload = Workload::start(program, "waits_many.lua", &[&coroutines.to_string(), &moves.to_string()])?;
        workload.go()?;
        let before = median(workload.next_turns(TURNS)?);
        let folder = tempfile::tempdir()?;
        let output = folder.path().join("waits.txt").display().to_string();
        let pid = workload.pid().to_string();
        let mut tracer = Tracer::start(["--pid", &pid, "--mode", "waits", "-o", &output])?;
        tracer.wait_until_attached()?;
        // The first looks meet all coroutines for the first time.
        let first = median(workload.next_turns(TURNS)?);
        let began = (cpu_time(tracer.pid())?, std::time::Instant::now());
        let mut with = vec![first];
        while began.1.elapsed() < Duration::from_secs(seconds) {
            with.push(median(workload.next_turns(TURNS)?));
        }
        let share = (cpu_time(tracer.pid())? - began.0) / began.1.elapsed().as_secs_f64();
        let peak = memory(tracer.pid())?.0;
        tracer.signal(libc::SIGTERM)?;
        tracer.wait()?.expect(0, &[]);
        let after = median(workload.next_turns(TURNS)?);
        let (without, with) = (before.midpoint(after), median(with));
        let slower = with / without - 1.0;
        (most, slowest) = (most.max(share), slowest.max(slower));
        table.row([
            coroutines.to_string(),
            moves.to_string(),
            format!("{:.2}%", share * 100.0),
            format!("{:.0}", peak as f64 / 1024.0),
            format!("{:.2} ms", without * 1e3),
            format!("{:.2} ms", with * 1e3),
            format!("{:+.2}%", slower * 100.0),
        ]);
    }
    table.print();
    println!();
    verdict(
        "a core's time for looks",
        &format!("<= {:.0}%", MOST * 100.0),
        &format!("{:.2}%", most * 100.0),
        most <= MOST,
    );
    let asked = format!("<= {:.0}%", SLOWER * 100.0);
    verdict("the program is slower", &asked, &format!("{:+.2}%", slowest * 100.0), slowest <= SLOWER);
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
