//! How samples are taken: by events on CPUs or on threads, of one process and no other, for as long as was asked, and for no more
//! than they may cost.

use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::alike::{AlikePrograms, record};
use lj_trace_tests::chance::{of_count, of_weighted_count};
use lj_trace_tests::folded::Folded;
use lj_trace_tests::programs::{LUAJIT, Program};
use lj_trace_tests::recording::Recording;
use lj_trace_tests::refusing;
use lj_trace_tests::tracer::{Outcome, Tracer, binary};
use lj_trace_tests::usage::{cpu_time, let_work, stolen};
use lj_trace_tests::workload::Workload;

/// What the summary says only of events on CPUs, and only of those on threads that should not be.
const ON_CPUS: &str = "cost to all others";
const ON_THREADS: &str = "events on threads";

fn luajit() -> Program {
    Program::find(LUAJIT).expect("the demo's luajit is everywhere")
}

/// A program that is as busy as the one that is recorded, beside it.
fn neighbour() -> Result<Workload> {
    const CODE: &str =
        "io.stdout:write('ready\\n') io.stdout:flush() local function neighbour() while true do end end neighbour()";
    Workload::spawn(Command::new(luajit().path).args(["-e", CODE]))
}

/// Checks that there are as many samples as CPU time was used, and as many more or fewer as chance makes of it. Time that was
/// stolen from this machine is none that the process has used, but the clock goes on.
fn expect_samples(what: &str, samples: u64, rate: f64, used: f64, stolen: f64) -> Result<()> {
    let [least, most] = [used, used + stolen].map(|seconds| seconds * rate);
    let tolerance = of_count(most);
    let verdict = format!("{what}: {samples} samples, expected {least:.0} to {most:.0}, tolerance {tolerance:.0}");
    println!("{verdict}");
    ensure!((least - tolerance..=most + tolerance).contains(&(samples as f64)), "{verdict}");
    Ok(())
}

/// The number before a word of the summary.
fn number_before(outcome: &Outcome, word: &str) -> Result<f64> {
    let before = outcome.stderr.lines().find_map(|line| line.split_once(word)?.0.rsplit(' ').next()?.parse().ok());
    before.with_context(|| format!("no number before {word:?}: {}", outcome.stderr))
}

/// The share of the target's CPU time that the summary tells.
fn told(outcome: &Outcome) -> Result<f64> {
    Ok(number_before(outcome, "% of its CPU time")? / 100.0)
}

#[test]
fn both_ways_find_the_same() -> Result<()> {
    const RATE: f64 = 499.0;
    let _neighbour = neighbour()?;
    let mut workload = Workload::start(&luajit(), "threads.lua", &["2", "1.0"])?;
    let rate = RATE.to_string();
    let on_cpus = Recording::attached(&workload, &["--rate", &rate])?;
    let on_threads = Recording::attached(&workload, &["--rate", &rate, "--events", "threads"])?;
    let (used, gone) = (cpu_time(workload.pid())?, stolen()?);
    workload.go()?;
    workload.expect("started")?;
    workload.go()?;
    let report = workload.report()?;
    let (used, gone) = (cpu_time(workload.pid())? - used, stolen()? - gone);
    for (name, recording) in [("on CPUs", on_cpus), ("on threads", on_threads)] {
        let recorded = recording.stop()?;
        ensure!(recorded.outcome.stderr.contains(ON_CPUS) == (name == "on CPUs"), "{}", recorded.outcome.stderr);
        recorded.outcome.expect(0, &["lost               0"]);
        for line in &report {
            let [_, thread, seconds] = line.split(' ').collect::<Vec<_>>()[..] else { anyhow::bail!("{line:?}") };
            let file = format!("@thread{thread}.lua:");
            let is_its = |frame: &String| frame.contains(&file);
            let samples = recorded.folded.samples_where(|stack| stack.frames.iter().any(is_its));
            expect_samples(&format!("thread {thread}, {name}"), samples, RATE, seconds.parse()?, gone)?;
        }
        // Were others among them, these would be too many.
        expect_samples(&format!("all, {name}"), recorded.folded.samples(), RATE, used, gone)?;
        let others =
            recorded.folded.samples_where(|stack| stack.frames.iter().any(|frame| frame.contains("neighbour")));
        ensure!(others == 0, "{others} samples of another process, {name}");
    }
    Ok(())
}

