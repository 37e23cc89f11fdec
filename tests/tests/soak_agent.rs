//! The agent for long, in the small: intervals of a second, processes and VMs that come and go, and a server that is there, refuses,
//! hangs, or is gone, as it falls out. Nothing grows, and every sample is accounted for by each sink.
//!
//! `cargo xtask soak --agent --minutes 120` runs it for long: 24 hours of intervals of 15 s are 96 minutes of those.
//! `LJ_TRACE_SOAK_MINUTES` says how long.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use fastrand::Rng;
use lj_trace_tests::host_agent::Agent;
use lj_trace_tests::own_process::OwnProcess;
use lj_trace_tests::patience;
use lj_trace_tests::programs::{LUAJIT, Program};
use lj_trace_tests::slope::Slope;
use lj_trace_tests::usage;

/// How often something happens.
const TURN: Duration = Duration::from_millis(500);

/// How often memory is measured.
const INTERVAL: Duration = Duration::from_secs(5);

/// KiB an hour that are nothing.
const NEGLIGIBLE: f64 = 512.0;

/// What a server does with a request.
const TAKES: u8 = 0;
const MOODS: u8 = 5;

/// A server of OTLP profiles with moods.
struct Server {
    port: u16,
    mood: Arc<AtomicU8>,
    taken: Arc<AtomicU64>,
}

impl Server {
    fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let server = Self { port: listener.local_addr()?.port(), mood: Arc::default(), taken: Arc::default() };
        let (mood, taken) = (Arc::clone(&server.mood), Arc::clone(&server.taken));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (mood, taken) = (Arc::clone(&mood), Arc::clone(&taken));
                // Whoever sends notices what goes wrong.
                thread::spawn(move || _ = answer(stream, mood.load(Ordering::Relaxed), &taken));
            }
        });
        Ok(server)
    }
}

/// Answers one request, in one of the ways that servers have.
fn answer(mut stream: TcpStream, mood: u8, taken: &AtomicU64) -> Result<()> {
    if mood == 1 {
        return Ok(());
    }
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse()?;
        }
        if line.trim().is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let status = match mood {
        TAKES => "200 OK",
        2 => "503 Service Unavailable",
        3 => "429 Too Many Requests\r\nRetry-After: 1",
        _ => {
            sleep(Duration::from_secs(2));
            return Ok(());
        }
    };
    if mood == TAKES {
        taken.fetch_add(1, Ordering::Relaxed);
    }
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    )?;
    Ok(())
}

/// A process that makes VMs all the time.
struct WithVms(Child);

impl WithVms {
    fn start(own: &str) -> Result<Self> {
        let program = Program::find(LUAJIT).context("the demo's luajit is everywhere")?;
        let mut command = Command::new(&program.path);
        command.arg("vms_come_and_go.lua").current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("lua"));
        command.env("OTEL_SERVICE_NAME", "vms").env("OTEL_RESOURCE_ATTRIBUTES", own).stdin(Stdio::null());
        Ok(Self(command.spawn()?))
    }
}

