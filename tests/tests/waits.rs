//! `--mode waits` tells where coroutines wait, and for how long: as they have timed it themselves.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::chance::ERRORS;
use lj_trace_tests::nginx::Nginx;
use lj_trace_tests::programs::{COPAS, CQUEUES, LUAJIT, LUV, Program, TARANTOOL, folder};
use lj_trace_tests::source::line_of;
use lj_trace_tests::tracer::{Tracer, exit_code, run};
use lj_trace_tests::waits::{WaitTruth, compare, compare_callers, compare_lengths, told};
use lj_trace_tests::workload::Workload;

/// Begins to look at a process, with these more words; what it tells goes to `waits.txt` in `folder`.
fn start(pid: u32, folder: &Path, more: &[&str]) -> Result<Tracer> {
    let (pid, file) = (pid.to_string(), folder.join("waits.txt").display().to_string());
    let mut tracer = Tracer::start(["--pid", &pid, "--mode", "waits", "-o", &file].iter().chain(more))?;
    tracer.wait_until_attached()?;
    Ok(tracer)
}

fn text(folder: &Path) -> Result<String> {
    Ok(std::fs::read_to_string(folder.join("waits.txt"))?)
}

/// Runs a workload and looks at it while it works. What was told, and the truth.
fn recorded(program: &Program, script: &str, arguments: &[&str], more: &[&str]) -> Result<(String, WaitTruth)> {
    recorded_of(Workload::start(program, script, arguments)?, arguments[1].parse()?, more)
}

/// The same of a workload that is ready, and works for so many seconds.
fn recorded_of(mut workload: Workload, seconds: u32, more: &[&str]) -> Result<(String, WaitTruth)> {
    let folder = tempfile::tempdir()?;
    let duration = format!("{seconds}s");
    let more = [&["-d", duration.as_str()], more].concat();
    let tracer = start(workload.pid(), folder.path(), &more)?;
    workload.go()?;
    tracer.wait_for(Duration::from_secs(60))?.expect(0, &[]);
    let report = workload.report()?;
    let truth = WaitTruth::parse(report.iter().map(String::as_str))?;
    workload.go()?;
    Ok((text(folder.path())?, truth))
}

#[test]
fn times_are_those_that_coroutines_have_measured() -> Result<()> {
    let program = Program::find(LUAJIT).context("the demo's luajit is everywhere")?;
    let (text, truth) = recorded(&program, "waits.lua", &["300", "20", "1", "1", "4"], &[])?;
    compare("waits.lua", &text, &truth)?;
    // A length is told of a hundred ends of waits (`lengths.rs`), with a standard error of a tenth: five of them, and that waits do
    // not end at an even rate.
    compare_lengths("waits.lua", &text, &truth, 0.6)
}

#[test]
fn short_waits_are_estimated() -> Result<()> {
    let program = Program::find(LUAJIT).context("the demo's luajit is everywhere")?;
    let (text, truth) = recorded(&program, "waits.lua", &["300", "15", "3", "0.05", "0.3"], &[])?;
    compare("waits.lua", &text, &truth)?;
    compare_lengths("waits.lua", &text, &truth, 1.0)
}

#[test]
fn fibers_are_coroutines_too() -> Result<()> {
    let Some(program) = Program::find(TARANTOOL) else { return Ok(()) };
    let (text, truth) = recorded(&program, "waits_tarantool.lua", &["200", "20", "4", "1", "4"], &[])?;
    compare("waits_tarantool.lua", &text, &truth)
}

/// The coroutines of a library yield in the library's own code, all in one line: who has called it is what differs. The library is
/// in the first of these packages, and needs the others.
fn of_library(name: &str, packages: &[&'static str], coroutines: &str, seed: &str) -> Result<()> {
    let program = Program::find(LUAJIT).context("the demo's luajit is everywhere")?;
    if Program::find(packages[0]).is_none() {
        return Ok(());
    }
    let within = |below: &str| -> String {
        packages.iter().map(|package| format!("{}/{below};", folder(package).join("usr").display())).collect()
    };
    let seconds = 20;
    let mut command = Command::new(&program.path);
    command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("lua")).arg("waits_libraries.lua");
    command.args([coroutines, &seconds.to_string(), seed, "1", "4", name]);
    command.env("LUA_PATH", within("share/lua/5.1/?.lua"));
    command.env("LUA_CPATH", within(&format!("lib/{}-linux-gnu/lua/5.1/?.so", std::env::consts::ARCH)));
    let (text, truth) = recorded_of(Workload::spawn(&mut command)?, seconds, &[])?;
    compare_callers("waits_libraries.lua", &text, &truth)?;
    let places = told(&text)?;
    ensure!(places.len() == 1 && places[0].called == "coroutine.yield", "not in one line of the library: {text}");
    Ok(())
}

