//! Recordings of samples with labels, long enough however little of a CPU the process gets.

use std::path::Path;

use anyhow::Result;

use crate::folded::Folded;
use crate::tracer::{Outcome, Tracer};
use crate::usage::let_work;

/// How many samples a second of a process's CPU time are asked for.
const RATE: u32 = 1499;

/// Records a process into `file` until it has computed for `seconds`, each of which is some 1499 samples. The number of
/// samples is what the tests of labels depend on; how long it takes is not.
///
/// # Errors
/// If lj-trace does not record, or the process does not compute.
///
/// # Panics
/// If lj-trace fails.
pub fn record_computing(pid: u32, seconds: f64, more: &[&str], file: &Path) -> Result<Outcome> {
    let (pid_text, output, rate) = (pid.to_string(), file.display().to_string(), RATE.to_string());
    let whom = ["--pid", &pid_text, "--output", &output, "--rate", &rate, "--no-limit", "--force"];
    let mut tracer = Tracer::start(whom.iter().chain(more))?;
    tracer.wait_until_attached()?;
    let_work(pid, seconds)?;
    tracer.signal(libc::SIGINT)?;
    let outcome = tracer.wait()?;
    outcome.expect(0, &[]);
    Ok(outcome)
}

/// The same, its stacks grouped by a label.
///
/// # Errors
/// As [`record_computing`].
///
/// # Panics
/// As it.
pub fn record_grouped(pid: u32, seconds: f64, more: &[&str], folder: &Path) -> Result<(Folded, Outcome)> {
    let file = folder.join("labelled.folded");
    let outcome = record_computing(pid, seconds, more, &file)?;
    Ok((Folded::parse(&std::fs::read_to_string(file)?)?, outcome))
}
