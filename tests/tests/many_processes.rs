//! Many processes and many VMs at once: they share one set of programs, and nothing is taken for another's.

use std::collections::HashMap;
use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::alike::{AlikePrograms, record};
use lj_trace_tests::folded::Folded;
use lj_trace_tests::pauses::Pauses;
use lj_trace_tests::programs::{LUAJIT, Program};
use lj_trace_tests::slower;
use lj_trace_tests::tracer::run;
use lj_trace_tests::usage::{bpf, cpu_time, proportional_memory, stolen};
use lj_trace_tests::workload::Workload;

#[test]
fn fifty_idle_processes_cost_little_more_than_one() -> Result<()> {
    const PROCESSES: usize = 50;
    const MIB: u64 = 1 << 20;
    let mut programs_alike = AlikePrograms::start_none()?;
    for _ in 0..PROCESSES {
        programs_alike.start(30)?;
    }
    sleep(Duration::from_millis(500));
    let folder = tempfile::tempdir()?;
    let output = folder.path().join("all.folded").to_string_lossy().into_owned();
    let (began, stolen_before, pauses) = (Instant::now(), stolen()?, Pauses::watch());
    let tracer = record(&programs_alike, "19", &output, PROCESSES)?;
    let attach = began.elapsed().as_secs_f64();
    let gone = pauses.end() + stolen()? - stolen_before;
    // In the first seconds it looks more often.
    sleep(Duration::from_secs(11));
    // The middle of several figures: where the machine does something else for a moment, one or two are larger; what idle processes
    // cost is in all of them.
    let mut shares = Vec::new();
    for _ in 0..5 {
        let (before, since) = (cpu_time(tracer.pid())?, Instant::now());
        sleep(Duration::from_secs(2));
        shares.push((cpu_time(tracer.pid())? - before) / since.elapsed().as_secs_f64() * 100.0);
    }
    shares.sort_by(f64::total_cmp);
    let share = shares[shares.len() / 2];
    let (maps, programs) = bpf(tracer.pid())?;
    let pss = proportional_memory(tracer.pid())?;
    tracer.signal(libc::SIGINT)?;
    tracer.wait()?.expect(0, &[]);
    let figures = format!(
        "{PROCESSES} processes: attached in {attach:.2} s, {share:.1}% of a core ({shares:.1?}), {} MiB of memory, {} MiB of BPF maps, {programs} programs",
        pss / MIB,
        maps / MIB
    );
    println!("{figures}");
    ensure!(maps <= 32 * MIB && programs <= 4, "{figures}");
    ensure!(pss <= 64 * MIB, "{figures}");
    // 2 s and 2%, and what a machine that does something else at that time makes of it.
    ensure!(attach <= 4.0 * slower() as f64 + gone && share <= 4.0 * slower() as f64, "{figures}");
    Ok(())
}

#[test]
fn a_thousand_vms_are_as_good_as_one() -> Result<()> {
    let program = Program::find(LUAJIT).context("the demo's luajit is everywhere")?;
    let mut workload = Workload::start(&program, "thousand.lua", &["1000"])?;
    workload.go()?;
    let folder = tempfile::tempdir()?;
    let output = folder.path().join("vms.folded").to_string_lossy().into_owned();
    let pid = workload.pid().to_string();
    let outcome = run(["--pid", &pid, "--rate", "499", "--duration", "3s", "--output", &output])?;
    outcome.expect(0, &[]);
    ensure!(outcome.stderr.contains("VM 1001 at "), "{}", outcome.stderr);
    let complete = outcome.share("Lua complete")?;
    ensure!(complete >= 99.0, "{complete}%: {}", outcome.stderr);
    let folded = Folded::parse(&fs::read_to_string(&output)?)?;
    // Each VM executes a chunk that has its number, and the numbers of VMs are in the order of their addresses.
    let mut chunks = HashMap::new();
    for stack in &folded.stacks {
        let root = stack.frames.first().filter(|root| root.starts_with("VM "));
        let chunk = stack.frames.iter().find_map(|frame| frame.split_once("@vm_")?.1.split(':').next());
        if let (Some(root), Some(chunk)) = (root, chunk) {
            let known = chunks.entry(root).or_insert(chunk);
            ensure!(*known == chunk, "{root} executes {known} and {chunk}");
        }
    }
    let mut seen: Vec<_> = chunks.values().collect();
    seen.sort_unstable();
    seen.dedup();
    ensure!(seen.len() == chunks.len() && seen.len() > 256, "{} VMs, {} chunks", chunks.len(), seen.len());
    Ok(())
}
