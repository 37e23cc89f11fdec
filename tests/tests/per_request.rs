//! What one request costs: the requests that nginx ends are counted by location, all of them, and the figures for one of them are
//! those that its code measures itself.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::code;
use lj_trace_tests::counted_requests::{Busy, CountingSite, OwnFigures};
use lj_trace_tests::programs::{LUAJIT2, Program};
use lj_trace_tests::routes::{Gateway, RoutedSite};
use lj_trace_tests::tracer::{Outcome, Tracer};
use lj_trace_tests::workload::Workload;

/// A row of the table.
#[derive(Clone, Debug)]
struct Row {
    requests: u64,
    /// The figures of one request, as they are written.
    each: String,
}

/// The rows of the table at the end, by location.
fn rows<'a>(told: &str, locations: impl Iterator<Item = &'a String>) -> BTreeMap<String, Row> {
    let table: Vec<&str> = told.lines().skip_while(|line| !line.contains(" a second ")).collect();
    let of = |location: &String| {
        let line = table.iter().find(|line| line.ends_with(&format!("  {location}")))?;
        let words: Vec<&str> = line.strip_suffix(location.as_str())?.split_whitespace().collect();
        let requests = words.first()?.parse().ok()?;
        Some((location.clone(), Row { requests, each: words.get(2..)?.join(" ") }))
    };
    locations.filter_map(of).collect()
}

/// A recording of an nginx that has counted its requests itself.
struct Recorded {
    /// What it tells of its locations.
    own: BTreeMap<String, OwnFigures>,
    /// What the recording tells of them.
    rows: BTreeMap<String, Row>,
    outcome: Outcome,
}

/// Records an nginx of this seed that gets so many requests.
fn record(seed: u64, requests: usize, mode: &str, more: &[&str]) -> Result<Option<Recorded>> {
    let busy = if mode == "waits" { Busy::Waiting } else { Busy::Computing };
    let Some((nginx, site)) = CountingSite::start(seed, busy)? else { return Ok(None) };
    let clients = if busy == Busy::Waiting { 12 } else { 3 };
    let folder = tempfile::tempdir()?;
    let output = folder.path().join("out.folded").display().to_string();
    let pid = nginx.workers()[0].to_string();
    // Some before it is looked at.
    site.ask(&nginx, seed + 1, 60, clients)?;
    let before = site.own_at_rest(&nginx)?;
    let whom =
        ["--pid", &pid, "--mode", mode, "--per-request", "--rate", "999", "--no-limit", "--force", "-o", &output];
    let mut tracer = Tracer::start(whom.iter().chain(more))?;
    tracer.wait_until_attached()?;
    site.ask(&nginx, seed, requests, clients)?;
    let mut own = site.own_at_rest(&nginx)?;
    tracer.signal(libc::SIGINT)?;
    let outcome = tracer.wait()?;
    outcome.expect(0, &[]);
    for (location, figures) in &mut own {
        *figures = figures.since(before[location]);
    }
    let rows = rows(&outcome.stderr, own.keys());
    for (location, own) in &own {
        let told = rows.get(location).map_or(0, |row| row.requests);
        ensure!(
            told == own.requests,
            "seed {seed}: {location}: {told} of {} requests\n{}",
            own.requests,
            outcome.stderr
        );
    }
    let all: u64 = own.values().map(|own| own.requests).sum();
    ensure!(all > requests as u64 / 3, "seed {seed}: hardly a request has ended: {own:?}\n{}", nginx.log());
    // Waits have losses of their own: coroutines that are over before a look finds them.
    let is_loss = |line: &str| line.contains("LOST") && line.contains("request");
    ensure!(!outcome.stderr.lines().any(is_loss), "seed {seed}: {}", outcome.stderr);
    Ok(Some(Recorded { own, rows, outcome }))
}

/// The time of one request and its relative error, of `1.31 ms ±4%`.
fn time(text: &str) -> Result<(f64, f64)> {
    let mut words = text.split(' ');
    let value: f64 = words.next().context("no time")?.parse()?;
    let unit = match words.next() {
        Some("s") => 1.0,
        Some("ms") => 1e-3,
        _ => 1e-6,
    };
    let error = words.next().and_then(|error| error.strip_prefix('±')?.strip_suffix('%')?.parse::<f64>().ok());
    Ok((value * unit, error.context("no error")? / 100.0))
}

/// CPU time of one request; gives how many figures are within their errors, and how many there are.
fn check_cpu(seed: u64, requests: usize) -> Result<Option<[u64; 2]>> {
    let Some(Recorded { own, rows, outcome }) = record(seed, requests, "sysprof", &[])? else { return Ok(None) };
    let (mut within, mut all) = (0, 0);
    for (location, own) in own.iter().filter(|(_, own)| own.cpu > 0.0) {
        let row = rows.get(location).with_context(|| format!("no row of {location}: {}", outcome.stderr))?;
        if row.each.starts_with('<') {
            continue;
        }
        let (told, error) = time(&row.each)?;
        let truth = own.cpu / own.requests as f64;
        // Besides what the code measures of itself, there is what nginx's library does in Lua for each request.
        let is_within = told > truth * (1.0 - error) && told < truth * (1.0 + error) + 60e-6;
        println!("seed {seed}: {location}: {} requests, {:.1} us each, told {}", own.requests, truth * 1e6, row.each);
        (within, all) = (within + u64::from(is_within), all + 1);
        // Errors of 19 of 20 cases are two standard errors; nothing is wrong by five.
        ensure!(
            told > truth * (1.0 - 2.5 * error) && told < truth * (1.0 + 2.5 * error) + 100e-6,
            "seed {seed}: {location}: {} us each, told {}\n{}",
            truth * 1e6,
            row.each,
            outcome.stderr
        );
    }
    Ok(Some([within, all]))
}

