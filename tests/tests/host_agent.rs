//! `lj-trace agent`: processes that come and go, rules that change, sums that add up from the sample to the file.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::chance::of_share;
use lj_trace_tests::folded::Folded;
use lj_trace_tests::host_agent::Agent;
use lj_trace_tests::own_process::OwnProcess;
use lj_trace_tests::patience;
use lj_trace_tests::programs::{LUAJIT, Program};
use lj_trace_tests::tracer::{Tracer, run};
use lj_trace_tests::usage::let_work;

fn luajit() -> Result<Program> {
    Program::find(LUAJIT).context("the demo's luajit is everywhere")
}

/// The numbers of the functions in a profile: `leaf_007@alike_007:1` is number 7's.
fn numbers(folded: &Folded) -> BTreeMap<u32, u64> {
    let mut numbers = BTreeMap::new();
    for stack in &folded.stacks {
        let number = stack.frames.iter().find_map(|frame| frame.split_once("@alike_")?.1.get(..3)?.parse().ok());
        if let Some(number) = number {
            *numbers.entry(number).or_default() += stack.samples;
        }
    }
    numbers
}

#[test]
fn processes_come_and_go_and_all_samples_are_where_they_belong() -> Result<()> {
    let agent = Agent::start("")?;
    let busy = agent.process(1, 0, "first")?;
    let leaving = agent.process(2, 0, "second")?;
    let idle = agent.process(3, 50, "idle")?;
    agent.wait_for(3)?;
    [busy.pid(), leaving.pid()].into_iter().try_for_each(|pid| let_work(pid, 1.0))?;
    drop(leaving);
    agent.wait_for(2)?;
    let later = agent.process(4, 0, "later")?;
    agent.wait_for(3)?;
    let_work(later.pid(), 2.0)?;
    // Nobody is dropped by a configuration that cannot be read, and nobody else by one that can.
    agent.reload("rate = ")?;
    sleep(Duration::from_millis(500));
    agent.wait_for(3)?;
    agent.reload(&format!("{}\n[[drop]]\nlabel = \"service.name=first\"\n", agent.with("")))?;
    agent.wait_for(2)?;
    let_work(later.pid(), 1.0)?;
    agent.reload(&agent.with(""))?;
    agent.wait_for(3)?;
    let metrics = agent.metrics()?;
    ensure!(metrics["lj_trace_recordings_failed_total"] == 0.0, "{metrics:?}");
    let sink = |what: &str| {
        let own = metrics.iter().filter(|(name, _)| name.starts_with(&format!("lj_trace_sink_{what}")));
        own.map(|(_, value)| *value).sum::<f64>()
    };
    let (recorded, kept) = (sink("recorded_total"), sink("sent_total") + sink("queued") + sink("dropped_total"));
    ensure!(recorded > 0.0 && recorded == kept, "{recorded} recorded, {kept} accounted for: {metrics:?}");
    ensure!(recorded <= metrics["lj_trace_samples_total"], "{metrics:?}");

    agent.tracer.signal(libc::SIGTERM)?;
    let Agent { tracer, folder, port, own } = agent;
    let outcome = tracer.wait()?;
    outcome.expect(0, &["not reloaded", "line 1"]);
    let agent = Agent { tracer: Tracer::start(["--version"])?, folder, port, own };
    let all = agent.stored(None)?;
    ensure!(all.samples() as f64 >= recorded, "{} stored, {recorded} were recorded before", all.samples());
    let mut sum = 0;
    for (service, number, least) in [("first", 1, 10), ("second", 2, 5), ("idle", 3, 0), ("later", 4, 20)] {
        let stored = agent.stored(Some(service))?;
        let found = numbers(&stored);
        ensure!(found.keys().all(|other| *other == number), "{service} has another's functions: {found:?}");
        let named = found.get(&number).copied().unwrap_or(0);
        // Nine of ten, and as many fewer as chance makes of some dozen samples.
        let share = 0.9 - of_share(0.9, stored.samples() as f64);
        let is_named = least == 0 || named as f64 >= share * stored.samples() as f64;
        ensure!(named >= least && is_named, "{service}: {named} of {}", stored.samples());
        sum += stored.samples();
    }
    ensure!(sum == all.samples(), "{sum} of {}", all.samples());
    drop((busy, idle, later));
    Ok(())
}

