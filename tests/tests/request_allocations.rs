//! Allocations have the labels of the request that they are for, or are marked: nginx with random locations of all kinds, whose
//! functions count themselves what they allocate.

use std::collections::BTreeSet;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::folded::Folded;
use lj_trace_tests::nginx::Nginx;
use lj_trace_tests::programs::{LUAJIT2, Program};
use lj_trace_tests::requests::{Checked, Site, ensure_told, record_memory};
use lj_trace_tests::tracer::{Outcome, Tracer};
use lj_trace_tests::workload::Workload;

/// Records the memory of a worker while clients ask it for all that it has; `more` are further options.
fn record(
    (nginx, site): (&Nginx, &Site),
    seed: u64,
    seconds: u64,
    folder: &Path,
    more: &[&str],
) -> Result<(Folded, Outcome)> {
    record_memory(nginx, folder, more, || {
        let requests = site.load(nginx, seed);
        sleep(Duration::from_secs(seconds));
        ensure!(requests.answers() > 10, "seed {seed}: hardly a request was answered: {}", nginx.log());
        Ok(())
    })
}

/// Records an nginx of this seed; gives how many bytes are labelled right, and how many are marked.
fn check(seed: u64, label: &str, seconds: u64) -> Result<Option<[u64; 2]>> {
    let Some((nginx, site)) = Site::start(seed)? else { return Ok(None) };
    let folder = tempfile::tempdir()?;
    let before = site.allocated(&nginx)?;
    let (folded, outcome) = record((&nginx, &site), seed, seconds, folder.path(), &["--group-by", label])?;
    let after = site.allocated(&nginx)?;
    let Checked { right, unknown, others, wrong, labels } = site.check(&folded, label)?;
    println!("seed {seed}: {label}: {right} bytes right, {unknown} marked, {others} elsewhere: {labels:?}");
    println!("{}", outcome.stderr);
    ensure!(wrong.is_empty(), "seed {seed}: {label}: {}\n{}", wrong.join("\n"), outcome.stderr);
    ensure!(right > unknown && labels.len() > 3, "seed {seed}: {}\n{}", outcome.stderr, nginx.log());
    ensure!(!outcome.stderr.contains("LOST") && !outcome.stderr.contains("NOT ACCOUNTED"), "{}", outcome.stderr);
    ensure_told(&format!("seed {seed}"), [&before, &after], &site.recorded(&folded), &outcome)?;
    Ok(Some([right, unknown]))
}

#[test]
fn bytes_are_those_that_the_functions_count() -> Result<()> {
    for (seed, label) in [(1, "location"), (2, "phase")] {
        check(seed, label, 3)?;
    }
    Ok(())
}

/// As many random configurations as `LJ_TRACE_REQUEST_SEEDS` says.
#[test]
#[ignore = "takes some minutes"]
fn bytes_of_many_configurations() -> Result<()> {
    let seeds = std::env::var("LJ_TRACE_REQUEST_SEEDS").ok().and_then(|count| count.parse().ok()).unwrap_or(20);
    let (mut right, mut unknown) = (0, 0);
    for seed in 1000..1000 + seeds {
        let label = if seed % 2 == 0 { "location" } else { "phase" };
        let Some([of_seed, marked]) = check(seed, label, 3)? else { return Ok(()) };
        (right, unknown) = (right + of_seed, unknown + marked);
        println!("so far: {right} bytes right, {unknown} marked, 0 wrong");
    }
    Ok(())
}

/// Keeps only what one phase allocates, and only one location.
#[test]
fn only_what_is_asked_for_counts() -> Result<()> {
    let Some((nginx, site)) = Site::start(3)? else { return Ok(()) };
    let folder = tempfile::tempdir()?;
    for (only, location, phase) in [("phase=content", None, Some("content")), ("location== /1/", Some("= /1/"), None)] {
        let (folded, outcome) = record((&nginx, &site), 3, 2, folder.path(), &["--only", only])?;
        let seen = site.seen(&folded);
        let is_wanted = |(own_location, own_phase): &(String, &str)| {
            location.is_none_or(|wanted| own_location == wanted) && phase.is_none_or(|wanted| *own_phase == wanted)
        };
        ensure!(!seen.is_empty() && seen.iter().all(is_wanted), "{only}: {seen:?}\n{}", outcome.stderr);
        ensure!(outcome.stderr.contains("which --only leaves out"), "{}", outcome.stderr);
        ensure!(outcome.stderr.contains("location of the request"), "{}", outcome.stderr);
    }
    Ok(())
}

