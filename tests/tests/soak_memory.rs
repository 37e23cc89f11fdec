//! The memory of a recording without end: of a program that makes functions, coroutines and VMs all the time, for long.
//!
//! `cargo xtask soak --churn cpu --minutes 120` runs it. `LJ_TRACE_SOAK_MINUTES` says how long, `LJ_TRACE_SOAK_MODE` what is
//! recorded. Most of the first half is needed to fill the tables; in the second half nothing may grow.

use std::fmt::Write as _;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use lj_trace_tests::programs::INSTALLED_LIBRARY;
use lj_trace_tests::slope::Slope;
use lj_trace_tests::tracer::Tracer;
use lj_trace_tests::usage;
use lj_trace_tests::workload::Workload;

/// A sixth of a CPU, and for a CPU profile ten times as many samples as usual: tables fill in minutes that take hours otherwise.
const PACE: [&str; 2] = ["25", "250"];
const RATE: &str = "999";

/// How often memory is measured.
const INTERVAL: Duration = Duration::from_secs(5);

/// KiB an hour that are nothing: less than the tables of one VM.
const NEGLIGIBLE: f64 = 256.0;

fn minutes() -> f64 {
    let minutes = std::env::var("LJ_TRACE_SOAK_MINUTES").ok().and_then(|minutes| minutes.parse::<f64>().ok());
    minutes.unwrap_or(120.0).max(2.0)
}

#[test]
#[ignore = "takes hours: cargo xtask soak --churn cpu"]
fn memory_is_flat() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let host = Workload::start_host("churn.c", folder.path(), &[INSTALLED_LIBRARY, PACE[0], PACE[1]])?;
    let [stream, folded] = ["run.bin", "run.folded"].map(|name| folder.path().join(name).display().to_string());
    let pid = host.pid().to_string();
    // Streams of all allocations of hours are larger than disks.
    let mode: &[&str] = match std::env::var("LJ_TRACE_SOAK_MODE").as_deref() {
        Ok("memory") => &["--mode", "memprof", "--weight", "held", "--no-limit"],
        Ok("windows") => &["--mode", "memprof", "--overhead", "5%"],
        Ok("cpu") | Err(_) => &["--rate", RATE, "-o", &stream],
        Ok(other) => bail!("LJ_TRACE_SOAK_MODE is {other}"),
    };
    let mut tracer = Tracer::start([mode, &["--pid", &pid, "-o", &folded]].concat())?;
    tracer.wait_until_attached()?;
    let (began, duration) = (Instant::now(), Duration::from_secs_f64(minutes() * 60.0));
    let mut taken = Vec::new();
    while began.elapsed() < duration {
        sleep(INTERVAL);
        taken.push((began.elapsed().as_secs_f64() / 3600.0, usage::memory(tracer.pid())?.1 as f64));
    }
    tracer.signal(libc::SIGINT)?;
    let outcome = tracer.wait()?;
    outcome.expect(0, &["stopped by a signal: recorded"]);
    let mut table = String::new();
    for (hours, memory) in taken.iter().step_by(taken.len().div_ceil(24)) {
        writeln!(table, "{:7.1} min  {memory:.0} KiB", hours * 60.0)?;
    }
    let worked = usage::cpu_time(host.pid())?;
    let slope = Slope::of(&taken[taken.len() / 2..]).context("too short to tell")?;
    let Slope { per_time, error } = slope;
    println!("{table}the program: {worked:.0} s of CPU time");
    println!("in the second half: {per_time:+.0} KiB an hour, standard error {error:.0}");
    ensure!(
        slope.may_be_flat(NEGLIGIBLE),
        "lj-trace takes more and more memory: {per_time:.0} KiB an hour ({error:.0})"
    );
    Ok(())
}