#[test]
fn where_cpus_have_no_events_threads_have() -> Result<()> {
    const RATE: f64 = 499.0;
    let mut workload = Workload::start(&luajit(), "threads.lua", &["2", "0.5"])?;
    let folder = tempfile::tempdir()?;
    let folded = folder.path().join("cpu.folded");
    let mut command = Command::new(binary());
    command.args(["--pid", &workload.pid().to_string(), "--rate", &RATE.to_string(), "--output"]).arg(&folded);
    refusing::events_on_cpus(&mut command);
    let mut tracer = Tracer::spawn(&mut command)?;
    tracer.wait_until_attached()?;
    let (used, gone) = (cpu_time(workload.pid())?, stolen()?);
    workload.go()?;
    workload.expect("started")?;
    workload.go()?;
    workload.report()?;
    let (used, gone) = (cpu_time(workload.pid())? - used, stolen()? - gone);
    tracer.signal(libc::SIGINT)?;
    let outcome = tracer.wait()?;
    outcome.expect(0, &[ON_THREADS, "an event on CPU 0", "Permission denied"]);
    ensure!(!outcome.stderr.contains(ON_CPUS), "{}", outcome.stderr);
    let samples = Folded::parse(&std::fs::read_to_string(&folded)?)?.samples();
    expect_samples("on threads", samples, RATE, used, gone)
}

#[test]
fn what_context_switches_cost_is_told() -> Result<()> {
    let mut workload = Workload::start(&luajit(), "switches.lua", &[])?;
    let mut costs = Vec::new();
    for events in ["auto", "threads"] {
        let recording = Recording::attached(&workload, &["--events", events])?;
        workload.tell("1 200")?;
        println!("{events}: {}", workload.report()?.join(" "));
        let outcome = recording.stop()?.outcome;
        ensure!(outcome.stderr.contains("at context switches)") == (events == "threads"), "{}", outcome.stderr);
        costs.push(told(&outcome)?);
    }
    // Some hundred thousand switches of at least a tenth of a microsecond, beside a hundred samples of at most some tens.
    println!("told: {costs:?}");
    ensure!(costs[1] > 2.0 * costs[0], "{costs:?}");
    Ok(())
}

#[test]
fn samples_that_cost_too_much_are_fewer_and_count_as_more() -> Result<()> {
    const RATE: f64 = 4000.0;
    for events in ["auto", "threads"] {
        let workload = neighbour()?;
        let recording =
            Recording::attached(&workload, &["--rate", &RATE.to_string(), "--max-overhead", "2%", "--events", events])?;
        let (used, gone) = (cpu_time(workload.pid())?, stolen()?);
        let_work(workload.pid(), 1.5)?;
        let (used, gone) = (cpu_time(workload.pid())? - used, stolen()? - gone);
        let recorded = recording.stop()?;
        let outcome = &recorded.outcome;
        outcome.expect(0, &["from now on", "rate lowered"]);
        let lowered = outcome.stderr.lines().find(|line| line.contains("rate lowered")).context("not lowered")?;
        let weight = outcome.weight();
        let lost: f64 = outcome.stderr.lines().filter(|line| line.starts_with("LOST: ")).count() as f64;
        ensure!(weight >= 2.0 && lost == 0.0, "{}", outcome.stderr);
        let samples = recorded.folded.samples();
        ensure!(number_before(outcome, " samples, ")? == samples as f64, "{samples}: {}", outcome.stderr);
        // Their error is that of samples which count as many. What is used until the summary is not in it.
        let [least, most] = [used, used + gone + 0.1].map(|seconds| seconds * RATE);
        let tolerance = of_weighted_count(most, weight);
        let verdict = format!("{events}: {samples} of {least:.0} to {most:.0}, tolerance {tolerance:.0}; {lowered}");
        println!("{verdict}");
        ensure!((least - tolerance..=most + tolerance).contains(&(samples as f64)), "{verdict}: {}", outcome.stderr);
    }
    Ok(())
}

/// The most ticks a second that the kernel allows an event, until this value is dropped.
struct Allowed(String);

impl Allowed {
    const SETTING: &str = "/proc/sys/kernel/perf_event_max_sample_rate";

    fn begin(rate: u32) -> Result<Self> {
        let usual = std::fs::read_to_string(Self::SETTING)?;
        std::fs::write(Self::SETTING, rate.to_string())?;
        Ok(Self(usual))
    }
}