/// More locations than there may be names: the first ones have their own, the others are together, and nothing is anybody else's.
#[test]
fn locations_beyond_the_bound_are_others() -> Result<()> {
    /// Beyond `MOST_NAMES`.
    const LOCATIONS: usize = 300;
    const NAMES: usize = 256;
    let configured = Nginx::configured(|_, listen| {
        let location = |number: usize| {
            format!(
                "location /{number}/ {{ content_by_lua_block {{\n\
                 local function of_{number}() local t = {{}} for i = 1, 100 do t[i] = {{ i }} end return t end\n\
                 of_{number}() ngx.print('x') }} }}\n"
            )
        };
        Ok(format!("server {{ listen {listen}; {} }}", (0..LOCATIONS).map(location).collect::<String>()))
    })?;
    let Some(nginx) = configured else { return Ok(()) };
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("memory.folded").display().to_string();
    let pid = nginx.workers()[0].to_string();
    let whom = ["--pid", &pid, "--mode", "memprof", "--output", &file, "--no-limit", "-v", "--group-by", "location"];
    let mut tracer = Tracer::start(whom)?;
    tracer.wait_until_attached()?;
    for _ in 0..2 {
        for number in 0..LOCATIONS {
            ensure!(nginx.request(&format!("/{number}/"))? == "x", "{}", nginx.log());
        }
    }
    tracer.signal(libc::SIGINT)?;
    let outcome = tracer.wait()?;
    outcome.expect(0, &[]);
    let folded = Folded::parse(&std::fs::read_to_string(&file)?)?;
    let (mut named, mut others) = (BTreeSet::new(), BTreeSet::new());
    for stack in &folded.stacks {
        let own = stack.frames.iter().find_map(|frame| frame.strip_prefix("of_")?.split('@').next());
        let Some(own) = own else { continue };
        let label = stack.frames[0].as_str();
        if label == "[other]" {
            others.insert(own.to_owned());
        } else {
            ensure!(label == format!("/{own}/"), "of_{own} is under {label}");
            named.insert(own.to_owned());
        }
    }
    let both = named.intersection(&others).count();
    ensure!(
        (named.len(), others.len(), both) == (NAMES, LOCATIONS - NAMES, 0),
        "{} locations have their own name, {} are others, {both} both\n{}",
        named.len(),
        others.len(),
        outcome.stderr
    );
    let told =
        outcome.stderr.lines().find_map(|line| line.trim().strip_prefix("names beyond 256")?.split_whitespace().next());
    let told: u64 = told.context("others are not told")?.parse()?;
    // Each request makes a hundred tables and more, and frees nothing of that at once.
    let least = 2 * 100 * (LOCATIONS - NAMES) as u64;
    ensure!((least..3 * least).contains(&told), "{told} events are said to be of others\n{}", outcome.stderr);
    Ok(())
}

/// A program that is no nginx has no requests, and the end says why.
#[test]
fn a_program_without_requests_says_so() -> Result<()> {
    let Some(program) = Program::find(LUAJIT2) else { return Ok(()) };
    let cases = [("none", "no event hit a coroutine that serves a request"), ("garbage", "could not be read")];
    for (case, reason) in cases {
        let mut workload = Workload::start(&program, "no_request.lua", &[case])?;
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("a.folded").display().to_string();
        let pid = workload.pid().to_string();
        let whom = ["--pid", &pid, "--mode", "memprof", "--duration", "1s", "--no-limit", "--force", "-o", &file];
        let outcome = Tracer::start(whom.iter().chain(&["--group-by", "location"]))?.wait()?;
        outcome.expect(0, &[]);
        ensure!(
            outcome.stderr.contains("no requests") && outcome.stderr.contains(reason),
            "{case}: {}",
            outcome.stderr
        );
        workload.kill()?;
    }
    Ok(())
}

/// A stream of a memory profile has no labels, and an estimate none of its parts.
#[test]
fn what_has_no_labels_refuses_them() -> Result<()> {
    let Some(program) = Program::find(LUAJIT2) else { return Ok(()) };
    let workload = Workload::start(&program, "no_request.lua", &["none"])?;
    let (pid, folder) = (workload.pid().to_string(), tempfile::tempdir()?);
    let [stream, report] = ["a.bin", "a.svg"].map(|name| folder.path().join(name).display().to_string());
    let cases: [&[&str]; 2] =
        [&["--only", "location=/a", "-o", &stream], &["--group-by", "location", "--overhead", "5%", "-o", &report]];
    for (more, reason) in cases.into_iter().zip(["has no labels", "estimates a memory profile as a whole"]) {
        let outcome = Tracer::start(["--pid", &pid, "--mode", "memprof"].iter().chain(more))?.wait()?;
        ensure!(outcome.stderr.contains(reason), "{more:?}: {}", outcome.stderr);
    }
    Ok(())
}
