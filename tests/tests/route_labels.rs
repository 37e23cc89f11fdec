//! Samples have the route that Kong or APISIX has chosen for their request, or are marked.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::folded::Folded;
use lj_trace_tests::labelled::record_grouped;
use lj_trace_tests::requests::{Checked, Site};
use lj_trace_tests::routes::{Gateway, RoutedSite};
use lj_trace_tests::tracer::Tracer;

/// Records an nginx of this seed; gives how many samples are right, and how many marked.
fn check(gateway: Gateway, seed: u64, seconds: f64) -> Result<Option<[u64; 2]>> {
    let Some((nginx, site)) = RoutedSite::start(gateway, 12, seed)? else { return Ok(None) };
    let requests = site.load(&nginx, seed);
    let folder = tempfile::tempdir()?;
    let (folded, outcome) = record_grouped(nginx.workers()[0], seconds, &["--group-by", "route"], folder.path())?;
    let Checked { right, unknown, others, wrong, labels } = site.check(&folded)?;
    outcome.stderr.lines().filter(|line| line.contains("not known")).for_each(|line| println!("{line}"));
    println!("{gateway:?}, seed {seed}: {right} right, {unknown} marked, {others} elsewhere: {labels:?}");
    ensure!(wrong.is_empty(), "{gateway:?}, seed {seed}: {}\n{}", wrong.join("\n"), outcome.stderr);
    ensure!(requests.answers() > 10, "seed {seed}: hardly a request was answered: {}", nginx.log());
    ensure!(right > unknown * 10 && labels.len() > 10, "{}\n{}", outcome.stderr, nginx.log());
    Ok(Some([right, unknown]))
}

#[test]
fn routes_are_those_of_the_function_that_runs() -> Result<()> {
    for gateway in [Gateway::Kong, Gateway::Apisix] {
        check(gateway, 1, 1.0)?;
    }
    Ok(())
}

/// Records the waits of an nginx of this seed; gives how many nanoseconds are right, and how many marked.
fn check_waits(gateway: Gateway, seed: u64, seconds: u64) -> Result<Option<[u64; 2]>> {
    let Some((nginx, site)) = RoutedSite::start(gateway, 12, seed)? else { return Ok(None) };
    let pause = 0.05 + 0.3 * fastrand::Rng::with_seed(seed).f64();
    let requests = site.load_of_waits(pause, &nginx, seed);
    let folder = tempfile::tempdir()?;
    let (pid, file, time) = (nginx.workers()[0].to_string(), folder.path().join("waits.folded"), format!("{seconds}s"));
    let output = file.display().to_string();
    let whom = ["--pid", &pid, "--duration", &time, "--output", &output];
    let waits = ["--group-by", "route", "--mode", "waits", "--interval", "0.05s"];
    let outcome = Tracer::start(whom.iter().chain(&waits))?.wait_for(Duration::from_secs(seconds + 60))?;
    outcome.expect(0, &[]);
    let folded = Folded::parse(&std::fs::read_to_string(file)?)?;
    let Checked { right, unknown, others, wrong, labels } = site.check(&folded)?;
    println!("{gateway:?}, seed {seed}: {right} ns right, {unknown} marked, {others} elsewhere: {labels:?}");
    ensure!(wrong.is_empty(), "{gateway:?}, seed {seed}: {}\n{}", wrong.join("\n"), outcome.stderr);
    ensure!(requests.answers() > 10, "seed {seed}: hardly a request was answered: {}", nginx.log());
    ensure!(right > unknown * 5 && labels.len() > 4, "{}\n{}", outcome.stderr, nginx.log());
    Ok(Some([right, unknown]))
}

#[test]
fn routes_of_waits_are_those_of_the_function_that_waits() -> Result<()> {
    for gateway in [Gateway::Kong, Gateway::Apisix] {
        check_waits(gateway, 1, 3)?;
    }
    Ok(())
}

/// Records only one route.
#[test]
fn only_the_route_that_is_asked_for_is_kept() -> Result<()> {
    let Some((nginx, site)) = RoutedSite::start(Gateway::Apisix, 12, 1)? else { return Ok(()) };
    let _requests = site.load(&nginx, 1);
    let folder = tempfile::tempdir()?;
    let label = site.a_label().context("no route has a number")?;
    let (folded, outcome) =
        record_grouped(nginx.workers()[0], 1.5, &["--only", &format!("route={label}")], folder.path())?;
    ensure!(!folded.stacks.is_empty() && site.are_of(&folded, label), "{folded:?}\n{}", outcome.stderr);
    ensure!(outcome.stderr.contains("which --only leaves out"), "{}", outcome.stderr);
    ensure!(outcome.stderr.contains("route of the request"), "{}", outcome.stderr);
    Ok(())
}

