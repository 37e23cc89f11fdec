//! Many processes and many VMs at once: they share one set of programs, and nothing is taken for another's.

use std::collections::HashMap;
use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::chance::of_share;
use lj_trace_tests::folded::Folded;
use lj_trace_tests::pauses::Pauses;
use lj_trace_tests::programs::{LUAJIT, Program};
use lj_trace_tests::slower;
use lj_trace_tests::tracer::{Tracer, run};
use lj_trace_tests::usage::{bpf, cpu_time, let_work, proportional_memory, stolen};
use lj_trace_tests::workload::Workload;

/// Processes that differ in their functions alone.
struct Family {
    parent: Workload,
    /// The numbers of all that there have been, by process id.
    children: HashMap<u32, u32>,
}

impl Family {
    fn new() -> Result<Self> {
        let program = Program::find(LUAJIT).context("the demo's luajit is everywhere")?;
        Ok(Self { parent: Workload::start(&program, "alike.lua", &[])?, children: HashMap::new() })
    }

    /// One child more, which pauses for so many milliseconds after each turn.
    fn start(&mut self, pause: u32) -> Result<u32> {
        let number = self.children.len() as u32 + 1;
        self.parent.tell(&format!("start {number:03} {pause}"))?;
        let line = self.parent.line()?;
        let pid = line.strip_prefix("child ").with_context(|| line.clone())?.trim().parse()?;
        self.children.insert(pid, number);
        Ok(pid)
    }

    fn kill(&mut self, pid: u32) -> Result<()> {
        self.parent.tell(&format!("kill {pid}"))?;
        self.parent.expect("gone")
    }
}

/// Records all children, into a folded file; waits until `count` of them are recorded.
fn record(family: &Family, rate: &str, output: &str, count: usize) -> Result<Tracer> {
    let pid = family.parent.pid().to_string();
    let arguments = ["--pid", &pid, "--children", "--rate", rate, "--mode", "sysprof", "--output", output];
    let mut tracer = Tracer::start(arguments)?;
    for _ in 0..count {
        tracer.wait_until_attached()?;
    }
    Ok(tracer)
}

/// Whose function a Lua frame is: `leaf_007@alike_007:1` is number 7's.
fn number_of(frame: &str) -> Option<u32> {
    frame.split_once("@alike_")?.1.get(..3)?.parse().ok()
}

#[test]
fn processes_with_the_same_addresses_are_told_apart() -> Result<()> {
    const PROCESSES: usize = 12;
    const REPLACED: usize = 4;
    let mut family = Family::new()?;
    let mut running = (0..PROCESSES).map(|_| family.start(0)).collect::<Result<Vec<_>>>()?;
    sleep(Duration::from_millis(500));
    let folder = tempfile::tempdir()?;
    let output = folder.path().join("all.folded").to_string_lossy().into_owned();
    let mut tracer = record(&family, "499", &output, PROCESSES)?;
    running.iter().try_for_each(|&pid| let_work(pid, 0.2))?;
    // Some go, and others come to the same addresses.
    for _ in 0..REPLACED {
        family.kill(running.remove(0))?;
        running.push(family.start(0)?);
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
    for (pid, number) in &family.children {
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

#[test]
fn fifty_idle_processes_cost_little_more_than_one() -> Result<()> {
    const PROCESSES: usize = 50;
    const MIB: u64 = 1 << 20;
    let mut family = Family::new()?;
    for _ in 0..PROCESSES {
        family.start(30)?;
    }
    sleep(Duration::from_millis(500));
    let folder = tempfile::tempdir()?;
    let output = folder.path().join("all.folded").to_string_lossy().into_owned();
    let (began, stolen_before, pauses) = (Instant::now(), stolen()?, Pauses::watch());
    let tracer = record(&family, "19", &output, PROCESSES)?;
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
