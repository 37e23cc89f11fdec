//! Samples have the labels of the request that they serve, or are marked.

use anyhow::{Context as _, Result, bail, ensure};
use lj_trace_tests::labelled::record_grouped;
use lj_trace_tests::programs::{LUAJIT2, Program};
use lj_trace_tests::requests::{Checked, Site};
use lj_trace_tests::slower;
use lj_trace_tests::tracer::Tracer;
use lj_trace_tests::workload::Workload;

/// Records an nginx of this seed; gives how many samples are right, and how many marked.
fn check(seed: u64, seconds: f64) -> Result<Option<[u64; 2]>> {
    let Some((nginx, site)) = Site::start(seed)? else { return Ok(None) };
    let requests = site.load(&nginx, seed);
    let folder = tempfile::tempdir()?;
    let mut sums = [0; 2];
    for label in ["location", "phase"] {
        let (folded, outcome) = record_grouped(nginx.workers()[0], seconds, &["--group-by", label], folder.path())?;
        let Checked { right, unknown, others, wrong, labels } = site.check(&folded, label)?;
        println!("seed {seed}: {label}: {right} right, {unknown} marked, {others} elsewhere: {labels:?}");
        ensure!(wrong.is_empty(), "seed {seed}: {label}: {}\n{}", wrong.join("\n"), outcome.stderr);
        // Those that a coroutine of another request runs are one of seven kinds.
        ensure!(right > unknown * 2 && labels.len() > 3, "seed {seed}: {}\n{}", outcome.stderr, nginx.log());
        ensure!(!outcome.stderr.contains("no phases"), "{}", outcome.stderr);
        (sums[0], sums[1]) = (sums[0] + right, sums[1] + unknown);
    }
    ensure!(requests.answers() > 10, "seed {seed}: hardly a request was answered: {}", nginx.log());
    Ok(Some(sums))
}

#[test]
fn labels_are_those_of_the_function_that_runs() -> Result<()> {
    for seed in 1..=2 {
        check(seed, 1.2)?;
    }
    Ok(())
}

/// As many samples as `LJ_TRACE_REQUEST_SAMPLES` says, of as many random configurations as it takes.
#[test]
#[ignore = "takes a minute for some ten thousand samples"]
fn labels_of_many_samples() -> Result<()> {
    let wanted = std::env::var("LJ_TRACE_REQUEST_SAMPLES").ok().and_then(|count| count.parse().ok()).unwrap_or(20_000);
    let first = std::env::var("LJ_TRACE_REQUEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(100);
    let (mut right, mut unknown) = (0, 0);
    for seed in first.. {
        let Some([of_seed, marked]) = check(seed, 5.0)? else { return Ok(()) };
        (right, unknown) = (right + of_seed, unknown + marked);
        println!("so far: {right} right, {unknown} marked, 0 wrong");
        if right >= wanted {
            return Ok(());
        }
    }
    Ok(())
}

/// What labels add to the time that a sample takes in the kernel: medians of recordings with and without them, in turn.
#[test]
#[ignore = "measures: wants a quiet machine for a minute"]
fn labels_cost_a_fifth_of_a_microsecond_at_most() -> Result<()> {
    /// Microseconds a sample.
    const MOST: f64 = 0.2;
    let Some((nginx, site)) = Site::start(5)? else { return Ok(()) };
    let _requests = site.load(&nginx, 5);
    let pid = nginx.workers()[0].to_string();
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("cost.folded").display().to_string();
    let mut times = [Vec::new(), Vec::new()];
    for turn in 0..18 {
        let more: &[&str] = if turn % 2 == 0 { &[] } else { &["--no-requests"] };
        let whom = ["--pid", &pid, "--duration", "3s", "--rate", "1999", "--no-limit", "--force", "-v", "-o", &file];
        let outcome = Tracer::start(whom.iter().chain(more))?.wait()?;
        outcome.expect(0, &[]);
        let told = outcome.stderr.split_once(" us a sample)").and_then(|(before, _)| before.rsplit('(').next());
        let time: f64 = told.context("no cost is told")?.parse()?;
        times[turn % 2].push(time);
    }
    times.iter_mut().for_each(|times| times.sort_by(f64::total_cmp));
    let [with, without] = times.each_ref().map(|times| times[times.len() / 2]);
    println!("{with:.2} us a sample with labels, {without:.2} us without: {times:?}");
    ensure!(with - without < MOST, "labels take {:.2} us", with - without);
    Ok(())
}

/// Records only one phase, and only one location.
#[test]
fn only_what_is_asked_for_is_kept() -> Result<()> {
    let Some((nginx, site)) = Site::start(3)? else { return Ok(()) };
    let _requests = site.load(&nginx, 3);
    let folder = tempfile::tempdir()?;
    // An emulated machine answers few requests in that time.
    let seconds = 1.5 * slower().min(4) as f64;
    for (only, location, phase) in [("phase=content", None, Some("content")), ("location== /1/", Some("= /1/"), None)] {
        let (folded, outcome) = record_grouped(nginx.workers()[0], seconds, &["--only", only], folder.path())?;
        let seen = site.seen(&folded);
        let is_wanted = |(own_location, own_phase): &(String, &str)| {
            location.is_none_or(|wanted| own_location == wanted) && phase.is_none_or(|wanted| *own_phase == wanted)
        };
        ensure!(!seen.is_empty() && seen.iter().all(is_wanted), "{only}: {seen:?}\n{}", outcome.stderr);
        ensure!(outcome.stderr.contains("which --only leaves out"), "{}", outcome.stderr);
    }
    Ok(())
}

/// A program that is no nginx, in whose coroutines the word leads to something else.
#[test]
fn what_is_no_request_gives_no_labels_and_a_reason() -> Result<()> {
    let Some(program) = Program::find(LUAJIT2) else { return Ok(()) };
    let cases = [
        ("none", "no sample hit a coroutine that serves a request"),
        ("garbage", "could not be read"),
        ("zeros", "points to no request of nginx"),
        ("nearly", "does not point back"),
        ("nameless", "has neither a location nor a server"),
    ];
    for (case, reason) in cases {
        let mut workload = Workload::start(&program, "no_request.lua", &[case])?;
        let folder = tempfile::tempdir()?;
        let (folded, outcome) = record_grouped(workload.pid(), 0.5, &["--group-by", "location"], folder.path())?;
        let group = if case == "none" { "[no request]" } else { "[request not known]" };
        let is_of_group = |frames: &[String]| frames.first().is_some_and(|first| first == group);
        let has_group = folded.stacks.iter().any(|stack| is_of_group(&stack.frames));
        // The only group there is says nothing, and is not shown.
        let shows_none = folded.stacks.iter().all(|stack| !stack.frames[0].starts_with('['));
        if !(has_group || shows_none) || folded.stacks.iter().any(|stack| stack.frames[0].starts_with('/')) {
            bail!("{case}: {folded:?}\n{}", outcome.stderr);
        }
        ensure!(outcome.stderr.contains(reason), "{case}: {}", outcome.stderr);
        workload.kill()?;
    }
    Ok(())
}