#[test]
fn coroutines_of_cqueues_are_told_by_who_has_called() -> Result<()> {
    of_library("cqueues", &[CQUEUES], "300", "11")
}

#[test]
fn coroutines_of_copas_are_told_by_who_has_called() -> Result<()> {
    of_library("copas", &[COPAS, "lua-coxpcall", "lua-socket"], "150", "12")
}

#[test]
fn coroutines_of_luv_are_told_by_who_has_called() -> Result<()> {
    of_library("luv", &[LUV], "300", "13")
}

#[test]
fn light_threads_of_nginx_are_coroutines_too() -> Result<()> {
    let Some(nginx) = Nginx::serving("waits_nginx")? else { return Ok(()) };
    let [worker] = nginx.workers() else { anyhow::bail!("one worker was asked for") };
    let folder = tempfile::tempdir()?;
    let tracer = start(*worker, folder.path(), &["-d", "20s"])?;
    nginx.request("/go?seconds=20&count=100")?;
    tracer.wait_for(Duration::from_secs(60))?.expect(0, &[]);
    let began = Instant::now();
    let report = loop {
        let report = nginx.request("/told")?;
        if !report.is_empty() {
            break report;
        }
        ensure!(began.elapsed() < Duration::from_secs(30), "nginx says nothing");
        std::thread::sleep(Duration::from_millis(500));
    };
    let truth = WaitTruth::parse(report.lines())?;
    compare("waits_nginx.lua", &text(folder.path())?, &truth)
}

/// Locations as they are named, those of the functions in `waits_requests.lua` that answer there, and paths there.
const LOCATIONS: [[&str; 3]; 6] = [
    ["/plain/", "plain", "/plain/a"],
    ["= /exact", "plain", "/exact"],
    ["~ ^/re[0-9]", "threads", "/re7"],
    ["/threads/", "threads", "/threads/"],
    ["^~ /outer/", "outer", "/outer/b"],
    ["/inner/", "plain", "/inner/"],
];

/// Seconds between looks.
const LOOKS: f64 = 0.1;

/// A worker whose requests wait in many locations.
fn waiting_requests() -> Result<Option<Nginx>> {
    Nginx::configured(|_, listen| {
        let location = |[name, kind, _]: [&str; 3]| {
            format!("location {name} {{ content_by_lua_block {{ require('waits_requests').{kind}() }} }}\n")
        };
        Ok(format!("server {{ listen {listen}; {} }}", LOCATIONS.map(location).concat()))
    })
}

/// How long and how often requests of each location have waited, as they say it themselves: `clients` of them make one after the
/// other for so many seconds.
fn wait_in_requests(nginx: &Nginx, clients: u64, seconds: u64) -> Result<HashMap<String, (f64, u32)>> {
    let client = |number| {
        let (mut random, began) = (fastrand::Rng::with_seed(number), Instant::now());
        let mut waited = HashMap::<String, (f64, u32)>::new();
        while began.elapsed() < Duration::from_secs(seconds) {
            let [name, _, path] = LOCATIONS[random.usize(..LOCATIONS.len())];
            let answer = nginx.request(&format!("{path}?seconds={:.3}", 0.05 + 1.5 * random.f64()))?;
            let words: Vec<&str> = answer.split_whitespace().collect();
            for (name, time) in [(name, words.first()), (words.get(1).copied().unwrap_or(name), words.get(2))] {
                let Some(time) = time else { continue };
                let own = waited.entry(name.to_owned()).or_default();
                *own = (own.0 + time.parse::<f64>()?, own.1 + 1);
            }
        }
        Ok::<_, anyhow::Error>(waited)
    };
    let all = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..clients).map(|number| scope.spawn(move || client(number))).collect();
        clients.into_iter().map(|client| client.join().expect("clients do not panic")).collect::<Result<Vec<_>>>()
    })?;
    let mut sums = HashMap::<String, (f64, u32)>::new();
    for (name, (time, count)) in all.into_iter().flatten() {
        let own = sums.entry(name).or_default();
        *own = (own.0 + time, own.1 + count);
    }
    Ok(sums)
}

