//! `cargo xtask bench host`: what `lj-trace agent` costs a host with many processes, and one where they come and go.

use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::table::verdict;
use crate::host_agent::{Agent, Intervals};
use crate::programs::{LUAJIT, Program};
use crate::usage::{bpf, cpu_time, memory, proportional_memory};

const MIB: f64 = (1 << 20) as f64;

/// In the first half minute the processes' traces are read.
const SETTLING: Duration = Duration::from_secs(30);

/// What is asked of so many processes: MiB of memory, MiB of maps, a share of a CPU.
fn asked(processes: u32) -> (f64, f64, f64) {
    if processes <= 50 { (64.0, 32.0, 0.02) } else { (128.0, 32.0, 0.03) }
}

/// Measures an agent that records so many processes, each of which pauses for so many milliseconds after each turn of a tenth of a
/// millisecond; then one that becomes busy.
///
/// # Errors
/// The agent or a program fails.
pub fn many(processes: u32, pause: u32, seconds: u32) -> Result<()> {
    let agent = Agent::with_intervals(Intervals::Usual, "")?;
    let own = (1..=processes).map(|number| agent.process(number % 1000, pause, "idle"));
    let own = own.collect::<Result<Vec<_>>>()?;
    let began = Instant::now();
    agent.wait_for(own.len())?;
    let attached = began.elapsed().as_secs_f64();
    sleep(SETTLING);
    let pid = agent.tracer.pid();
    let targets = || own.iter().map(|process| cpu_time(process.pid())).sum::<Result<f64>>();
    let (before, targets_before, since) = (cpu_time(pid)?, targets()?, Instant::now());
    sleep(Duration::from_secs(seconds.into()));
    let elapsed = since.elapsed().as_secs_f64();
    let (share, of_targets) = ((cpu_time(pid)? - before) / elapsed, (targets()? - targets_before) / elapsed);
    let (maps, programs) = bpf(pid)?;
    let (memory, maps) = (proportional_memory(pid)? as f64 / MIB, maps as f64 / MIB);
    let samples = |agent: &Agent| -> Result<f64> { Ok(agent.metrics()?["lj_trace_samples_total"]) };
    let (busy, before) = (agent.process(1, 0, "busy")?, samples(&agent)?);
    let began = Instant::now();
    agent.wait_for(own.len() + 1)?;
    let found = began.elapsed().as_secs_f64();
    drop(busy);
    ensure!(samples(&agent)? >= before, "samples have vanished");
    let (most_memory, most_maps, most_share) = asked(processes);
    println!("{processes} processes at 19 Hz, for {elapsed:.0} s, which use {:.0}% of a core:", of_targets * 100.0);
    println!("attached to all of them after {attached:.2} s; {programs} BPF programs");
    let measured = format!("{memory:.1} MiB");
    verdict("memory (Pss)", &format!("< {most_memory} MiB"), &measured, memory < most_memory);
    let measured = format!("{maps:.1} MiB");
    verdict("BPF maps", &format!("< {most_maps} MiB"), &measured, maps < most_maps);
    let (asked, measured) = (format!("< {}%", most_share * 100.0), format!("{:.2}% of a core", share * 100.0));
    verdict("CPU", &asked, &measured, share < most_share);
    verdict("one more process is recorded after", "< 1 s", &format!("{found:.2} s"), found < 1.0);
    Ok(())
}

/// How a program that lives for so many milliseconds ends well.
fn short_lived(milliseconds: u32, own: &str) -> Result<Child> {
    let luajit = Program::find(LUAJIT).context("the demo's luajit is everywhere")?;
    let program = format!(
        "local ffi = require(\"ffi\") ffi.cdef(\"int usleep(unsigned);\") local s = 0 \
         for turn = 1, {milliseconds} / 10 do for i = 1, 20000 do s = s + i % 7 end ffi.C.usleep(9000) end"
    );
    let mut command = Command::new(&luajit.path);
    command.args(["-e", &program]).stdin(Stdio::null()).env("OTEL_RESOURCE_ATTRIBUTES", own);
    command.spawn().context("cannot start a program")
}

