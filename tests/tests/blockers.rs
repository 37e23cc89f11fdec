//! `lj-trace blockers`: long turns of event loops, against the clock of the program itself.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, ensure};
use lj_trace_probes::off_cpu;
use lj_trace_tests::nginx::Nginx;
use lj_trace_tests::programs::{LUAJIT, Program};
use lj_trace_tests::skips::skip;
use lj_trace_tests::tracer::{Tracer, exit_code, run};
use lj_trace_tests::workload::Workload;
use lj_trace_tests::wrk::Load;
use serde_json::Value;

/// Longer turns are told, in milliseconds.
const OVER: f64 = 20.0;

/// How far clocks may be apart that are read one after the other, in milliseconds: the thread may lose its CPU between.
const APART: f64 = 2.0;

/// What blocked a loop, by its own clock. Times are in milliseconds.
#[derive(Clone, Debug)]
struct Planted {
    began: f64,
    ended: f64,
    cpu: f64,
    way: String,
    /// 0 if it is not one line that blocks.
    line: u64,
}

impl Planted {
    /// Of the words BEGAN ENDED CPU WAY LINE.
    fn of(words: [&str; 5]) -> Result<Self> {
        let time = |word: &str| Ok::<_, anyhow::Error>(word.parse::<u64>()? as f64 / 1e6);
        let [began, ended, cpu, way, line] = words;
        let (began, ended, cpu) = (time(began)?, time(ended)?, cpu.parse()?);
        Ok(Self { began, ended, cpu, way: way.to_owned(), line: line.parse()? })
    }

    fn length(&self) -> f64 {
        self.ended - self.began
    }
}

/// A turn that was told.
#[derive(Clone, Debug)]
struct Told {
    began: f64,
    length: f64,
    json: Value,
}

impl Told {
    fn all(text: &str) -> Result<Vec<Self>> {
        text.lines().map(Self::of).collect()
    }

    fn of(line: &str) -> Result<Self> {
        let json: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
        let time = humantime::parse_rfc3339(json["time"].as_str().context("no time")?)?;
        let began = time.duration_since(SystemTime::UNIX_EPOCH)?.as_nanos() as f64 / 1e6;
        Ok(Self { began, length: json["duration_ms"].as_f64().context("no duration")?, json })
    }

    fn has(&self, planted: &Planted) -> bool {
        self.began <= planted.began + APART && planted.ended - APART <= self.began + self.length
    }

    fn milliseconds(&self, part: &str) -> f64 {
        self.json[part].as_f64().unwrap_or(f64::NAN)
    }
}

/// Whether a turn that was told is what was planted.
#[track_caller]
fn assert_is(told: &Told, planted: &Planted) {
    let Told { json, .. } = told;
    let function = json["function"].as_str().unwrap_or_default();
    let stack = json["stack"].to_string();
    assert!(
        function.starts_with(&planted.way) || stack.contains(&format!("\"{}@blocking.lua", planted.way)),
        "{planted:?}: {json}"
    );
    let parts = ["cpu_ms", "blocked_ms", "preempted_ms"].map(|part| told.milliseconds(part));
    assert!((parts.iter().sum::<f64>() - told.length).abs() < 0.01, "{json}");
    if planted.line == 0 {
        return;
    }
    assert_eq!(json["file"], "blocking.lua", "{planted:?}: {json}");
    assert_eq!(json["line"].as_u64(), Some(planted.line), "{planted:?}: {json}");
}

/// Whether this machine has what is needed.
fn is_there() -> bool {
    match off_cpu::check() {
        Ok(()) => true,
        Err(error) => {
            skip(&format!("{error:#}"));
            false
        }
    }
}

fn follow(pid: u32) -> Result<Tracer> {
    let (pid, over) = (pid.to_string(), format!("{OVER}ms"));
    let mut tracer = Tracer::start(["blockers", "--pid", &pid, "--over", &over, "--follow"])?;
    tracer.wait_until_attached()?;
    Ok(tracer)
}