/// Seconds of waits by what their stacks begin with.
fn seconds_by_root(folded: &str) -> HashMap<String, f64> {
    let mut seconds = HashMap::new();
    for (stack, weight) in folded.lines().filter_map(|line| line.rsplit_once(' ')) {
        let root = stack.split(';').next().unwrap_or_default().to_owned();
        *seconds.entry(root).or_default() += weight.parse::<f64>().unwrap_or(f64::NAN) / 1e9;
    }
    seconds
}

/// What is told with this option of so many clients' requests, by what stacks begin with, in seconds; and the truth.
fn told_of_requests(option: [&str; 2], clients: u64, seconds: u64) -> Result<Option<ToldAndTrue>> {
    let Some(nginx) = waiting_requests()? else { return Ok(None) };
    let [worker] = nginx.workers() else { anyhow::bail!("one worker was asked for") };
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("waits.folded");
    let (interval, output) = (format!("{LOOKS}s"), file.display().to_string());
    let words = [&option[..], &["--interval", &interval, "-o", &output]].concat();
    let tracer = start(*worker, folder.path(), &words)?;
    let truth = wait_in_requests(&nginx, clients, seconds)?;
    tracer.signal(libc::SIGINT)?;
    tracer.wait()?.expect(0, &["waits that began: "]);
    let told = seconds_by_root(&std::fs::read_to_string(&file)?);
    println!("{told:?}\n{truth:?}");
    Ok(Some((told, truth)))
}

type ToldAndTrue = (HashMap<String, f64>, HashMap<String, (f64, u32)>);

/// Checks the seconds of requests to a location against how long and how often they have waited.
fn expect_about(told: f64, (time, count): (f64, u32), location: &str) -> Result<()> {
    // The end of a wait is told with a variance of a sixth of the time between two looks, squared, and so is the beginning. With
    // light threads three waits begin at the same moment, two end together, and one ends alone: what is common to some is off by
    // that many times as much.
    let has_threads = LOCATIONS.iter().any(|[name, kind, _]| *name == location && *kind == "threads");
    let ends = if has_threads { 3 * 3 + 2 * 2 + 1 } else { 1 + 1 };
    // And a look that comes late now and then.
    let error = ERRORS * LOOKS * (f64::from(ends * count) / 6.0).sqrt() + 0.02 * time;
    ensure!((told - time).abs() < error, "{location}: {told} s are told, {time} +-{error} in truth");
    Ok(())
}

#[test]
fn waits_are_grouped_by_the_location_of_their_request() -> Result<()> {
    let Some((told, truth)) = told_of_requests(["--group-by", "location"], 24, 8)? else { return Ok(()) };
    for (name, waited) in &truth {
        expect_about(told.get(name).copied().unwrap_or(0.0), *waited, name)?;
    }
    let others: f64 = told.iter().filter(|(name, _)| !truth.contains_key(*name)).map(|(_, time)| time).sum();
    ensure!(truth.len() == LOCATIONS.len() && others == 0.0, "{told:?} {truth:?}");
    Ok(())
}

#[test]
fn waits_of_one_location_can_be_kept() -> Result<()> {
    let Some((told, truth)) = told_of_requests(["--only", "location=/threads/"], 16, 5)? else { return Ok(()) };
    expect_about(told.values().sum(), truth["/threads/"], "/threads/")
}

#[test]
fn who_asks_for_requests_where_there_are_none_is_told() -> Result<()> {
    let program = Program::find(LUAJIT).context("the demo's luajit is everywhere")?;
    let mut workload = Workload::start(&program, "waits.lua", &["5", "3", "1", "1", "1"])?;
    let folder = tempfile::tempdir()?;
    let tracer = start(workload.pid(), folder.path(), &["--group-by", "location", "-d", "1s"])?;
    workload.go()?;
    tracer.wait()?.expect(0, &["it is not OpenResty's"]);
    Ok(())
}

#[test]
fn streams_hold_no_waits() -> Result<()> {
    let program = Program::find(LUAJIT).context("the demo's luajit is everywhere")?;
    let workload = Workload::start(&program, "waits.lua", &["1", "1", "1", "1", "1"])?;
    let outcome = run(["--pid", &workload.pid().to_string(), "--mode", "waits", "-o", "waits.bin"])?;
    outcome.expect(exit_code::USAGE, &["streams of Tarantool's formats hold no waits"]);
    let outcome = run(["--pid", &workload.pid().to_string(), "--interval", "1s"])?;
    outcome.expect(exit_code::USAGE, &["--interval is for waits"]);
    Ok(())
}

