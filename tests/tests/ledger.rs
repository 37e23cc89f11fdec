//! Every call of the allocators is in the ledger: of two of them, of a third one that `lua_setallocf` gives a VM while it is
//! recorded, and of a thousand VMs that come and go.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::allocations::{Allocations, Kind, growth};
use lj_trace_tests::programs::INSTALLED_LIBRARY;
use lj_trace_tests::skips::skip_without;
use lj_trace_tests::tracer::{Outcome, Tracer};
use lj_trace_tests::workload::Workload;
use serde_json::Value;

/// What the host and the ledger say.
struct Run {
    folder: tempfile::TempDir,
    /// How many calls the host has counted by the end of each part.
    calls: Vec<u64>,
    /// Calls from the last change of allocators on, and how many seconds after it.
    unseen: Vec<(u64, f64)>,
    ledger: Value,
    outcome: Outcome,
}

impl Run {
    fn row(&self, name: &str) -> u64 {
        self.ledger["rows"][name].as_u64().unwrap_or(0)
    }

    /// The sum of all rows.
    fn sum(&self) -> u64 {
        self.ledger["rows"].as_object().into_iter().flatten().filter_map(|(_, calls)| calls.as_u64()).sum()
    }

    fn streams(&self) -> Result<Vec<(usize, Allocations)>> {
        let mut streams = Vec::new();
        for file in std::fs::read_dir(self.folder.path())? {
            let path = file?.path();
            let number = path.file_stem().and_then(|name| name.to_str()?.strip_prefix("all-")?.parse().ok());
            if let Some(number) = number {
                streams.push((number, Allocations::read(&path)?));
            }
        }
        Ok(streams)
    }
}

/// Records so many parts of what the host does.
fn record(vms: usize, builtin: bool, parts: usize) -> Result<Option<Run>> {
    if !Path::new(INSTALLED_LIBRARY).exists() {
        skip_without("luajit", &format!("there is no {INSTALLED_LIBRARY}"));
        return Ok(None);
    }
    let folder = tempfile::tempdir()?;
    let count = vms.to_string();
    let arguments: &[&str] =
        if builtin { &[INSTALLED_LIBRARY, &count, "builtin"] } else { &[INSTALLED_LIBRARY, &count] };
    let mut host = Workload::start_host("ledger.c", folder.path(), arguments)?;
    let [stream, ledger] = ["all.bin", "ledger.json"].map(|name| folder.path().join(name).display().to_string());
    let pid = host.pid().to_string();
    let arguments = ["--pid", &pid, "--mode", "memprof", "--no-limit", "-o", &stream, "--ledger", &ledger];
    let mut tracer = Tracer::start(arguments)?;
    tracer.wait_until_attached()?;
    let (mut calls, mut unseen) = (Vec::new(), Vec::new());
    for part in 1..=parts {
        host.go()?;
        for line in host.report()? {
            match line.split_whitespace().collect::<Vec<_>>()[..] {
                ["calls", number] => calls.push(number.parse()?),
                ["unseen", number, seconds] => unseen.push((number.parse()?, seconds.parse()?)),
                _ => anyhow::bail!("the host said {line:?}"),
            }
        }
        // The third allocator is used once it is probed.
        if part == 2 {
            tracer.wait_until("another allocator")?;
        }
    }
    tracer.signal(libc::SIGINT)?;
    let outcome = tracer.wait()?;
    outcome.expect(0, &[]);
    let ledger = serde_json::from_str(&std::fs::read_to_string(&ledger)?).context("the ledger")?;
    Ok(Some(Run { folder, calls, unseen, ledger, outcome }))
}

/// The number behind these words, 0 if they are not there.
fn count_of(said: &str, words: &str) -> usize {
    let line = said.lines().find_map(|line| line.trim_start().strip_prefix(words));
    line.and_then(|line| line.strip_prefix(": ")?.parse().ok()).unwrap_or(0)
}

#[test]
fn every_call_of_a_thousand_vms_and_of_changing_allocators_is_in_a_row() -> Result<()> {
    let Some(run) = record(1000, false, 4)? else { return Ok(()) };
    let said = &run.outcome.stderr;
    let all = *run.calls.last().context("the host has said nothing")?;
    println!("{all} calls: {}", run.ledger);
    ensure!(run.ledger["calls"] == all, "{all} calls: {}\n{said}", run.ledger);
    ensure!(run.ledger["balances"] == true && run.sum() == all, "{}\n{said}", run.ledger);
    let streams = run.streams()?;
    // The host makes some four hundred VMs a second, and there is room for 128 new ones: where others keep lj-trace from the CPUs for
    // a third of a second, some VMs are beyond the limit. Each is counted, and their calls have a row of their own then.
    let beyond = run.row("not recorded: of VMs beyond the limit");
    let not_recorded = count_of(said, "VMs that were not recorded: lj-trace knows no more at once");
    ensure!(
        streams.len() + not_recorded == 1002,
        "{} streams, {not_recorded} without: {}\n{said}",
        streams.len(),
        run.ledger
    );
    ensure!(
        (not_recorded == 0) == (beyond == 0) && streams.len() >= 130,
        "{} streams: {}\n{said}",
        streams.len(),
        run.ledger
    );
    ensure!(said.contains(&format!("calls of allocator {all} of {} VMs: ", streams.len())), "{said}");
    ensure!(!said.contains("NOT ACCOUNTED FOR"), "{said}");
    // Nothing else than what fails or frees nothing is without an event.
    let no_events = run.row("not recorded: failed") + run.row("not recorded: freed nothing");
    ensure!(run.row("not recorded: failed") == 1, "{}", run.ledger);
    let lost = run.row("lost: the ring buffer was full");
    ensure!(run.row("recorded") + no_events + lost + beyond == all, "{}\n{said}", run.ledger);
    let events: u64 = streams.iter().map(|(_, stream)| stream.events.len() as u64).sum();
    ensure!(events == run.row("recorded"), "{events} events in streams: {}", run.ledger);
    for (number, stream) in streams.iter().filter(|(number, _)| *number > 2 && lost == 0) {
        let left = growth(&stream.events);
        ensure!(left == 0, "the stream of VM {number}, which is closed, has {left} bytes left");
        let last = stream.events.last().context("an empty stream")?;
        ensure!(last.kind == Kind::Free, "VM {number}: {last:?}");
    }
    Ok(())
}