/// What an agent has made of processes that live for a short time.
#[derive(Clone, Debug)]
pub struct ShortLived {
    /// How many there were.
    pub started: usize,
    /// Those that did not end as they should.
    pub harmed: usize,
    /// Those that were recorded.
    pub recorded: f64,
    /// Those that could not be attached to.
    pub failed: f64,
    /// How many were started each second.
    pub rate: f64,
    /// The agent's share of a CPU.
    pub cpu: f64,
    /// The agent's resident memory a third of the time in, and at the end, in bytes.
    pub memory: [f64; 2],
}

/// Starts `rate` processes a second for so many seconds, each of which lives for so many milliseconds.
///
/// # Errors
/// The agent fails, or a program cannot be started.
pub fn come_and_go(rate: u32, milliseconds: u32, seconds: u32) -> Result<ShortLived> {
    come_and_go_with("", rate, milliseconds, seconds)
}

/// The same with `more` lines of configuration.
///
/// # Errors
/// As [`come_and_go`].
pub fn come_and_go_with(more: &str, rate: u32, milliseconds: u32, seconds: u32) -> Result<ShortLived> {
    let agent = Agent::with_intervals(Intervals::Usual, &format!("{more}\n[limits]\ncpu = \"100%\""))?;
    let pid = agent.tracer.pid();
    let (began, before) = (Instant::now(), cpu_time(pid)?);
    let (mut live, mut started, mut harmed, mut early) = (Vec::new(), 0, 0, None);
    let resident = || memory(pid).map(|(_, now)| now as f64 * 1024.0);
    while began.elapsed() < Duration::from_secs(seconds.into()) {
        if began.elapsed().as_secs_f64() * f64::from(rate) >= started as f64 {
            live.push(short_lived(milliseconds, &agent.own)?);
            started += 1;
        }
        live.retain_mut(|child: &mut Child| match child.try_wait() {
            Ok(None) => true,
            Ok(Some(status)) => {
                harmed += usize::from(!status.success());
                false
            }
            Err(_) => false,
        });
        if began.elapsed() >= Duration::from_secs(seconds.into()) / 3 && early.is_none() {
            early = Some(resident()?);
        }
        sleep(Duration::from_millis(1));
    }
    let elapsed = began.elapsed().as_secs_f64();
    let cpu = (cpu_time(pid)? - before) / elapsed;
    for mut child in live {
        harmed += usize::from(!child.wait()?.success());
    }
    let late = resident()?;
    agent.wait_for(0)?;
    let metrics = agent.metrics()?;
    Ok(ShortLived {
        started,
        harmed,
        recorded: metrics["lj_trace_recordings_total"],
        failed: metrics["lj_trace_attach_failures_total"],
        rate: started as f64 / elapsed,
        cpu,
        memory: [early.unwrap_or(late), late],
    })
}

/// Prints what becomes of short-lived processes.
///
/// # Errors
/// As [`come_and_go`].
pub fn short(rate: u32, milliseconds: u32, seconds: u32) -> Result<()> {
    let ShortLived { started, harmed, recorded, failed, rate, cpu, memory } = come_and_go(rate, milliseconds, seconds)?;
    let share = recorded / started as f64;
    println!("{started} processes that live for {milliseconds} ms, {rate:.0} a second:");
    println!("{failed:.0} were gone or refused when they were to be attached to; CPU: {:.1}% of a core", cpu * 100.0);
    verdict("harmed", "none", &harmed.to_string(), harmed == 0);
    verdict("recorded", "all", &format!("{recorded:.0} ({:.1}%)", share * 100.0), share >= 0.99);
    let [early, late] = memory.map(|bytes| bytes / MIB);
    verdict("resident memory", "flat", &format!("{early:.1}, then {late:.1} MiB"), late < early * 1.1 + 2.0);
    Ok(())
}
