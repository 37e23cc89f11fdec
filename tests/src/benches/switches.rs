//! `cargo xtask bench switches`: what samples cost a program that switches between threads all the time.
//!
//! Two threads hand a token back and forth, some 200 thousand times a second. What that takes of CPU time is compared between
//! stretches with lj-trace, with events on CPUs or on threads, and those without before and after each. lj-trace is started and
//! ended for each of them: threads that have ever had an event are slower, even while it is off.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::slowdown::Losses;
use super::table::{Table, verdict};
use super::work::{Spent, Work};
use crate::programs::Program;
use crate::tracer::Tracer;
use crate::workload::Workload;

/// How long each stretch is, in seconds.
const STRETCH: f64 = 1.0;
/// What a switch takes then, in seconds: 200 thousand a second.
const SWITCH: f64 = 5e-6;
/// Turns of the workload's loop for which their time is measured.
const TURNS: f64 = 400.0;
/// Until what lj-trace measures at its start is done, and the kernel has noticed that no thread has an event any more: it looks
/// for events at each switch for a second longer (`perf_sched_delayed`, `kernel/events/core.c`).
const SETTLING: Duration = Duration::from_millis(1500);
/// What is asked at 99 Hz, with events on CPUs.
const ASKED: f64 = 0.02;

/// What a kind of lj-trace has shown.
#[derive(Default)]
struct Measured {
    cpu: Losses,
    /// What its summaries have told, as shares of the program's CPU time.
    told: Vec<f64>,
}

/// Measures all rates with these kinds of events (`auto` are those on CPUs) in so many rounds on a program, and prints the
/// table.
///
/// # Errors
/// If the workload or lj-trace fails.
pub fn switches(rounds: u32, rates: &[u32], events: &[&str], program: &Program) -> Result<()> {
    let mut workload = Workload::start(program, "switches.lua", &[])?;
    work(&mut workload, 0)?;
    let [none, some] = [0, TURNS as u32].map(|turns| work(&mut workload, turns));
    let [none, some] = [wall(&none?)?, wall(&some?)?];
    // Each turn of the loop takes that long.
    let turn = ((some - none) / TURNS).max(1e-10);
    let turns = ((SWITCH - none) / turn).max(0.0) as u32;
    let kinds: Vec<Option<(&str, u32)>> = [None]
        .into_iter()
        .chain(events.iter().flat_map(|&events| rates.iter().map(move |&rate| Some((events, rate)))))
        .collect();
    let mut all: Vec<(Option<(&str, u32)>, Measured)> =
        kinds.into_iter().map(|kind| (kind, Measured::default())).collect();
    let (mut bare, mut sum, mut count) = (work(&mut workload, turns)?, 0.0, 0.0);
    for round in 0..rounds as usize {
        let kinds = all.len();
        for index in 0..kinds {
            let (kind, measured) = &mut all[(index + round) % kinds];
            let during = match kind {
                None => work(&mut workload, turns)?,
                Some((events, rate)) => {
                    let (during, told) = recorded(&mut workload, turns, events, *rate)?;
                    measured.told.push(told);
                    during
                }
            };
            let after = work(&mut workload, turns)?;
            (sum, count) = (sum + wall(&after)?, count + 1.0);
            let three = [bare, during, after];
            measured.cpu.add(&three, |spent: &Spent| spent.cpu);
            [.., bare] = three;
        }
    }
    println!(
        "{}, {rounds} rounds, {:.0} thousand switches a second without lj-trace:",
        program.name,
        count / sum / 1e3
    );
    let mut table = Table::new(["", "more CPU time a switch", "cost, as lj-trace tells it"]);
    for (kind, measured) in &all {
        let name = kind.map_or("nothing".to_owned(), |(events, rate)| {
            format!("events on {}, {rate} Hz", if events == "auto" { "CPUs" } else { events })
        });
        let told = match measured.told.len() {
            0 => "-".to_owned(),
            count => format!("{:.2}%", measured.told.iter().sum::<f64>() / count as f64 * 100.0),
        };
        table.row([name, more(&measured.cpu), told]);
    }
    table.print();
    println!();
    if let Some((_, measured)) = all.iter().find(|(kind, _)| *kind == Some(("auto", 99))) {
        let holds = ratio(measured.cpu.trimmed().0) <= ASKED;
        verdict("what a switch costs more at 99 Hz", "<= 2%", &more(&measured.cpu), holds);
    }
    Ok(())
}

/// Lets it work while lj-trace records it; also gives what that tells of its cost.
fn recorded(workload: &mut Workload, turns: u32, events: &str, rate: u32) -> Result<(Work, f64)> {
    let folder = tempfile::tempdir()?;
    let output = folder.path().join("cpu.bin").display().to_string();
    let (pid, rate) = (workload.pid().to_string(), rate.to_string());
    let mut tracer = Tracer::start(["--pid", &pid, "--rate", &rate, "--events", events, "--output", &output])?;
    tracer.wait_until_attached()?;
    sleep(SETTLING);
    let during = work(workload, turns)?;
    tracer.signal(libc::SIGINT)?;
    let outcome = tracer.wait()?;
    outcome.expect(0, &[]);
    sleep(SETTLING);
    let told = outcome.stderr.lines().find_map(|line| line.split_once("% of its CPU time")?.0.rsplit(' ').next());
    // A stretch may have been too short for a sample.
    Ok((during, told.map_or(Ok(0.0), str::parse)? / 100.0))
}

fn work(workload: &mut Workload, turns: u32) -> Result<Work> {
    workload.tell(&format!("{STRETCH} {turns}"))?;
    Work::parse(&workload.report()?)
}

/// How long a switch took.
fn wall(work: &Work) -> Result<f64> {
    let spent = work.kinds.get("switch").context("no switches")?;
    Ok(spent.wall / spent.turns)
}

/// How much more something takes of which that part is lost.
fn ratio(lost: f64) -> f64 {
    lost / (1.0 - lost)
}

fn more(losses: &Losses) -> String {
    let (mean, error) = losses.trimmed();
    format!("{:+.1}% ±{:.1}", ratio(mean) * 100.0, error * 100.0)
}