impl Drop for Allowed {
    fn drop(&mut self) {
        std::fs::write(Self::SETTING, &self.0).expect("the setting could be written before");
    }
}

/// The kernel stops an event that ticks more often than that, and tells nobody. It may begin to do so while lj-trace records.
#[test]
fn where_the_kernel_allows_few_samples_each_counts_for_more() -> Result<()> {
    const RATE: f64 = 999.0;
    /// How long lj-trace may take to see that it allows less.
    const LATE: f64 = 1.3;
    let mut random = fastrand::Rng::with_seed(29);
    for round in 0..4 {
        let (allowed, is_late) = (random.u32(1..900), round % 2 == 1);
        let workload = neighbour()?;
        let before = if is_late { None } else { Some(Allowed::begin(allowed)?) };
        let recording = Recording::attached(&workload, &["--rate", &RATE.to_string()])?;
        let (used, gone) = (cpu_time(workload.pid())?, stolen()?);
        let _allowed = before.map_or_else(|| Allowed::begin(allowed), Ok)?;
        let_work(workload.pid(), 2.0)?;
        let (used, gone) = (cpu_time(workload.pid())? - used, stolen()? - gone);
        let recorded = recording.stop()?;
        recorded.outcome.expect(0, &["the kernel allows", "kernel.perf_event_max_sample_rate"]);
        let samples = recorded.folded.samples();
        let [least, most] =
            [used - if is_late { LATE } else { 0.0 }, used + gone + 0.1].map(|seconds| seconds.max(0.0) * RATE);
        let tolerance = of_weighted_count(most, recorded.outcome.weight());
        let verdict = format!("{allowed} allowed: {samples} of {least:.0} to {most:.0}, tolerance {tolerance:.0}");
        println!("{verdict}");
        ensure!(
            (least - tolerance..=most + tolerance).contains(&(samples as f64)),
            "{verdict}: {}",
            recorded.outcome.stderr
        );
    }
    // Events that threads inherit cannot be slowed down.
    let workload = neighbour()?;
    let _allowed = Allowed::begin(150)?;
    let pid = workload.pid().to_string();
    let outcome = lj_trace_tests::tracer::run(["--pid", &pid, "--rate", "999", "--events", "threads", "-d", "1s"])?;
    ensure!(!outcome.status.success(), "{outcome:#?}");
    ensure!(outcome.stderr.contains("use --rate 150"), "{outcome:#?}");
    Ok(())
}

/// Processes share the events on CPUs: if each of them slowed the events down, ten would leave no samples at all.
#[test]
fn processes_that_share_events_slow_them_down_once() -> Result<()> {
    const RATE: u32 = 999;
    /// How long lj-trace may take to see that the kernel allows less.
    const LATE: f64 = 1.3;
    let cpus = std::thread::available_parallelism()?.get();
    let mut random = fastrand::Rng::with_seed(30);
    for round in 0..2 {
        let (allowed, processes, is_late) = (random.u32(100..900), random.usize(3..12), round % 2 == 1);
        let mut all = AlikePrograms::start_none()?;
        for _ in 0..processes {
            all.start(0)?;
        }
        let folder = tempfile::tempdir()?;
        let output = folder.path().join("all.folded").to_string_lossy().into_owned();
        let before = if is_late { None } else { Some(Allowed::begin(allowed)?) };
        let tracer = record(&all, &RATE.to_string(), &output, processes)?;
        let of_all = || all.children.keys().map(|&pid| cpu_time(pid)).sum::<Result<f64>>();
        let (used, gone) = (of_all()?, stolen()?);
        let _allowed = before.map_or_else(|| Allowed::begin(allowed), Ok)?;
        sleep(Duration::from_secs(4));
        let (used, gone) = (of_all()? - used, stolen()? - gone);
        tracer.signal(libc::SIGINT)?;
        let outcome = tracer.wait()?;
        outcome.expect(0, &["the kernel allows", "kernel.perf_event_max_sample_rate"]);
        let weight = outcome.weight();
        let needed = f64::from(RATE.div_ceil(allowed).next_power_of_two());
        let samples = Folded::parse(&std::fs::read_to_string(&output)?)?.samples();
        // They are started one after another, and are recorded for a moment after they were asked for their CPU time.
        let [least, most] = [used - if is_late { LATE * cpus as f64 } else { 0.0 }, used + gone + 0.3 * cpus as f64]
            .map(|seconds| seconds.max(0.0) * f64::from(RATE));
        let tolerance = of_weighted_count(most, weight);
        let verdict = format!(
            "{processes} processes, {allowed} allowed: each counts as {weight} of {needed}; {samples} of {least:.0} to {most:.0}, \
             tolerance {tolerance:.0}"
        );
        println!("{verdict}");
        ensure!(weight == needed, "{verdict}: {}", outcome.stderr);
        ensure!((least - tolerance..=most + tolerance).contains(&(samples as f64)), "{verdict}: {}", outcome.stderr);
    }
    Ok(())
}