/// Formats, interim results and pieces.
#[test]
fn it_goes_into_all_formats_and_pieces() -> Result<()> {
    let program = Program::find(LUAJIT).context("the demo's luajit is everywhere")?;
    let folder = tempfile::tempdir()?;
    let mut workload = Workload::start(&program, "waits.lua", &["50", "8", "5", "0.5", "2"])?;
    let file = |name: &str| folder.path().join(name);
    let outputs: Vec<String> = ["w.svg", "w.folded", "w.pb.gz", "w.speedscope.json", "w.json.gz"]
        .iter()
        .flat_map(|name| ["-o".to_owned(), file(name).display().to_string()])
        .collect();
    let mut words: Vec<&str> = outputs.iter().map(String::as_str).collect();
    words.extend(["-d", "5s", "--interval", "200ms"]);
    let mut tracer = start(workload.pid(), folder.path(), &words)?;
    workload.go()?;
    std::thread::sleep(Duration::from_secs(2));
    tracer.signal(libc::SIGUSR1)?;
    tracer.wait_until("SIGUSR1: wrote what there is so far: ")?;
    let interim = told(&text(folder.path())?)?;
    ensure!(!interim.is_empty(), "nothing was written on SIGUSR1");
    tracer.wait()?.expect(0, &[]);
    let folded = std::fs::read_to_string(file("w.folded"))?;
    let sum: f64 = folded.lines().filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>() / 1e9;
    // Fifty at a time, and the nested ones twice.
    ensure!((200.0..400.0).contains(&sum), "{sum} s in {folded}");
    for name in ["w.svg", "w.pb.gz", "w.speedscope.json", "w.json.gz"] {
        ensure!(file(name).metadata()?.len() > 100, "{name} is empty");
    }
    let pieces = tempfile::tempdir()?;
    let tracer = start(workload.pid(), pieces.path(), &["-d", "3500ms", "--rotate", "1s", "--interval", "100ms"])?;
    tracer.wait()?.expect(0, &[]);
    let count = std::fs::read_dir(pieces.path())?.count();
    ensure!((3..=5).contains(&count), "{count} pieces");
    Ok(())
}

/// Coroutines that come and go, with the collector at work: what is told stays right, and the end of the process ends it.
#[test]
fn coroutines_that_come_and_go_are_not_confused() -> Result<()> {
    /// Those that come and go together.
    const TOGETHER: f64 = 200.0;
    let program = Program::find(LUAJIT).context("the demo's luajit is everywhere")?;
    let folder = tempfile::tempdir()?;
    let mut workload = Workload::start(&program, "waits_churn.lua", &["12"])?;
    let tracer = start(workload.pid(), folder.path(), &["--interval", "100ms", "-v"])?;
    workload.go()?;
    let report = workload.report()?;
    let truth = WaitTruth::parse(report.iter().map(String::as_str))?;
    // It is killed, perhaps in the middle of a look.
    workload.kill()?;
    let outcome = tracer.wait()?;
    outcome.expect(0, &[]);
    let text = text(folder.path())?;
    let mean = |name: &str| -> Result<(f64, f64)> {
        let end = format!("@waits_churn.lua:{}", line_of("waits_churn.lua", &format!("waits in {name}")));
        let sum = told(&text)?.iter().filter(|place| place.name.ends_with(&end)).map(|place| place.mean.0).sum();
        Ok((sum, truth.places[name].0 / truth.whole))
    };
    let (stay, expected) = mean("stay")?;
    ensure!((stay - expected).abs() <= 0.05 * expected, "{stay} instead of {expected} in {text}\n{}", outcome.stderr);
    // Those that are over within the time that a look takes may be missing, but none counts that is over. All of them come and go
    // together, so a look finds two hundred or none: there are as many independent samples as looks.
    let (pass, expected) = mean("pass")?;
    let chance = ERRORS * (expected * (TOGETHER - expected).max(0.0) / (truth.whole / LOOKS)).sqrt();
    ensure!(
        pass <= 1.01 * (expected + chance).min(TOGETHER),
        "{pass} instead of {expected} in {text}\n{}",
        outcome.stderr
    );
    Ok(())
}