#[test]
fn every_request_is_counted_and_its_cpu_time_is_told() -> Result<()> {
    for seed in 1..=3 {
        check_cpu(seed, 1500)?;
    }
    Ok(())
}

/// As many random configurations as `LJ_TRACE_REQUEST_SEEDS` says.
#[test]
#[ignore = "takes some minutes"]
fn requests_of_many_configurations() -> Result<()> {
    let seeds = std::env::var("LJ_TRACE_REQUEST_SEEDS").ok().and_then(|count| count.parse().ok()).unwrap_or(20);
    let mut sums = [0; 2];
    for seed in 100..100 + seeds {
        let Some([within, all]) = check_cpu(seed, 1500)? else { return Ok(()) };
        sums = [sums[0] + within, sums[1] + all];
        println!("so far: every request counted; {} of {} times within their errors", sums[0], sums[1]);
    }
    Ok(())
}

#[test]
fn bytes_of_one_request_are_those_that_its_code_asks_for() -> Result<()> {
    let Some(Recorded { own, rows, outcome }) = record(7, 600, "memprof", &[])? else { return Ok(()) };
    for (location, own) in own.iter().filter(|(_, own)| own.bytes > 0) {
        let row = rows.get(location).with_context(|| format!("no row of {location}: {}", outcome.stderr))?;
        let (value, unit) = row.each.split_once(' ').context("no bytes")?;
        let told: f64 = value.parse::<f64>()? * if unit == "MiB" { 1048576.0 } else { 1024.0 };
        let truth = own.bytes as f64 / own.requests as f64;
        println!("{location}: {} requests, {truth:.0} bytes each, told {}", own.requests, row.each);
        // The text is made of a shorter one; then there is what nginx's library needs.
        ensure!(
            told > truth * 0.99 && told < truth * 3.5 + 40_000.0,
            "{location}: {truth}, told {}\n{}",
            row.each,
            outcome.stderr
        );
    }
    Ok(())
}

/// The waiting time of one request, from looks so far apart; gives how many figures are within their errors, and how many
/// there are.
fn check_waits(seed: u64, requests: usize, interval: &str) -> Result<Option<[u64; 2]>> {
    let more = ["--group-by", "location", "--interval", interval];
    let Some(Recorded { own, rows, outcome }) = record(seed, requests, "waits", &more)? else { return Ok(None) };
    let (mut within, mut all) = (0, 0);
    for (location, own) in own.iter().filter(|(_, own)| own.waited > 0.0) {
        let row = rows.get(location).with_context(|| format!("no row of {location}: {}", outcome.stderr))?;
        let (told, error) = time(&row.each)?;
        let truth = own.waited / own.requests as f64;
        println!("seed {seed}: {location}: {} requests, {:.1} ms each, told {}", own.requests, truth * 1e3, row.each);
        within += u64::from((told - truth).abs() < told * error);
        all += 1;
        ensure!(
            (told - truth).abs() < told * error * 2.5,
            "seed {seed}: {location}: {truth} s each, told {}\n{}",
            row.each,
            outcome.stderr
        );
    }
    ensure!(all > 2, "seed {seed}: {}", outcome.stderr);
    Ok(Some([within, all]))
}

#[test]
fn the_time_that_one_request_waits_is_told() -> Result<()> {
    check_waits(1, 400, "0.05s")?;
    Ok(())
}

/// As many random configurations as `LJ_TRACE_REQUEST_SEEDS` says.
#[test]
#[ignore = "takes some minutes"]
fn waits_of_many_configurations() -> Result<()> {
    let seeds = std::env::var("LJ_TRACE_REQUEST_SEEDS").ok().and_then(|count| count.parse().ok()).unwrap_or(20);
    let mut sums = [[0; 2]; 2];
    for seed in 100..100 + seeds {
        // The second one leaves no more than ten looks.
        for (sums, interval) in sums.iter_mut().zip(["0.05s", "0.5s"]) {
            let Some([within, all]) = check_waits(seed, 400, interval)? else { return Ok(()) };
            *sums = [sums[0] + within, sums[1] + all];
            println!("so far, looks every {interval}: {} of {} waiting times within their errors", sums[0], sums[1]);
        }
    }
    Ok(())
}

