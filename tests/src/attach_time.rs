//! How long lj-trace takes to attach, as it says itself.

use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::tracer::Tracer;
use crate::workload::Workload;

/// Others use the machine, too: the quickest of so many is what it takes.
const TRIES: usize = 5;

/// How long it takes to attach to a workload.
///
/// # Errors
/// If it cannot.
pub fn quickest(workload: &Workload) -> Result<Duration> {
    let all: Vec<Duration> = (0..TRIES).map(|_| attach(workload)).collect::<Result<_>>()?;
    all.into_iter().min().context("no tries")
}

fn attach(workload: &Workload) -> Result<Duration> {
    let folder = tempfile::tempdir()?;
    let (pid, output) = (workload.pid().to_string(), folder.path().join("out.folded"));
    let tracer = Tracer::start(["--pid", &pid, "--duration", "100ms", "--output", &output.to_string_lossy()])?;
    let said = tracer.wait()?.stderr;
    let words = said.split_once("attached in ").and_then(|(_, rest)| rest.split_once(" ms"));
    let (milliseconds, _) = words.with_context(|| said.clone())?;
    Ok(Duration::from_millis(milliseconds.parse()?))
}
