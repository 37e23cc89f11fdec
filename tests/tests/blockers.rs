//! `lj-trace blockers`: long turns of event loops, against the clock of the program itself.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::blockers::{APART, OVER, Planted, assert_all_and_no_others, follow, is_there, stop, turns};
use lj_trace_tests::nginx::Nginx;
use lj_trace_tests::pauses::Pauses;
use lj_trace_tests::programs::{LUAJIT, Program};
use lj_trace_tests::skips::skip;
use lj_trace_tests::tracer::{Tracer, exit_code, run};
use lj_trace_tests::usage::stolen;
use lj_trace_tests::workload::Workload;
use lj_trace_tests::wrk::Load;
use serde_json::Value;

#[test]
fn long_turns_of_a_loop_are_told_and_no_others() -> Result<()> {
    if !is_there() {
        return Ok(());
    }
    let program = Program::find(LUAJIT).context("luajit is always there")?;
    for (seed, mechanism) in [("1", "epoll"), ("2", "poll"), ("3", "select")] {
        let mut workload = Workload::start(&program, "event_loop.lua", &[seed, mechanism, &OVER.to_string()])?;
        let tracer = follow(workload.pid())?;
        workload.tell("6")?;
        let (planted, count) = turns(&workload.report()?)?;
        ensure!(planted.len() > 20 && count >= 600, "{mechanism}: only {count} turns, {planted:?}");
        sleep(Duration::from_millis(300));
        assert_all_and_no_others(&stop(tracer)?, &planted, mechanism);
    }
    Ok(())
}

/// The body of the answer to a request on a connection of its own.
fn get(port: u16, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (_, body) = answer.split_once("\r\n\r\n").with_context(|| format!("nginx answered {answer:?}"))?;
    Ok(body.to_owned())
}

#[test]
fn all_blockers_of_nginx_under_load_are_told() -> Result<()> {
    const PLANTED: usize = 100;
    if !is_there() {
        return Ok(());
    }
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let ways = ["computing", "collecting", "matching", "executing", "opening", "reading"];
    let Some(nginx) = Nginx::serving_on(port, "blocking", &ways)? else {
        skip("no nginx");
        return Ok(());
    };
    let worker = nginx.workers()[0];
    get(port, "/fast")?;
    let tracer = follow(worker)?;
    let Some(load) = Load::start(&format!("http://127.0.0.1:{port}/fast"), 40)? else {
        skip("no wrk");
        return Ok(());
    };
    let (stolen_before, pauses) = (stolen()?, Pauses::watch());
    let mut random = fastrand::Rng::with_seed(7);
    let mut planted = Vec::new();
    let mut decoys = Vec::new();
    for index in 0..2 * PLANTED {
        sleep(Duration::from_millis(random.u64(5..60)));
        let is_decoy = index % 2 == 1;
        let length = if is_decoy { OVER * (0.4 + 0.3 * random.f64()) } else { OVER + 4.0 + 20.0 * random.f64() };
        let way = ways[random.usize(..ways.len())];
        let answer = get(port, &format!("/{way}?ms={length:.3}"))?;
        let words: Vec<&str> = answer.split(' ').collect();
        let [way, began, ended, cpu, line] = words[..] else { anyhow::bail!("nginx answered {answer:?}") };
        let own = Planted::of([began, ended, cpu, way, line])?;
        if own.length() > OVER { &mut planted } else { &mut decoys }.push(own);
    }
    drop(load);
    sleep(Duration::from_millis(300));
    let gone = pauses.end() + stolen()? - stolen_before;
    let told = stop(tracer)?;
    ensure!(planted.len() >= PLANTED, "{} of {PLANTED}", planted.len());
    let (mut with_request, mut not_preempted) = (0, 0);
    for planted in &planted {
        let own: Vec<_> = told.iter().filter(|told| told.has(planted)).collect();
        assert_eq!(own.len(), 1, "{planted:?}");
        assert!(own[0].length > planted.length() - 0.1, "{planted:?}: {own:?}");
        own[0].assert_is(planted);
        let request = &own[0].json["request"];
        not_preempted += usize::from(own[0].json["kind"] != "preempted");
        // Where others had the CPU most of the time, it may have been taken from the request of somebody else.
        if own[0].json["kind"] != "preempted" && !request.is_null() {
            assert_eq!(request["location"], format!("/{}", planted.way), "{planted:?}: {own:?}");
            assert_eq!(request["phase"], "content", "{planted:?}: {own:?}");
            with_request += 1;
        }
    }
    ensure!(10 * with_request >= 9 * not_preempted, "only {with_request} of {not_preempted} have a request");
    ensure!(2 * not_preempted > planted.len(), "{not_preempted} of {} were not kept from running", planted.len());
    // Others are long since their thread did not get a CPU, or since a decoy came together with that.
    let invented: Vec<_> = told
        .iter()
        .filter(|told| planted.iter().all(|planted| !told.has(planted)))
        .filter(|told| {
            let decoy: f64 = decoys.iter().filter(|decoy| told.has(decoy)).map(Planted::length).sum();
            decoy + told.milliseconds("preempted_ms") <= OVER - 5.0
        })
        .collect();
    // Where the host of this virtual machine takes the CPU away, the worker seems to run: each such time makes one turn long.
    let most = 1.0 + gone * 1000.0 / (OVER - 5.0);
    ensure!(invented.len() as f64 <= most, "{gone} s of the CPUs were taken away; invented: {invented:?}");
    Ok(())
}