impl Drop for WithVms {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a sink says of its samples.
fn figures(metrics: &BTreeMap<String, f64>, sink: &str) -> BTreeMap<String, f64> {
    let label = format!("sink=\"{sink}\"");
    let own = metrics.iter().filter(|(name, _)| name.contains(&label));
    let short = own.filter_map(|(name, value)| {
        let name = name.strip_prefix("lj_trace_sink_")?.split('{').next()?;
        Some((name.trim_end_matches("_total").to_owned(), *value))
    });
    // What is dropped has a line for each reason.
    short.fold(BTreeMap::new(), |mut sums, (name, value)| {
        *sums.entry(name).or_default() += value;
        sums
    })
}

/// Sent, waiting or dropped: what became of all samples that a sink was given.
fn accounted(figures: &BTreeMap<String, f64>) -> f64 {
    ["sent", "queued", "spooled", "dropped"].iter().filter_map(|name| figures.get(*name)).sum()
}

fn soak(length: Duration, seed: u64) -> Result<Vec<(f64, f64)>> {
    let (server, mut random) = (Server::start()?, Rng::with_seed(seed));
    let spool = tempfile::tempdir()?;
    let sink = format!(
        "[[sink]]\nkind = \"otlp\"\nurl = \"http://127.0.0.1:{}\"\nspool = \"{}\"\nmax-spool = \"2MiB\"\n",
        server.port,
        spool.path().display()
    );
    let agent = Agent::start("")?;
    fs::write(agent.folder.path().join("agent.toml"), format!("{}\n{sink}", agent.with("")))?;
    agent.tracer.signal(libc::SIGHUP)?;
    let pid = agent.tracer.pid();
    let (began, mut measured, mut next) = (Instant::now(), Vec::new(), Instant::now());
    let (mut running, mut with_vms): (Vec<OwnProcess>, Option<WithVms>) = (Vec::new(), None);
    let mut number = 0;
    while began.elapsed() < length {
        if running.len() < 8 && random.u8(..3) != 0 {
            number = number % 999 + 1;
            running.push(agent.process(number, [0, 1, 20][random.usize(..3)], ["a", "b", "c"][random.usize(..3)])?);
        } else if !running.is_empty() && random.bool() {
            running.swap_remove(random.usize(..running.len()));
        }
        if random.u8(..20) == 0 {
            with_vms = if with_vms.is_some() { None } else { Some(WithVms::start(&agent.own)?) };
        }
        if random.u8(..10) == 0 {
            // Half of the time it takes what comes.
            server.mood.store(if random.bool() { TAKES } else { random.u8(1..MOODS) }, Ordering::Relaxed);
        }
        if Instant::now() >= next {
            next += INTERVAL;
            measured.push((began.elapsed().as_secs_f64() / 3600.0, usage::memory(pid)?.1 as f64));
        }
        sleep(TURN);
    }
    drop((running, with_vms));
    server.mood.store(TAKES, Ordering::Relaxed);
    agent.wait_for(0)?;
    // What waits is sent now, and then both sinks have dealt with the same samples.
    let start = Instant::now();
    loop {
        let metrics = agent.metrics()?;
        let otlp = figures(&metrics, "otlp");
        let store = figures(&metrics, &agent.store().display().to_string());
        let waiting: f64 = ["queued", "spooled"].iter().filter_map(|name| otlp.get(*name)).sum();
        if waiting == 0.0 && start.elapsed() > Duration::from_secs(3) {
            println!(
                "{:?}: otlp {otlp:?}, store {store:?}; {} requests taken",
                began.elapsed(),
                server.taken.load(Ordering::Relaxed)
            );
            ensure!(otlp["recorded"] > 0.0 && server.taken.load(Ordering::Relaxed) > 0, "nothing was sent: {otlp:?}");
            ensure!(accounted(&otlp) == otlp["recorded"], "otlp: {otlp:?}");
            ensure!(accounted(&store) == store["recorded"], "store: {store:?}");
            ensure!(store.get("dropped").is_none_or(|dropped| *dropped == 0.0), "store: {store:?}");
            break;
        }
        ensure!(start.elapsed() < patience(120), "{waiting} are never sent: {otlp:?}");
        sleep(Duration::from_millis(200));
    }
    agent.tracer.signal(libc::SIGTERM)?;
    agent.tracer.wait()?.expect(0, &[]);
    Ok(measured)
}

#[test]
fn every_sample_is_accounted_for_whatever_the_server_does() -> Result<()> {
    soak(Duration::from_secs(20), 1).map(drop)
}

#[test]
#[ignore = "takes hours: cargo xtask soak --agent"]
fn memory_is_flat() -> Result<()> {
    let minutes = std::env::var("LJ_TRACE_SOAK_MINUTES").ok().and_then(|minutes| minutes.parse::<f64>().ok());
    let measured = soak(Duration::from_secs_f64(minutes.unwrap_or(120.0).max(2.0) * 60.0), 2)?;
    let mut table = String::new();
    for (hours, memory) in measured.iter().step_by(measured.len().div_ceil(24)) {
        writeln!(table, "{:7.1} min  {memory:.0} KiB", hours * 60.0)?;
    }
    let slope = Slope::of(&measured[measured.len() / 2..]).context("too short to tell")?;
    let Slope { per_time, error } = slope;
    println!("{table}in the second half: {per_time:+.0} KiB an hour, standard error {error:.0}");
    ensure!(
        slope.may_be_flat(NEGLIGIBLE),
        "the agent takes more and more memory: {per_time:.0} KiB an hour ({error:.0})"
    );
    Ok(())
}