/// The same where samples cost too much: to all processes the same, so each of them has a reason to lower the rate.
#[test]
fn processes_whose_samples_cost_too_much_lower_the_rate_once() -> Result<()> {
    const PROCESSES: usize = 10;
    let mut all = AlikePrograms::start_none()?;
    for _ in 0..PROCESSES {
        all.start(0)?;
    }
    let folder = tempfile::tempdir()?;
    let output = folder.path().join("all.folded").to_string_lossy().into_owned();
    let pid = all.parent.pid().to_string();
    let what = ["--pid", &pid, "--children", "--rate", "4000", "--max-overhead", "2%", "--duration", "5s"];
    let outcome = lj_trace_tests::tracer::run(what.into_iter().chain(["--output", &output]))?;
    outcome.expect(0, &["from now on", "the rate was lowered"]);
    // A sample takes 5 to 25 us, which is 2% to 10% of the time at that rate. The last halving may be one too many.
    let (lowered, weight) = (outcome.stderr.matches("from now on").count(), outcome.weight());
    println!("lowered {lowered} times, each sample counts as {weight}");
    ensure!(lowered <= 4 && weight <= 16.0, "lowered {lowered} times to {weight}: {}", outcome.stderr);
    Ok(())
}

/// However long lj-trace is busy with something else when the time is over.
#[test]
fn the_time_is_over_when_it_is() -> Result<()> {
    const RATE: f64 = 99.0;
    for events in ["auto", "threads"] {
        let workload = neighbour()?;
        let stolen_before = stolen()?;
        let options = ["--duration", "1s", "--slow-down", "2s", "--events", events];
        let outcome = Recording::attached(&workload, &options)?.finish()?.outcome;
        outcome.expect(0, &["finished: recorded 1.", "LOST: "]);
        let lost = number_before(&outcome, " samples were not worked off")?;
        let all = lost + number_before(&outcome, " samples, ")?;
        // It works on one CPU. Without an end there would be twice as many and more.
        let most = (1.0 + stolen()? - stolen_before) * RATE;
        println!("{events}: {all} of at most {most:.0} samples");
        ensure!(all <= most + of_count(most), "{all} of {most:.0}: {}", outcome.stderr);
    }
    Ok(())
}

/// lj-trace needs nearly half of the CPU here. Without care, none of its work would meet a tick, and the program would get 80%
/// too many samples.
#[test]
fn lj_trace_on_the_same_cpu_takes_no_samples_for_its_own_time() -> Result<()> {
    const RATE: f64 = 50.0;
    const CPU: &str = "0";
    let workload = neighbour()?;
    let recording = Recording::attached(&workload, &["--rate", &RATE.to_string(), "--slow-down", "9ms"])?;
    for pid in [workload.pid(), recording.pid()] {
        let status = Command::new("taskset").args(["-a", "-p", "-c", CPU, &pid.to_string()]).status()?;
        ensure!(status.success(), "taskset: {status}");
    }
    // What it has done elsewhere is not counted.
    let recorded_before = cpu_time(recording.pid())?;
    let (used, gone) = (cpu_time(workload.pid())?, stolen()?);
    let_work(workload.pid(), 5.0)?;
    let (used, gone) = (cpu_time(workload.pid())? - used, stolen()? - gone);
    let own = cpu_time(recording.pid())? - recorded_before;
    let recorded = recording.stop()?;
    ensure!(recorded.outcome.stderr.contains(ON_CPUS), "{}", recorded.outcome.stderr);
    println!("lj-trace has used {own:.1} s, the program {used:.1}");
    ensure!(own > 0.3 * used, "lj-trace has used {own} s only, the program {used}");
    recorded.outcome.expect(0, &["lost               0"]);
    expect_samples("on the same CPU", recorded.folded.samples(), RATE, used, gone)
}
