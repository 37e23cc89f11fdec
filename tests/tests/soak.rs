//! nginx with Lua under load, while lj-trace comes and goes, for long: no request fails, nothing grows, nothing stays.
//!
//! `LJ_TRACE_SOAK_MINUTES` says how long, half of one if it does not; `cargo xtask soak --minutes 30` takes half an hour, and shows
//! what it has found.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::server::Server;
use lj_trace_tests::tracer::Tracer;
use lj_trace_tests::usage;

/// How long all of it takes, in seconds.
fn seconds() -> u64 {
    let minutes = std::env::var("LJ_TRACE_SOAK_MINUTES").ok().and_then(|minutes| minutes.parse::<f64>().ok());
    (minutes.unwrap_or(0.5).max(0.5) * 60.0) as u64
}

/// How a run of lj-trace is ended: mostly as people do it, sometimes as the system does it that has no memory left.
const ENDS: [libc::c_int; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGINT, libc::SIGKILL];

/// The server and who asks it.
struct Soak {
    server: Server,
    folder: tempfile::TempDir,
}

impl Soak {
    fn start() -> Result<Option<Self>> {
        let Some(server) = Server::start("soak")? else { return Ok(None) };
        Ok(Some(Self { server, folder: tempfile::tempdir()? }))
    }

    /// Starts to record the worker.
    fn record(&self, mode: &str, output: &str) -> Result<Tracer> {
        let pid = self.server.worker().to_string();
        // However much it costs: the probes are to come and go.
        let mut tracer = Tracer::start(["--pid", &pid, "--mode", mode, "--no-limit", "--force", "--output", output])?;
        tracer.wait_until_attached()?;
        Ok(tracer)
    }

    /// Records for a moment, ends that, and sees that nothing stays; gives the most memory that lj-trace took, in KiB.
    fn come_and_go(&self, mode: &str, end: libc::c_int) -> Result<u64> {
        let output = self.folder.path().join("soak.bin");
        let tracer = self.record(mode, &output.to_string_lossy())?;
        sleep(Duration::from_millis(1500));
        let (memory, _) = usage::memory(tracer.pid())?;
        tracer.signal(end)?;
        let outcome = tracer.wait()?;
        if end != libc::SIGKILL {
            outcome.expect(0, &["stopped by a signal: recorded"]);
        }
        self.server.expect_no_probe()?;
        Ok(memory)
    }

    /// lj-trace comes and goes every few seconds.
    fn comings_and_goings(&self, mode: &str, seconds: u64) -> Result<()> {
        let mut ends = ENDS.into_iter().cycle();
        let mut memory = Vec::new();
        let answers = self.server.load(&format!("{mode}, coming and going"), seconds, || {
            memory.push(self.come_and_go(mode, ends.next().context("an endless list")?)?);
            sleep(Duration::from_millis(500));
            Ok(())
        })?;
        if answers.is_none() {
            return Ok(());
        }
        // On a machine with much else to do, half a minute may be enough for a single one, which nothing can be compared with.
        while memory.len() < 2 {
            memory.push(self.come_and_go(mode, ends.next().context("an endless list")?)?);
        }
        let third = memory.len() / 3;
        let (first, last) = (median(&memory[..=third]), median(&memory[memory.len() - third - 1..]));
        println!("{mode}: {} runs, each with up to {first} KiB at first, {last} KiB in the end", memory.len());
        ensure!(grows_little(first, last), "lj-trace takes more and more memory: {memory:?} KiB");
        Ok(())
    }

    /// One run of each kind, both at once, from the beginning to the end.
    fn long_runs(&self, seconds: u64) -> Result<()> {
        let modes = ["sysprof", "memprof"];
        let tracers = modes.map(|mode| self.record(mode, "bin:/dev/null"));
        let [cpu, memory] = tracers;
        let tracers = [cpu?, memory?];
        let mut taken = [const { Vec::new() }; 2];
        self.server.load("both, all the time", seconds, || {
            for (tracer, taken) in tracers.iter().zip(&mut taken) {
                taken.push(usage::memory(tracer.pid())?.1);
            }
            sleep(Duration::from_millis(500));
            Ok(())
        })?;
        for ((tracer, taken), mode) in tracers.into_iter().zip(taken).zip(modes) {
            tracer.signal(libc::SIGINT)?;
            let outcome = tracer.wait()?;
            outcome.expect(0, &["stopped by a signal: recorded"]);
            let counts = ["LOST", "  lost", "events", "samples"];
            let counted = outcome.stderr.lines().filter(|line| counts.iter().any(|word| line.contains(word)));
            println!("{mode}: {}", counted.map(str::trim).collect::<Vec<_>>().join(", "));
            // What there is to know of the program is known after a while.
            let third = taken.len() / 3;
            let (first, last) = (median(&taken[third..=2 * third]), median(&taken[taken.len() - third - 1..]));
            println!("{mode}: {first} KiB at first, {last} KiB in the end");
            ensure!(grows_little(first, last), "{mode}: lj-trace takes more and more memory: {taken:?} KiB");
        }
        self.server.expect_no_probe()
    }
}

fn median(values: &[u64]) -> u64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    sorted[sorted.len() / 2]
}

/// Whether memory, in KiB, has stayed what it was, but for what the allocator keeps and what is learnt on the way.
fn grows_little(first: u64, last: u64) -> bool {
    last <= first + first / 4 + (16 << 10)
}

#[test]
fn it_comes_and_goes_for_long() -> Result<()> {
    let Some(soak) = Soak::start()? else { return Ok(()) };
    let part = seconds() / 6;
    let nothing = || {
        sleep(Duration::from_millis(100));
        Ok(())
    };
    // The JIT compiler settles first.
    if soak.server.load("warming up", 3, nothing)?.is_none() {
        return Ok(());
    }
    let (_, before) = usage::memory(soak.server.worker())?;
    soak.server.load("without lj-trace", part, nothing)?;
    soak.comings_and_goings("sysprof", part)?;
    soak.comings_and_goings("memprof", part)?;
    soak.comings_and_goings("all", part)?;
    soak.long_runs(part)?;
    soak.server.load("without it again", part, nothing)?;
    let (_, after) = usage::memory(soak.server.worker())?;
    println!("the worker: {before} KiB before, {after} KiB after");
    Ok(())
}