/// There may be any number of routes, but not of labels.
#[test]
fn thousands_of_routes_have_a_bounded_number_of_labels() -> Result<()> {
    /// As `docs/requests.md` has it.
    const MOST: usize = 256;
    let Some((nginx, site)) = RoutedSite::start(Gateway::Kong, 3000, 2)? else { return Ok(()) };
    let _requests = site.load(&nginx, 2);
    let folder = tempfile::tempdir()?;
    let (folded, outcome) = record_grouped(nginx.workers()[0], 1.5, &["--group-by", "route"], folder.path())?;
    let Checked { right, unknown, wrong, labels, .. } = site.check(&folded)?;
    println!("{right} right, {unknown} marked, of {} routes", labels.len());
    ensure!(wrong.is_empty(), "{}\n{}", wrong.join("\n"), outcome.stderr);
    let groups: BTreeSet<_> = folded.stacks.iter().map(|stack| &stack.frames[0]).collect();
    let routes = groups.iter().filter(|group| group.starts_with('r')).count();
    ensure!(routes == MOST && groups.iter().any(|group| *group == "[other]"), "{routes}: {}", outcome.stderr);
    Ok(())
}

/// nginx that is neither Kong nor APISIX has no routes, and a reason.
#[test]
fn what_has_no_routes_says_so() -> Result<()> {
    let Some((nginx, site)) = Site::start(4)? else { return Ok(()) };
    let _requests = site.load(&nginx, 4);
    let folder = tempfile::tempdir()?;
    let (folded, outcome) = record_grouped(nginx.workers()[0], 0.5, &["--group-by", "route"], folder.path())?;
    ensure!(outcome.stderr.contains("the program is neither Kong nor APISIX"), "{}", outcome.stderr);
    ensure!(folded.stacks.iter().all(|stack| stack.frames[0].starts_with('[')), "{folded:?}");
    Ok(())
}

/// As many samples as `LJ_TRACE_REQUEST_SAMPLES` says, of as many random configurations as it takes.
#[test]
#[ignore = "takes a minute for some twenty thousand samples"]
fn routes_of_many_samples() -> Result<()> {
    let setting = |name| std::env::var(name).ok().and_then(|count| count.parse().ok());
    let wanted = setting("LJ_TRACE_REQUEST_SAMPLES").unwrap_or(20_000);
    let (mut right, mut unknown) = (0, 0);
    for seed in setting("LJ_TRACE_REQUEST_SEED").unwrap_or(100).. {
        for gateway in [Gateway::Kong, Gateway::Apisix] {
            let Some([of_seed, marked]) = check(gateway, seed, 5.0)? else { return Ok(()) };
            (right, unknown) = (right + of_seed, unknown + marked);
        }
        println!("so far: {right} right, {unknown} marked, 0 wrong");
        if right >= wanted {
            return Ok(());
        }
    }
    Ok(())
}

/// Waits of ten random configurations.
#[test]
#[ignore = "takes four minutes"]
fn routes_of_many_waits() -> Result<()> {
    let first = std::env::var("LJ_TRACE_REQUEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(100);
    let (mut right, mut unknown) = (0, 0);
    for seed in first..first + 10 {
        for gateway in [Gateway::Kong, Gateway::Apisix] {
            let Some([of_seed, marked]) = check_waits(gateway, seed, 10)? else { return Ok(()) };
            (right, unknown) = (right + of_seed, unknown + marked);
        }
        println!("so far: {} s right, {} s marked, 0 wrong", right / 1_000_000_000, unknown / 1_000_000_000);
    }
    Ok(())
}

/// What routes and all other labels add to the time that a sample takes in the kernel: medians of recordings with and
/// without them, in turn.
#[test]
#[ignore = "measures: wants a quiet machine for a minute"]
fn what_labels_of_routes_cost() -> Result<()> {
    let Some((nginx, site)) = RoutedSite::start(Gateway::Kong, 12, 5)? else { return Ok(()) };
    let _requests = site.load(&nginx, 5);
    let folder = tempfile::tempdir()?;
    let mut times = [Vec::new(), Vec::new()];
    for turn in 0..18 {
        let more: &[&str] = if turn % 2 == 0 { &[] } else { &["--no-requests"] };
        let (_, outcome) = record_grouped(nginx.workers()[0], 1.0, more, folder.path())?;
        let told = outcome.stderr.split_once(" us a sample)").and_then(|(before, _)| before.rsplit('(').next());
        times[turn % 2].push(told.context("no cost is told")?.parse::<f64>()?);
    }
    times.iter_mut().for_each(|times| times.sort_by(f64::total_cmp));
    let [with, without] = times.each_ref().map(|times| times[times.len() / 2]);
    println!("{with:.2} us a sample with labels, {without:.2} us without: {times:?}");
    Ok(())
}
