//! What functions of nginx allocate, by what they count themselves and by what a profile says.

use std::collections::BTreeMap;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::folded::{Folded, Stack};
use crate::nginx::Nginx;
use crate::tracer::{Outcome, Tracer};

/// The file for the stacks.
const FILE: &str = "recorded.folded";

/// Records the memory of a worker during what `load` does; `more` are further options.
///
/// # Errors
/// If it does not succeed.
pub fn record_memory(
    nginx: &Nginx,
    folder: &Path,
    more: &[&str],
    load: impl FnOnce() -> Result<()>,
) -> Result<(Folded, Outcome)> {
    let outcome = record("memprof", nginx, folder, more, load)?;
    Ok((Folded::parse(&std::fs::read_to_string(folder.join(FILE))?)?, outcome))
}

/// The same, and its samples: the profile of CPU time, and that of memory.
///
/// # Errors
/// As [`record_memory`].
pub fn record_both(
    nginx: &Nginx,
    folder: &Path,
    more: &[&str],
    load: impl FnOnce() -> Result<()>,
) -> Result<([Folded; 2], Outcome)> {
    let outcome = record("all", nginx, folder, more, load)?;
    let read = |mode: &str| {
        let file = Path::new(FILE).with_extension(format!("{mode}.folded"));
        Folded::parse(&std::fs::read_to_string(folder.join(file))?)
    };
    Ok(([read("sysprof")?, read("memprof")?], outcome))
}

fn record(
    mode: &str,
    nginx: &Nginx,
    folder: &Path,
    more: &[&str],
    load: impl FnOnce() -> Result<()>,
) -> Result<Outcome> {
    let file = folder.join(FILE).display().to_string();
    let pid = nginx.workers()[0].to_string();
    let whom = ["--pid", &pid, "--mode", mode, "--output", &file, "--no-limit", "--force", "-v"];
    let mut tracer = Tracer::start(whom.iter().chain(more))?;
    tracer.wait_until_attached()?;
    load()?;
    // What clients do not wait for: timers, and what is done after an answer.
    sleep(Duration::from_millis(500));
    tracer.signal(libc::SIGINT)?;
    let outcome = tracer.wait()?;
    outcome.expect(0, &[]);
    Ok(outcome)
}

/// How much stacks say that the function in each line has allocated; `line` gives that of a stack.
pub fn recorded(folded: &Folded, line: impl Fn(&Stack) -> Option<u32>) -> BTreeMap<u32, u64> {
    let mut recorded = BTreeMap::new();
    for stack in &folded.stacks {
        if let Some(line) = line(stack) {
            *recorded.entry(line).or_default() += stack.samples;
        }
    }
    recorded
}

/// Holds what is recorded of each line against what its function has counted before and after: never more, and nearly all. `what`
/// begins the message.
///
/// # Errors
/// If it does not hold.
pub fn ensure_told(
    what: &str,
    [before, after]: [&BTreeMap<u32, u64>; 2],
    recorded: &BTreeMap<u32, u64>,
    outcome: &Outcome,
) -> Result<()> {
    let (mut all, mut known) = (0, 0);
    for (line, allocated) in after {
        let made = allocated - before[line];
        let told = recorded.get(line).copied().unwrap_or(0);
        // Of traces that were gone before their start could be read, and of some other events on traces, no line is told.
        ensure!(told <= made, "{what}: line {line} has allocated {made} bytes, and {told} are told");
        (all, known) = (all + made, known + told);
    }
    ensure!(known * 20 > all * 19, "{what}: {known} of {all} bytes are told\n{}", outcome.stderr);
    Ok(())
}