#[test]
fn calls_between_a_change_of_allocators_and_its_probe_are_told() -> Result<()> {
    let Some(run) = record(0, false, 5)? else { return Ok(()) };
    let said = &run.outcome.stderr;
    let [.., before, all] = run.calls[..] else { anyhow::bail!("{:?}", run.calls) };
    let seen = run.ledger["calls"].as_u64().context("no calls")?;
    ensure!(run.ledger["balances"] == true && run.sum() == seen, "{}\n{said}", run.ledger);
    ensure!((before..all).contains(&seen), "{seen} of {before} to {all} calls: {}", run.ledger);
    let gaps = run.ledger["unseen"].as_array().context("no gaps")?;
    let last = gaps.last().context("no gap")?;
    ensure!(last["followed"] == true && last["vm"] == 1, "{}", run.ledger);
    let seconds = last["seconds"].as_f64().context("no seconds")?;
    // What was not seen was called in the time that is told.
    let missing = all - seen;
    let within = run.unseen.iter().find(|(_, at)| *at >= seconds).map_or(all - before, |(calls, _)| *calls);
    println!("{missing} calls not seen; {within} in the {seconds:.3} s that are told");
    ensure!(missing <= within, "{missing} calls not seen, {within} in {seconds} s: {:?}\n{said}", run.unseen);
    ensure!(said.contains("calls not seen     of VM 1 for "), "{said}");
    Ok(())
}

/// A VM may get another allocator at any moment while lj-trace attaches: between the look at its allocator, the probes, and the
/// first look for changes.
#[test]
fn an_allocator_that_is_new_while_lj_trace_attaches_is_recorded() -> Result<()> {
    if !Path::new(INSTALLED_LIBRARY).exists() {
        skip_without("luajit", &format!("there is no {INSTALLED_LIBRARY}"));
        return Ok(());
    }
    let mut random = fastrand::Rng::with_seed(11);
    let mut attaching = Duration::ZERO;
    for case in 0..8 {
        let folder = tempfile::tempdir()?;
        // The first case shows how long it takes to attach.
        let late = attaching.mul_f64(random.f64() * 1.1);
        let mut host = Workload::start_host(
            "ledger.c",
            folder.path(),
            &[INSTALLED_LIBRARY, "late", &late.as_millis().to_string()],
        )?;
        let [stream, ledger] = ["all.bin", "ledger.json"].map(|name| folder.path().join(name).display().to_string());
        let pid = host.pid().to_string();
        let began = Instant::now();
        host.go()?;
        let mut tracer =
            Tracer::start(["--pid", &pid, "--mode", "memprof", "--no-limit", "-o", &stream, "--ledger", &ledger])?;
        tracer.wait_until_attached()?;
        attaching = if case == 0 { began.elapsed() } else { attaching };
        let report = host.report()?;
        let third = report.first().and_then(|line| line.strip_prefix("third ")).context("no address")?;
        let is_there_from_the_start = format!("probes on the allocator at {third}:");
        tracer.wait_until_one_of(&[&is_there_from_the_start, "another allocator"])?;
        host.go()?;
        let report = host.report()?;
        let calls: u64 = report.first().and_then(|line| line.strip_prefix("calls ")).context("no calls")?.parse()?;
        tracer.signal(libc::SIGINT)?;
        let outcome = tracer.wait()?;
        outcome.expect(0, &[]);
        let ledger: Value = serde_json::from_str(&std::fs::read_to_string(&ledger)?).context("the ledger")?;
        let case = format!("changed after {late:?} of {attaching:?}");
        println!("{case}: {calls} calls: {}", ledger["rows"]);
        ensure!(calls > 2000 && ledger["calls"] == calls, "{case}: {calls} calls: {ledger}\n{}", outcome.stderr);
    }
    Ok(())
}

/// `lua_close` gives LuaJIT's own allocator back without a call.
#[test]
fn closed_vms_on_every_allocator_net_nothing() -> Result<()> {
    // There is room for all of them, however late lj-trace frees the indices of closed ones.
    let Some(run) = record(120, true, 1)? else { return Ok(()) };
    let streams = run.streams()?;
    ensure!(streams.len() == 123, "{} streams: {}", streams.len(), run.outcome.stderr);
    for (number, stream) in streams.iter().filter(|(number, _)| *number > 3) {
        let left = growth(&stream.events);
        ensure!(left == 0, "the stream of VM {number}, which is closed, has {left} bytes left");
    }
    ensure!(run.ledger["balances"] == true, "{}\n{}", run.ledger, run.outcome.stderr);
    Ok(())
}
