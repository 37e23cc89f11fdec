//! Processes with very many mappings, VMs or coroutines: nothing is left out, and it takes no longer than that many need.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::attach_time::quickest;
use lj_trace_tests::programs::{LUAJIT, Program};
use lj_trace_tests::tracer::run;
use lj_trace_tests::workload::Workload;
use serde_json::Value;

const SCRIPT: &str = "many.lua";

fn many(kind: &str, count: usize) -> Result<Workload> {
    let program = Program::find(LUAJIT).context("the demo's luajit is everywhere")?;
    Workload::start(&program, SCRIPT, &[kind, &count.to_string()])
}

fn dump(workload: &Workload, more: &[&str]) -> Result<(String, Duration)> {
    let (pid, began) = (workload.pid().to_string(), Instant::now());
    let outcome = run(["dump", "--pid", &pid].iter().chain(more))?;
    outcome.expect(0, &[]);
    Ok((outcome.stdout, began.elapsed()))
}

fn listed(pid: u32) -> Result<Value> {
    let listing: Value = serde_json::from_str(&run(["list", "--json"])?.stdout)?;
    let process = listing["processes"].as_array().into_iter().flatten().find(|process| process["pid"] == pid);
    Ok(process.with_context(|| format!("{listing:#}"))?.clone())
}

#[test]
fn mappings_are_not_read_one_by_one() -> Result<()> {
    /// The kernel has 65,530 as its limit (`vm.max_map_count`).
    const COUNT: usize = 60_000;
    /// Each look at all of them takes some 30 ms, and attaching looked 26 times.
    const LONGER: Duration = Duration::from_millis(700);
    let (mut few, mut many) = (many("mappings", 10)?, many("mappings", COUNT)?);
    few.go()?;
    let expected = quickest(&few)?;
    few.kill()?;
    ensure!(listed(many.pid())?["vms"].as_array().is_some_and(|vms| vms.len() == 1));
    many.go()?;
    let took = quickest(&many)?;
    println!("attached in {expected:?}, with {COUNT} mappings in {took:?}");
    ensure!(took < expected + LONGER, "{took:?} instead of {expected:?}");
    many.kill()
}

#[test]
fn a_thousand_vms_are_listed_and_dumped() -> Result<()> {
    /// Beside that of the script.
    const COUNT: usize = 1100;
    let mut workload = many("vms", COUNT)?;
    let listed = listed(workload.pid())?;
    ensure!(listed["vms"].as_array().is_some_and(|vms| vms.len() == COUNT + 1), "{listed:#}");
    let (text, took) = dump(&workload, &["--json"])?;
    println!("dumped in {took:?}");
    let dump: Value = serde_json::from_str(&text)?;
    let vms = dump["vms"].as_array().context("no VMs")?;
    ensure!(vms.len() == COUNT + 1, "{}", vms.len());
    let is_whole = |vm: &&Value| {
        let waits = |coroutine: &Value| coroutine["frames"][0]["function"] == "coroutine.yield";
        let all = vm["coroutines"].as_array().map(Vec::as_slice).unwrap_or_default();
        vm["complete"] == true && vm["left_out"] == 0 && all.iter().filter(|one| waits(one)).count() == 1
    };
    ensure!(vms.iter().filter(is_whole).count() == COUNT, "{dump:#}");
    workload.kill()
}

#[test]
fn coroutines_are_all_dumped() -> Result<()> {
    const COUNT: usize = 200_000;
    /// Each takes some 3 us, and took 20 before they were read together.
    const EACH: Duration = Duration::from_micros(50);
    let mut workload = many("coroutines", COUNT)?;
    let (text, took) = dump(&workload, &[])?;
    println!("{COUNT} coroutines in {took:?}");
    let line = format!("{COUNT} coroutines 0x");
    ensure!(text.contains(&line), "no {line} in {text}");
    ensure!(text.contains(&format!("{} coroutines\n", COUNT + 1)) && text.lines().count() < 100, "{text}");
    ensure!(took < lj_trace_tests::patience(1) + EACH * COUNT as u32, "{took:?}");
    let (text, _) = dump(&workload, &["--json", "--locals"])?;
    let dump: Value = serde_json::from_str(&text)?;
    let all = dump["vms"][0]["coroutines"].as_array().context("no coroutines")?;
    ensure!(all.len() == COUNT + 1 && dump["vms"][0]["left_out"] == 0, "{}", all.len());
    // Each has variables of its own.
    let item = |coroutine: &Value| Some(coroutine["frames"][1]["locals"][0]["value"].as_str()?.to_owned());
    let items: HashSet<String> = all.iter().filter_map(item).filter(|value| value.starts_with("\"item ")).collect();
    ensure!(items.len() == COUNT, "{}", items.len());
    workload.kill()
}

#[test]
fn a_text_of_many_stacks_stays_short() -> Result<()> {
    const COUNT: usize = 20_000;
    let mut workload = many("stacks", COUNT)?;
    let (text, took) = dump(&workload, &[])?;
    println!("{COUNT} stacks in {took:?}");
    ensure!(text.lines().count() < 10_000, "{} lines", text.lines().count());
    let last = text.lines().last().unwrap_or_default();
    ensure!(last.contains("more stacks of") && last.contains("--json shows them"), "{last}");
    workload.kill()
}
