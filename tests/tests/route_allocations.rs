//! Allocations have the route that Kong or APISIX has chosen for their request, or are marked: nginx whose functions count
//! themselves what they allocate while a request has a route, or has none.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::nginx::Nginx;
use lj_trace_tests::requests::{Checked, Site, ensure_told, record_both, record_memory};
use lj_trace_tests::routes::{Gateway, RoutedSite};

/// Asks for all routes for a while.
fn load((nginx, site): (&Nginx, &RoutedSite), seed: u64, seconds: u64) -> Result<()> {
    let requests = site.load(nginx, seed);
    sleep(Duration::from_secs(seconds));
    ensure!(requests.answers() > 10, "seed {seed}: hardly a request was answered: {}", nginx.log());
    Ok(())
}

/// Records an nginx of this seed; gives how many bytes are labelled right, and how many are marked.
fn check(gateway: Gateway, seed: u64, seconds: u64) -> Result<Option<[u64; 2]>> {
    let Some((nginx, site)) = RoutedSite::start_allocating(gateway, 12, seed)? else { return Ok(None) };
    let folder = tempfile::tempdir()?;
    let before = site.allocated(&nginx)?;
    let (folded, outcome) =
        record_memory(&nginx, folder.path(), &["--group-by", "route"], || load((&nginx, &site), seed, seconds))?;
    let after = site.allocated(&nginx)?;
    let Checked { right, unknown, others, wrong, labels } = site.check(&folded)?;
    outcome.stderr.lines().filter(|line| line.contains("not known")).for_each(|line| println!("{line}"));
    println!("{gateway:?}, seed {seed}: {right} bytes right, {unknown} marked, {others} elsewhere: {labels:?}");
    ensure!(wrong.is_empty(), "{gateway:?}, seed {seed}: {}\n{}", wrong.join("\n"), outcome.stderr);
    ensure!(right > unknown * 10 && labels.len() > 10, "{gateway:?}, seed {seed}: {}\n{}", outcome.stderr, nginx.log());
    ensure!(!outcome.stderr.contains("LOST") && !outcome.stderr.contains("NOT ACCOUNTED"), "{}", outcome.stderr);
    ensure!(outcome.stderr.contains("route of the request"), "{}", outcome.stderr);
    ensure_told(&format!("seed {seed}"), [&before, &after], &site.recorded(&folded), &outcome)?;
    Ok(Some([right, unknown]))
}

#[test]
fn bytes_have_the_route_of_the_function_that_allocates() -> Result<()> {
    for gateway in [Gateway::Kong, Gateway::Apisix] {
        check(gateway, 1, 3)?;
    }
    Ok(())
}

/// As many random configurations as `LJ_TRACE_REQUEST_SEEDS` says.
#[test]
#[ignore = "takes some minutes"]
fn bytes_of_many_routes() -> Result<()> {
    let seeds = std::env::var("LJ_TRACE_REQUEST_SEEDS").ok().and_then(|count| count.parse().ok()).unwrap_or(20);
    let (mut right, mut unknown) = (0, 0);
    for seed in 100..100 + seeds {
        let gateway = if seed % 2 == 0 { Gateway::Kong } else { Gateway::Apisix };
        let Some([of_seed, marked]) = check(gateway, seed, 3)? else { return Ok(()) };
        (right, unknown) = (right + of_seed, unknown + marked);
        println!("so far: {right} bytes right, {unknown} marked, 0 wrong");
    }
    Ok(())
}

/// Keeps only what is allocated for one route.
#[test]
fn only_the_route_that_is_asked_for_counts() -> Result<()> {
    let Some((nginx, site)) = RoutedSite::start_allocating(Gateway::Apisix, 12, 1)? else { return Ok(()) };
    let folder = tempfile::tempdir()?;
    let label = site.a_label().context("no route has a number")?;
    let only = format!("route={label}");
    let (folded, outcome) = record_memory(&nginx, folder.path(), &["--only", &only], || load((&nginx, &site), 1, 2))?;
    ensure!(!folded.stacks.is_empty() && site.are_of(&folded, label), "{folded:?}\n{}", outcome.stderr);
    ensure!(outcome.stderr.contains("which --only leaves out"), "{}", outcome.stderr);
    Ok(())
}

/// The bytes of one request that the table at the end tells, by route, with what these figures are rounded to, and how many
/// requests there were.
fn each(told: &str, routes: &[String]) -> Result<BTreeMap<String, (f64, f64, u64)>> {
    let table = told.lines().skip_while(|line| !line.contains("allocated each")).skip(1);
    let mut found = BTreeMap::new();
    for line in table {
        let words: Vec<&str> = line.split_whitespace().collect();
        let of = |name: &str| routes.iter().find(|route| RoutedSite::is_label(route, name));
        // Beside samples, the CPU time of a request comes before its bytes.
        let row = words.windows(3).skip(2).find_map(|row| Some((words[0], row[0], row[1], of(row[2])?)));
        let Some((requests, value, unit, route)) = row else { continue };
        let unit = match unit {
            "KiB" => 1024.0,
            "MiB" => 1048576.0,
            _ => 1.0,
        };
        found.insert(route.clone(), (value.parse::<f64>()? * unit, 0.05 * unit + 1.0, requests.parse()?));
    }
    Ok(found)
}

