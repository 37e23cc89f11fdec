//! `lj-trace agent` with a budget for memory profiles: whose allocations it records, what that costs it, and that it stops when it may
//! use no more.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use lj_trace_process::clocks::cpu_time;
use lj_trace_tests::benches::host;
use lj_trace_tests::host_agent::Agent;
use lj_trace_tests::patience;
use lj_trace_tests::usage::let_work;

/// Waits until the allocations of so many processes are recorded.
fn wait_for(agent: &Agent, processes: f64) -> Result<()> {
    let start = Instant::now();
    loop {
        let metrics = agent.metrics()?;
        if metrics["lj_trace_processes_with_allocations"] == processes {
            return Ok(());
        }
        ensure!(start.elapsed() < patience(40), "{processes} processes: {metrics:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn only_of_those_that_do_something_and_within_the_budget() -> Result<()> {
    const BUDGET: f64 = 0.02;
    let agent = Agent::start("memory = \"2%\"\nmemory-interval = \"2s\"")?;
    let idle = (1..=4).map(|number| agent.process(number, 1000, "idle")).collect::<Result<Vec<_>>>()?;
    let busy = agent.process(9, 0, "busy")?;
    wait_for(&agent, 1.0)?;
    let cost = |agent: &Agent| anyhow::Ok(agent.metrics()?["lj_trace_target_cost_seconds_total{profile=\"memory\"}"]);
    // Its first seconds cost more: what a window costs has yet to be found out.
    let_work(busy.pid(), 5.0)?;
    let (before, used) = (cost(&agent)?, cpu_time(busy.pid()));
    let_work(busy.pid(), 5.0)?;
    let (after, now) = (cost(&agent)?, cpu_time(busy.pid()));
    let used = now.zip(used).map_or(0.0, |(now, before)| now - before);
    let share = (after - before) / used;
    ensure!(share > 0.0 && share <= BUDGET, "{:.2}% of {used:.1} s", share * 100.0);
    let metrics = agent.metrics()?;
    ensure!(metrics["lj_trace_processes"] == 5.0, "{metrics:?}");
    ensure!(
        metrics["lj_trace_processes_with_allocations"] == 1.0,
        "those that sleep cost the agent nothing: {metrics:?}"
    );
    // A process is one, however much of it is recorded.
    ensure!(metrics["lj_trace_recordings_total"] == 5.0, "{metrics:?}");
    drop((idle, busy));
    agent.wait_for(0)?;
    let metrics = agent.metrics()?;
    ensure!(
        metrics["lj_trace_recordings_total"] == 5.0 && metrics["lj_trace_recordings_failed_total"] == 0.0,
        "{metrics:?}"
    );
    ensure!(metrics["lj_trace_processes_with_allocations"] == 0.0, "{metrics:?}");
    ensure!(cost(&agent)? >= after, "what ended recordings have cost stays counted");
    Ok(())
}

#[test]
fn processes_that_live_for_a_moment_cost_no_attaching() -> Result<()> {
    // To attach to an allocator takes half a second of CPU time: five times as much as there is, ten times a second.
    let outcome = host::come_and_go_with("memory = \"1%\"", 10, 300, 6)?;
    ensure!(outcome.harmed == 0 && outcome.failed == 0.0 && outcome.recorded > 0.0, "{outcome:?}");
    ensure!(outcome.cpu < 0.5, "{outcome:?}");
    Ok(())
}

/// What is still under way when the rules change must not come back by them.
#[test]
fn a_reload_that_leaves_all_out_ends_all() -> Result<()> {
    let agent = Agent::start("memory = \"5%\"")?;
    let processes = (1..=6).map(|number| agent.process(number, 1, "many")).collect::<Result<Vec<_>>>()?;
    let start = Instant::now();
    while agent.metrics()?["lj_trace_processes_with_allocations"] == 0.0 {
        ensure!(start.elapsed() < patience(40), "{:?}", agent.metrics()?);
        std::thread::sleep(Duration::from_millis(20));
    }
    agent.reload(&format!("{}\n[[drop]]\nlabel = \"service.name=many\"\n", agent.with("memory = \"5%\"")))?;
    agent.wait_for(0)?;
    wait_for(&agent, 0.0)?;
    let recorded = agent.metrics()?["lj_trace_recordings_total"];
    std::thread::sleep(Duration::from_secs(5));
    let metrics = agent.metrics()?;
    ensure!(metrics["lj_trace_processes"] == 0.0 && metrics["lj_trace_recordings_total"] == recorded, "{metrics:?}");
    drop(processes);
    Ok(())
}

#[test]
fn one_that_may_use_next_to_no_cpu_time_gives_allocations_up() -> Result<()> {
    let mut agent = Agent::start("memory = \"5%\"\nlimits = { cpu = \"0.1%\" }")?;
    let busy = agent.process(1, 0, "busy")?;
    wait_for(&agent, 1.0)?;
    agent.tracer.wait_until("from now on the allocations of 0 of 1 processes")?;
    wait_for(&agent, 0.0)?;
    // Its samples go on.
    let_work(busy.pid(), 2.0)?;
    let before = agent.metrics()?["lj_trace_samples_total"];
    let_work(busy.pid(), 2.0)?;
    let metrics = agent.metrics()?;
    ensure!(metrics["lj_trace_samples_total"] > before && metrics["lj_trace_processes"] == 1.0, "{metrics:?}");
    agent.tracer.signal(libc::SIGTERM)?;
    agent.tracer.wait()?.expect(0, &["limits.cpu allows more"]);
    Ok(())
}