#[test]
fn what_would_be_recorded_is_listed() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let own = format!("test.run={}", folder.path().display());
    let program = luajit()?;
    let one = OwnProcess::start(&program, 1, 50, "shop", &own)?;
    let other = OwnProcess::start(&program, 2, 50, "till", &own)?;
    sleep(Duration::from_millis(500));
    let select = format!("--select={own}");
    let outcome = run(["agent", "--dry-run", "--json", &select, "--drop", "service.name=till"])?;
    outcome.expect(0, &[]);
    let plan: serde_json::Value = serde_json::from_str(&outcome.stdout)?;
    let recorded = plan["recorded"].as_array().context("a list")?;
    ensure!(recorded.len() == 1 && recorded[0]["pid"] == one.pid() && recorded[0]["service"] == "shop", "{plan}");
    ensure!(recorded[0]["attributes"]["luajit.fork"] == "LuaJIT", "{plan}");
    let left_out = plan["left_out"].as_array().context("a list")?;
    let why = left_out.iter().find(|own| own["pid"] == other.pid()).context(outcome.stdout.clone())?;
    ensure!(why["why"].as_str().is_some_and(|why| why.contains("`drop` rule")), "{why}");
    let text = run(["agent", "--dry-run", &select])?;
    ensure!(text.stdout.contains("shop") && text.stdout.contains("till"), "{}", text.stdout);
    Ok(())
}

#[test]
fn an_agent_that_may_use_little_records_fewer_and_says_so() -> Result<()> {
    let mut agent = Agent::start("limits = { memory = \"1M\" }")?;
    let processes = (1..=3).map(|number| agent.process(number, 20, "many")).collect::<Result<Vec<_>>>()?;
    agent.tracer.wait_until("processes are recorded no more")?;
    sleep(Duration::from_millis(500));
    let metrics = agent.metrics()?;
    ensure!(metrics["lj_trace_processes"] < processes.len() as f64, "{metrics:?}");
    agent.tracer.signal(libc::SIGTERM)?;
    agent.tracer.wait()?.expect(0, &["limits.memory allows more"]);
    Ok(())
}

#[test]
fn a_reload_that_changes_rates_or_sinks_goes_on() -> Result<()> {
    let mut agent = Agent::start("")?;
    let busy = agent.process(1, 0, "first")?;
    agent.wait_for(1)?;
    // All begins anew, at the same address.
    agent.reload(&agent.with("rate = 29"))?;
    agent.tracer.wait_until("CPU at 29 Hz")?;
    agent.wait_for(1)?;
    // Another sink beside the folder that is in use. Nobody listens there.
    let spool = agent.folder.path().join("spool");
    let sink = format!("[[sink]]\nkind = \"otlp\"\nurl = \"http://127.0.0.1:1\"\nspool = \"{}\"\n", spool.display());
    agent.reload(&format!("{}\n{sink}", agent.with("rate = 29")))?;
    agent.tracer.wait_until("reloaded: ")?;
    let_work(busy.pid(), 2.0)?;
    let start = Instant::now();
    let value = |metrics: &BTreeMap<String, f64>, what: &str| {
        metrics.get(&format!("lj_trace_sink_{what}{{sink=\"otlp\"}}")).copied().unwrap_or(0.0)
    };
    loop {
        let metrics = agent.metrics()?;
        let (recorded, spooled) = (value(&metrics, "recorded_total"), value(&metrics, "spooled"));
        if spooled > 0.0 {
            ensure!(spooled <= recorded, "{metrics:?}");
            break;
        }
        ensure!(start.elapsed() < patience(20), "{metrics:?}");
        sleep(Duration::from_millis(100));
    }
    agent.tracer.signal(libc::SIGTERM)?;
    agent.tracer.wait()?.expect(0, &["beginning anew", "otlp: "]);
    Ok(())
}