/// What a loop says of itself: its long turns, and how many it made.
fn turns(report: &[String]) -> Result<(Vec<Planted>, u64)> {
    let mut planted = Vec::new();
    for line in report {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["turn", began, ended, cpu, way, at] => planted.push(Planted::of([began, ended, cpu, way, at])?),
            ["turns", count] => return Ok((planted, count.parse()?)),
            _ => anyhow::bail!("the loop said {line:?}"),
        }
    }
    anyhow::bail!("the loop did not say how many turns it made")
}

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
        ensure!(planted.len() > 20 && count > 200, "{mechanism}: only {count} turns, {planted:?}");
        sleep(Duration::from_millis(300));
        tracer.signal(libc::SIGINT)?;
        let outcome = tracer.wait()?;
        let told = Told::all(&outcome.stdout)?;
        for planted in planted.iter().filter(|planted| planted.length() > OVER + 0.1) {
            let own: Vec<_> = told.iter().filter(|told| told.has(planted)).collect();
            assert_eq!(own.len(), 1, "{mechanism}: {planted:?} in {told:#?}");
            assert!((own[0].length - planted.length()).abs() < APART, "{mechanism}: {planted:?}: {own:?}");
            // The clocks of the kernel and of the program are read at different moments.
            assert!(
                (own[0].milliseconds("cpu_ms") - planted.cpu).abs() < 0.2 * planted.length(),
                "{planted:?} {own:?}"
            );
            if planted.way != "none" {
                assert_is(own[0], planted);
                let is_waiting = ["executing", "opening", "reading"].contains(&&*planted.way);
                if is_waiting && planted.cpu < 0.4 * planted.length() {
                    assert_eq!(own[0].json["kind"], "blocked", "{planted:?}: {own:?}");
                } else if planted.cpu > 0.7 * planted.length() {
                    assert_eq!(own[0].json["kind"], "cpu", "{planted:?}: {own:?}");
                }
            }
        }
        for told in &told {
            // The program does not count how long it takes to wait for its input and to answer.
            let is_own = planted.iter().any(|planted| told.has(planted) && planted.length() > OVER - 1.0);
            let is_outside =
                planted.iter().all(|planted| told.began > planted.ended || told.began + told.length < planted.began);
            let last = planted.iter().map(|planted| planted.ended).fold(0.0, f64::max);
            assert!(
                is_own || is_outside && told.began + told.length > last,
                "{mechanism}: invented {told:?} of {planted:#?}"
            );
        }
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
    let Some(nginx) = Nginx::serving_on(port, "blocking")? else {
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
    let mut random = fastrand::Rng::with_seed(7);
    let ways = ["computing", "collecting", "matching", "executing", "opening", "reading"];
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
    tracer.signal(libc::SIGINT)?;
    let outcome = tracer.wait()?;
    let told = Told::all(&outcome.stdout)?;
    ensure!(planted.len() >= PLANTED, "{} of {PLANTED}", planted.len());
    for planted in &planted {
        let own: Vec<_> = told.iter().filter(|told| told.has(planted)).collect();
        assert_eq!(own.len(), 1, "{planted:?}");
        assert!(own[0].length > planted.length() - 0.1, "{planted:?}: {own:?}");
        assert_is(own[0], planted);
    }
    // Others are long since their thread did not get a CPU, or since a decoy came together with that.
    for told in told.iter().filter(|told| planted.iter().all(|planted| !told.has(planted))) {
        let decoy: f64 = decoys.iter().filter(|decoy| told.has(decoy)).map(Planted::length).sum();
        let preempted = told.milliseconds("preempted_ms");
        assert!(decoy + preempted > OVER - 5.0, "invented: {told:?}");
    }
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
    let outcome = (|| {
        let tracer = follow(workload.pid())?;
        workload.tell("6")?;
        let (planted, _) = turns(&workload.report()?)?;
        sleep(Duration::from_millis(300));
        tracer.signal(libc::SIGINT)?;
        Ok::<_, anyhow::Error>((Told::all(&tracer.wait()?.stdout)?, planted))
    })();
    for other in &mut others {
        other.kill()?;
        other.wait()?;
    }
    let (told, planted) = outcome?;
    let computing = |planted: &&Planted| planted.way == "computing" && planted.length() > OVER + 0.1;
    let mut preempted = 0.0;
    for planted in planted.iter().filter(computing) {
        let own = told.iter().find(|told| told.has(planted)).with_context(|| format!("{planted:?} in {told:#?}"))?;
        preempted += own.milliseconds("preempted_ms") / own.length;
        let apart = own.milliseconds("preempted_ms") - (planted.length() - planted.cpu);
        assert!(apart.abs() < 0.1 * planted.length() + APART, "{planted:?}: {own:?}");
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
    run(["blockers", "--pid", "1", "--over", "10us"])?.expect(exit_code::USAGE, &["--over is too short"]);
    run(["blockers"])?.expect(exit_code::USAGE, &[]);
    run(["blockers", "--pid", "1", "--follow", "--json"])?.expect(exit_code::USAGE, &[]);
    run(["blockers", "--pid", "999999999"])?.expect(exit_code::NO_PROCESS, &[]);
    Ok(())
}
