//! Processes whose VMs and functions have the same addresses: nothing is taken for another's.

use std::collections::HashMap;
use std::fs;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, ensure};
use lj_trace_tests::alike::{AlikePrograms, number_of, record};
use lj_trace_tests::chance::of_share;
use lj_trace_tests::folded::Folded;
use lj_trace_tests::usage::let_work;

#[test]
fn processes_with_the_same_addresses_are_told_apart() -> Result<()> {
    const PROCESSES: usize = 12;
    const REPLACED: usize = 4;
    let mut all = AlikePrograms::start_none()?;
    let mut running = (0..PROCESSES).map(|_| all.start(0)).collect::<Result<Vec<_>>>()?;
    sleep(Duration::from_millis(500));
    let folder = tempfile::tempdir()?;
    let output = folder.path().join("all.folded").to_string_lossy().into_owned();
    let mut tracer = record(&all, "499", &output, PROCESSES)?;
    running.iter().try_for_each(|&pid| let_work(pid, 0.2))?;
    // Some go, and others come to the same addresses.
    for _ in 0..REPLACED {
        all.kill(running.remove(0))?;
        running.push(all.start(0)?);
        tracer.wait_until_attached()?;
    }
    running.iter().try_for_each(|&pid| let_work(pid, 0.2))?;
    tracer.signal(libc::SIGINT)?;
    let outcome = tracer.wait()?;
    outcome.expect(0, &[]);
    let vms = outcome.stderr.lines().filter_map(|line| line.strip_prefix("VM at ")?.split(':').next());
    let mut vms = vms.fold(HashMap::<_, usize>::new(), |mut all, address| {
        *all.entry(address).or_default() += 1;
        all
    });
    let most = vms.drain().map(|(_, count)| count).max().unwrap_or(0);
    ensure!(most == PROCESSES + REPLACED, "{most} VMs are at one address: {}", outcome.stderr);

    let folded = Folded::parse(&fs::read_to_string(&output)?)?;
    let mut total = 0;
    for (pid, number) in &all.children {
        let root = format!("(pid {pid})");
        let own: Vec<_> = folded.stacks.iter().filter(|stack| stack.frames[0].ends_with(&root)).collect();
        let foreign = |frame: &String| number_of(frame).is_some_and(|other| other != *number);
        let wrong = own.iter().find(|stack| stack.frames.iter().any(foreign));
        ensure!(wrong.is_none(), "number {number} has another's function: {wrong:?}");
        let named = own.iter().filter(|stack| stack.frames.iter().any(|frame| number_of(frame).is_some()));
        let (samples, named): (u64, u64) =
            (own.iter().map(|stack| stack.samples).sum(), named.map(|stack| stack.samples).sum());
        let least = 0.9 - of_share(0.9, samples as f64);
        ensure!(
            samples >= 20 && named as f64 >= least * samples as f64,
            "number {number}: {named} of {samples} samples"
        );
        total += samples;
    }
    ensure!(total == folded.samples(), "{total} of {}", folded.samples());
    Ok(())
}