/// What one request allocates is what its route has allocated, divided by its requests; also if its samples are recorded as
/// well, which then have the right routes.
fn check_each(gateway: Gateway, with_samples: bool, seed: u64, seconds: u64) -> Result<()> {
    let Some((nginx, site)) = RoutedSite::start_allocating(gateway, 8, seed)? else { return Ok(()) };
    let folder = tempfile::tempdir()?;
    let before = site.ended(&nginx)?;
    let more = ["--per-request", "--group-by", "route"];
    let requests = || load((&nginx, &site), seed, seconds);
    let (folded, outcome) = if with_samples {
        let more = [&more[..], &["--rate", "999"]].concat();
        let ([samples, bytes], outcome) = record_both(&nginx, folder.path(), &more, requests)?;
        let Checked { right, wrong, labels, .. } = site.check(&samples)?;
        println!("{gateway:?}: {right} samples right: {labels:?}");
        ensure!(wrong.is_empty() && right > 0, "{gateway:?}: {}\n{}", wrong.join("\n"), outcome.stderr);
        ensure!(outcome.stderr.contains("CPU each"), "{}", outcome.stderr);
        (bytes, outcome)
    } else {
        record_memory(&nginx, folder.path(), &more, requests)?
    };
    let own = site.ended(&nginx)?;
    let told = each(&outcome.stderr, site.labels())?;
    for route in site.labels() {
        let ended = own.get(route.as_str()).unwrap_or(&0) - before.get(route.as_str()).unwrap_or(&0);
        let (bytes, error, requests) =
            told.get(route).copied().with_context(|| format!("{route}: {}", outcome.stderr))?;
        let of_route = folded.stacks.iter().filter(|stack| RoutedSite::is_label(route, &stack.frames[0]));
        let all: u64 = of_route.map(|stack| stack.samples).sum();
        println!("{route}: {requests} requests, {bytes} bytes each, {all} bytes");
        ensure!(requests == ended, "{gateway:?}: {route}: {requests} of {ended} requests\n{}", outcome.stderr);
        let (count, all) = (requests as f64, all as f64);
        ensure!((bytes * count - all).abs() <= error * count, "{route}: {all} bytes\n{}", outcome.stderr);
    }
    Ok(())
}

#[test]
fn bytes_of_one_request_are_told_by_route() -> Result<()> {
    for (gateway, with_samples) in [(Gateway::Kong, false), (Gateway::Apisix, true)] {
        check_each(gateway, with_samples, 3, 2)?;
    }
    Ok(())
}

/// nginx that is neither Kong nor APISIX has no routes, and events of memory have no plugins: both with a reason.
#[test]
fn what_has_no_routes_or_plugins_says_so() -> Result<()> {
    let Some((nginx, site)) = Site::start(4)? else { return Ok(()) };
    let folder = tempfile::tempdir()?;
    let cases =
        [("route", "the program is neither Kong nor APISIX"), ("plugin", "memory profiles do not know of plugins")];
    for (label, reason) in cases {
        let (folded, outcome) = record_memory(&nginx, folder.path(), &["--group-by", label], || {
            let _requests = site.load(&nginx, 4);
            sleep(Duration::from_secs(1));
            Ok(())
        })?;
        ensure!(outcome.stderr.contains(reason), "{}", outcome.stderr);
        ensure!(folded.stacks.iter().all(|stack| stack.frames[0].starts_with('[')), "{folded:?}");
    }
    Ok(())
}

/// What labels add to the time that a call of the allocator takes: medians of recordings without labels, with locations, and with
/// routes, in turn.
#[test]
#[ignore = "measures: wants a quiet machine for two minutes"]
fn what_labels_of_routes_cost() -> Result<()> {
    let Some((nginx, site)) = RoutedSite::start_allocating(Gateway::Kong, 12, 5)? else { return Ok(()) };
    let folder = tempfile::tempdir()?;
    let kinds: [&[&str]; 3] = [&[], &["--group-by", "location"], &["--group-by", "route"]];
    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    for turn in 0..27 {
        let (_, outcome) = record_memory(&nginx, folder.path(), kinds[turn % 3], || load((&nginx, &site), 5, 2))?;
        let told =
            outcome.stderr.split_once(" us a call of the allocator").and_then(|(before, _)| before.rsplit('(').next());
        let told = told.with_context(|| format!("no cost is told: {}", outcome.stderr))?;
        times[turn % 3].push(told.parse::<f64>()?);
    }
    times.iter_mut().for_each(|times| times.sort_by(f64::total_cmp));
    let [without, locations, routes] = times.each_ref().map(|times| times[times.len() / 2]);
    println!("{without:.2} us a call, {locations:.2} us with locations, {routes:.2} us with routes: {times:?}");
    Ok(())
}
