//! `cargo xtask bench blockers`: what `lj-trace blockers` costs nginx under load from wrk, by the kernel's own account of its BPF
//! programs (`kernel.bpf_stats_enabled`), and what lj-trace itself uses.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::table::{Table, verdict};
use crate::nginx::Nginx;
use crate::tracer::Tracer;
use crate::usage::cpu_time;
use crate::wrk::Load;

/// What it may cost, as a share of a CPU.
const ASKED: f64 = 0.005;
/// Until what lj-trace does at its start is done.
const SETTLING: Duration = Duration::from_secs(1);

/// What it cost in some stretch of time.
#[derive(Clone, Debug, Default)]
pub struct BlockersCost {
    /// How long that was, in seconds.
    pub seconds: f64,
    /// Time in its programs, by name of their kinds, and how often they ran.
    pub programs: BTreeMap<String, (f64, u64)>,
    /// CPU time of lj-trace itself, in seconds.
    pub own: f64,
    /// CPU time of nginx's worker, in seconds.
    pub worker: f64,
    /// Turns of its event loop.
    pub turns: u64,
    /// Where the programs for waits are, and what they add to any other system call, in seconds.
    pub other_call: (String, f64),
}

impl BlockersCost {
    /// The share of a CPU that its programs took.
    pub fn share(&self) -> f64 {
        self.programs.values().map(|(time, _)| time).sum::<f64>() / self.seconds
    }

    /// The share of a CPU that lj-trace itself took.
    pub fn own_share(&self) -> f64 {
        self.own / self.seconds
    }
}

/// Measures it for so many seconds; [`None`] where this system has no nginx or wrk.
///
/// # Errors
/// If something of it fails.
pub fn measure_blockers(seconds: u64) -> Result<Option<BlockersCost>> {
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let Some(nginx) = Nginx::serving_on(port, "blocking", &[])? else { return Ok(None) };
    let worker = nginx.workers()[0];
    let Some(_load) = Load::start(&format!("http://127.0.0.1:{port}/fast"), seconds + 30)? else { return Ok(None) };
    let mut tracer = Tracer::start(["blockers", "--pid", &worker.to_string(), "--over", "20ms", "--json"])?;
    tracer.wait_until_attached()?;
    sleep(SETTLING);
    let stats = Stats::enable()?;
    let (programs, own, used, began) =
        (runs(tracer.pid())?, cpu_time(tracer.pid())?, cpu_time(worker)?, Instant::now());
    sleep(Duration::from_secs(seconds));
    let mut cost = BlockersCost {
        seconds: began.elapsed().as_secs_f64(),
        own: cpu_time(tracer.pid())? - own,
        worker: cpu_time(worker)? - used,
        ..BlockersCost::default()
    };
    for (name, (time, count)) in runs(tracer.pid())? {
        let before = programs.get(&name).copied().unwrap_or_default();
        cost.programs.insert(name, (time - before.0, count - before.1));
    }
    drop(stats);
    tracer.signal(libc::SIGINT)?;
    let outcome = tracer.wait()?;
    let json: Value = serde_json::from_str(&outcome.stdout).with_context(|| format!("{outcome:?}"))?;
    let process = &json["processes"][0];
    cost.other_call = (
        process["programs_at"].as_str().context("no place of the programs")?.to_owned(),
        process["cost_of_system_call_us"].as_f64().context("no cost of a system call")? / 1e6,
    );
    cost.turns = json["processes"][0]["turns"].as_u64().context("no turns")?;
    Ok(Some(cost))
}

/// Measures it, and prints what comes out.
///
/// # Errors
/// If something of it fails.
pub fn blockers(seconds: u64) -> Result<Option<()>> {
    println!("load average: {}", fs::read_to_string("/proc/loadavg")?.trim());
    let Some(cost) = measure_blockers(seconds)? else { return Ok(None) };
    let mut table = Table::new(["programs", "% of a CPU", "runs a second", "ns each"]);
    for (name, (time, count)) in &cost.programs {
        table.row([
            name.clone(),
            format!("{:.3}", time / cost.seconds * 100.0),
            format!("{:.0}", *count as f64 / cost.seconds),
            format!("{:.0}", time * 1e9 / (*count).max(1) as f64),
        ]);
    }
    table.print();
    println!("nginx's worker used {:.0}% of a CPU", cost.worker / cost.seconds * 100.0);
    println!("lj-trace itself used {:.2}% of a CPU", cost.own_share() * 100.0);
    let (programs_at, call) = &cost.other_call;
    // The kernel's account has the programs alone, not the way to them, which other system calls take as well.
    println!("the programs are at {programs_at}; any other system call takes {:.0} ns more", call * 1e9);
    let share = cost.share();
    verdict("blockers on nginx under wrk", "< 0.5% of a CPU", &format!("{:.2}%", share * 100.0), share < ASKED);
    Ok(Some(()))
}

/// Has the kernel time BPF programs, as long as this lives.
struct Stats(String);

impl Stats {
    const SETTING: &str = "/proc/sys/kernel/bpf_stats_enabled";

    fn enable() -> Result<Self> {
        let before = fs::read_to_string(Self::SETTING)?;
        fs::write(Self::SETTING, "1")?;
        Ok(Self(before.trim().to_owned()))
    }
}

impl Drop for Stats {
    fn drop(&mut self) {
        // It was written a moment ago.
        let _ = fs::write(Self::SETTING, &self.0);
    }
}

/// How long the BPF programs of a process ran, in seconds, and how often, by kind.
fn runs(pid: u32) -> Result<BTreeMap<String, (f64, u64)>> {
    let mut found: BTreeMap<String, (f64, u64)> = BTreeMap::new();
    let mut seen = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fdinfo"))? {
        let Ok(text) = fs::read_to_string(entry?.path()) else { continue };
        let field =
            |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
        let (Some(kind), Some(id)) = (field("prog_type"), field("prog_id")) else { continue };
        // A link has its program's number as well; a program may have several descriptors.
        if field("run_time_ns").is_none() || seen.contains(&id.to_owned()) {
            continue;
        }
        seen.push(id.to_owned());
        let number = |name: &str| field(name).and_then(|value| value.parse::<u64>().ok()).unwrap_or(0);
        let name = match kind {
            // `BPF_PROG_TYPE_TRACEPOINT`, `BPF_PROG_TYPE_PERF_EVENT`, `BPF_PROG_TYPE_TRACING`
            "5" => "waits for events, at their tracepoints",
            "7" => "ticks",
            "26" => "waits for events, switches of threads",
            _ => "others",
        };
        let own = found.entry(name.to_owned()).or_default();
        own.0 += number("run_time_ns") as f64 / 1e9;
        own.1 += number("run_cnt");
    }
    Ok(found)
}