#[test]
fn who_does_not_get_a_cpu_is_told_so() -> Result<()> {
    if !is_there() {
        return Ok(());
    }
    let program = Program::find(LUAJIT).context("luajit is always there")?;
    let mut command = Command::new("taskset");
    command.args(["-c", "0"]).arg(&program.path).args(["event_loop.lua", "4", "epoll", "20"]);
    command.current_dir(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("lua"));
    let mut workload = Workload::spawn(&mut command)?;
    let busy = || Command::new("taskset").args(["-c", "0", "sh", "-c", "while :; do :; done"]).spawn();
    let mut others = [busy()?, busy()?, busy()?];
    let stolen_before = stolen()?;
    let outcome = (|| {
        let tracer = follow(workload.pid())?;
        workload.tell("6")?;
        let (planted, _) = turns(&workload.report()?)?;
        sleep(Duration::from_millis(300));
        Ok::<_, anyhow::Error>((stop(tracer)?, planted))
    })();
    for other in &mut others {
        other.kill()?;
        other.wait()?;
    }
    let (told, planted) = outcome?;
    // What the host takes away of a CPU is neither the thread's CPU time nor a wait for a CPU.
    let gone = 1000.0 * (stolen()? - stolen_before);
    let computing = |planted: &&Planted| planted.way == "computing" && planted.length() > OVER + 0.1;
    let mut preempted = 0.0;
    for planted in planted.iter().filter(computing) {
        let own = told.iter().find(|told| told.has(planted)).with_context(|| format!("{planted:?} in {told:#?}"))?;
        preempted += own.milliseconds("preempted_ms") / own.length;
        let apart = own.milliseconds("preempted_ms") - (planted.length() - planted.cpu);
        assert!(apart.abs() < 0.1 * planted.length() + APART + gone, "{planted:?}: {own:?}");
    }
    let share = preempted / planted.iter().filter(computing).count().max(1) as f64;
    assert!(share > 0.3, "only {share} of the time others had the CPU");
    Ok(())
}

#[test]
fn a_script_without_a_loop_is_told_so() -> Result<()> {
    let program = Program::find(LUAJIT).context("luajit is always there")?;
    let mut workload = Workload::start(&program, "event_loop.lua", &["1", "epoll", "20"])?;
    let pid = workload.pid().to_string();
    let outcome = run(["blockers", "--pid", &pid, "--duration", "500ms"])?;
    outcome.expect(0, &["attached"]);
    assert!(outcome.stdout.contains("made no turn of an event loop"), "{outcome:?}");
    // What it does later is one.
    let mut tracer = Tracer::start(["blockers", "--pid", &pid, "--no-waits", "--json"])?;
    tracer.wait_until_attached()?;
    workload.tell("2")?;
    let (planted, count) = turns(&workload.report()?)?;
    tracer.signal(libc::SIGINT)?;
    let outcome = tracer.wait()?;
    let json: Value = serde_json::from_str(&outcome.stdout)?;
    let seen = json["processes"][0]["turns"].as_u64().context("no turns")?;
    assert!(seen.abs_diff(count) <= 2, "{seen} of {count}");
    let long = planted.iter().filter(|planted| planted.length() > OVER + 0.1).count() as u64;
    assert!(json["processes"][0]["long_turns"].as_u64() >= Some(long), "{long} in {json:#}");
    assert!(json["not_measured"].as_str().is_some_and(|why| !why.is_empty()), "{json:#}");
    Ok(())
}

#[test]
fn wrong_options_are_refused() -> Result<()> {
    run(["blockers", "--pid", "1", "--over", "0.5ms"])?.expect(exit_code::USAGE, &["--over is too short"]);
    run(["blockers"])?.expect(exit_code::USAGE, &[]);
    run(["blockers", "--pid", "1", "--follow", "--json"])?.expect(exit_code::USAGE, &[]);
    run(["blockers", "--pid", "999999999"])?.expect(exit_code::NO_PROCESS, &[]);
    Ok(())
}