/// The requests of Kong and APISIX are counted by route.
fn check_routes(gateway: Gateway, seed: u64, seconds: u64) -> Result<Option<u64>> {
    let Some((nginx, site)) = RoutedSite::start(gateway, 8, seed)? else { return Ok(None) };
    let load = |seconds| {
        let requests = site.load(&nginx, seed);
        sleep(Duration::from_secs(seconds));
        drop(requests);
        sleep(Duration::from_millis(300));
    };
    // The first request with a route shows that it has been understood where routes are.
    load(1);
    let before = site.ended(&nginx)?;
    let folder = tempfile::tempdir()?;
    let output = folder.path().join("out.folded").display().to_string();
    let pid = nginx.workers()[0].to_string();
    let mut tracer = Tracer::start(["--pid", &pid, "--per-request", "--force", "--rate", "499", "-o", &output])?;
    tracer.wait_until_attached()?;
    load(seconds);
    let own = site.ended(&nginx)?;
    tracer.signal(libc::SIGINT)?;
    let outcome = tracer.wait()?;
    outcome.expect(0, &[]);
    let table = outcome.stderr.lines().skip_while(|line| !line.contains(" a second ")).skip(1);
    let rows: Vec<Vec<&str>> = table.map(|line| line.split_whitespace().collect()).collect();
    let mut all = 0;
    for (label, count) in &own {
        let count = count - before.get(label).unwrap_or(&0);
        // A route's name may have spaces, but it begins with its label.
        let is_own = |word: &&str| if label.ends_with('-') { word.starts_with(label) } else { word == label };
        let row = rows.iter().find(|words| words.iter().skip(2).any(is_own));
        let told = row.map_or(Ok(0), |words| words[0].parse())?;
        ensure!(told == count, "{gateway:?}, seed {seed}: {label}: {told} of {count}\n{}", outcome.stderr);
        all += count;
    }
    println!("{gateway:?}, seed {seed}: {all} requests of {} routes counted", own.len());
    ensure!(all > 20 && own.len() == 8, "{gateway:?}, seed {seed}: {own:?}\n{}", nginx.log());
    Ok(Some(all))
}

#[test]
fn requests_are_counted_by_route() -> Result<()> {
    for gateway in [Gateway::Kong, Gateway::Apisix] {
        check_routes(gateway, 1, 2)?;
    }
    Ok(())
}

/// As many random configurations as `LJ_TRACE_REQUEST_SEEDS` says.
#[test]
#[ignore = "takes some minutes"]
fn requests_of_many_routes() -> Result<()> {
    let seeds = std::env::var("LJ_TRACE_REQUEST_SEEDS").ok().and_then(|count| count.parse().ok()).unwrap_or(20);
    let mut all = 0;
    for seed in 100..100 + seeds {
        let gateway = if seed % 2 == 0 { Gateway::Kong } else { Gateway::Apisix };
        let Some(counted) = check_routes(gateway, seed, 3)? else { return Ok(()) };
        all += counted;
        println!("so far: {all} requests counted under their routes");
    }
    Ok(())
}

/// What is no nginx has no requests to count, and a reason; its profile is as any other.
#[test]
fn what_has_no_requests_says_so() -> Result<()> {
    let Some(program) = Program::find(LUAJIT2) else { return Ok(()) };
    let workload = Workload::start(&program, "no_request.lua", &["none"])?;
    let folder = tempfile::tempdir()?;
    let output = folder.path().join("out.folded").display().to_string();
    let pid = workload.pid().to_string();
    let outcome = Tracer::start(["--pid", &pid, "--per-request", "--force", "-d", "1s", "-o", &output])?.wait()?;
    outcome.expect(
        0,
        &["requests were not counted: the program has no function ngx_http_free_request that all its code calls"],
    );
    Ok(())
}

/// SIGKILL while the probe is put in, is there, and is taken out: nginx's code is as it was, and it answers.
#[test]
fn kills_leave_nothing_in_nginx() -> Result<()> {
    /// How many kills.
    const KILLS: u64 = 12;
    let Some((nginx, site)) = CountingSite::start(11, Busy::Computing)? else { return Ok(()) };
    let folder = tempfile::tempdir()?;
    let output = folder.path().join("out.folded").display().to_string();
    let worker = nginx.workers()[0];
    let mut random = fastrand::Rng::with_seed(11);
    for kill in 0..KILLS {
        let whom = ["--pid", &worker.to_string(), "--per-request", "--force", "-o", &output].map(str::to_owned);
        let mut tracer = Tracer::start(&whom)?;
        if kill % 2 == 0 {
            sleep(Duration::from_millis(random.u64(..600)));
        } else {
            tracer.wait_until_attached()?;
            site.ask(&nginx, kill, 30, 3)?;
            tracer.signal(libc::SIGINT)?;
            sleep(Duration::from_millis(random.u64(..60)));
        }
        tracer.signal(libc::SIGKILL)?;
        drop(tracer);
        let killed = Instant::now();
        loop {
            let left = code::differences(worker)?;
            if left.is_empty() {
                break;
            }
            ensure!(killed.elapsed() < lj_trace_tests::patience(5), "kill {kill}: left behind: {left:?}");
            sleep(Duration::from_millis(5));
        }
        site.own(&nginx)?;
    }
    Ok(())
}
