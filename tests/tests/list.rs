//! `lj-trace list` finds every LuaJIT process of this host, and nothing else.

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::nginx::Nginx;
use lj_trace_tests::programs::{ALL, LUAJIT, LUAJIT2, Program, TARANTOOL};
use lj_trace_tests::slower;
use lj_trace_tests::source::{definition_of, line_of};
use lj_trace_tests::tracer::{Tracer, run};
use lj_trace_tests::workload::Workload;
use serde_json::Value;

const SCRIPT: &str = "standstill.lua";

fn list() -> Result<Value> {
    let outcome = run(["list", "--json"])?;
    outcome.expect(0, &[]);
    Ok(serde_json::from_str(&outcome.stdout)?)
}

fn process(listing: &Value, pid: u32) -> Option<&Value> {
    listing["processes"].as_array()?.iter().find(|process| process["pid"] == pid)
}

#[test]
fn tells_what_each_process_is_and_does() -> Result<()> {
    let programs: Vec<Program> = ALL.into_iter().filter_map(Program::find).collect();
    let start = |program: &Program| Workload::start(program, SCRIPT, &[]);
    let workloads: Vec<Workload> = programs.iter().map(start).collect::<Result<_>>()?;
    let listing = list()?;
    for (program, workload) in programs.iter().zip(&workloads) {
        let process =
            process(&listing, workload.pid()).with_context(|| format!("no {} in {listing:#}", program.name))?;
        let fork = match program.name {
            LUAJIT2 => "OpenResty's LuaJIT",
            TARANTOOL => "Tarantool's LuaJIT",
            _ => "LuaJIT",
        };
        let [vm] = process["vms"].as_array().context("no VMs")?.as_slice() else { anyhow::bail!("{process:#}") };
        ensure!(vm["fork"] == fork && vm["version"] == "LuaJIT 2.1.0-beta3", "{process:#}");
        ensure!(vm["gc64"] == (program.name != TARANTOOL) && vm["jit"] == "on", "{process:#}");
        let (heap, rss) = (vm["heap"].as_u64().unwrap_or(0), process["rss"].as_u64().unwrap_or(0));
        ensure!(10_000 < heap && heap < rss && rss < 1 << 30, "{process:#}");
        let doing = &vm["doing"];
        let function = format!("leaf@{SCRIPT}:{}", definition_of(SCRIPT, "leaf"));
        ensure!(doing["function"] == function && doing["line"] == line_of(SCRIPT, "waits"), "{process:#}");
        ensure!(doing["state"] == "CFUNC" && doing["source"] == SCRIPT, "{process:#}");
        ensure!(process["arguments"].as_array().is_some_and(|words| words.contains(&SCRIPT.into())), "{process:#}");
    }
    // This test has no Lua in it.
    ensure!(process(&listing, std::process::id()).is_none(), "{listing:#}");
    Ok(())
}

#[test]
fn prints_a_table() -> Result<()> {
    let program = Program::find(LUAJIT).context("the demo's luajit is everywhere")?;
    let workload = Workload::start(&program, SCRIPT, &[])?;
    let outcome = run(["list"])?;
    outcome.expect(0, &[]);
    let pid = workload.pid().to_string();
    let row = outcome.stdout.lines().find(|line| line.split_whitespace().next() == Some(&pid));
    let row = row.with_context(|| outcome.stdout.clone())?;
    for part in ["luajit", "LuaJIT 2.1.0-beta3", "yes", "CFUNC in leaf@standstill.lua"] {
        ensure!(row.contains(part), "no {part} in {row}");
    }
    Ok(())
}

#[test]
fn a_host_full_of_other_processes_takes_no_time() -> Result<()> {
    // This process is as large as a busy server, and has no Lua in it: it is passed over for the code that it runs.
    let program = Program::find(LUAJIT).context("the demo's luajit is everywhere")?;
    let workload = Workload::start(&program, SCRIPT, &[])?;
    // An emulated machine fetches files for seconds: there it is held against the same without the ballast.
    let without = if slower() > 1 { list()?["milliseconds"].as_f64().context("no time")? } else { 0.0 };
    let ballast = std::hint::black_box(vec![1_u8; 256 << 20]);
    let listing = list()?;
    drop(ballast);
    let took = listing["milliseconds"].as_f64().context("no time")?;
    let looked_at = listing["looked_at"].as_u64().context("no count")?;
    println!("{looked_at} processes in {took:.0} ms, {without:.0} ms without the ballast");
    ensure!(process(&listing, workload.pid()).is_some(), "{listing:#}");
    // Much less; but other tests' processes may have to be read from the disk.
    let limit = (1000.0 * (looked_at as f64).max(5.0)).max(1.5 * without);
    ensure!(took < limit, "{took} ms for {looked_at} processes, {without} ms without the ballast");
    Ok(())
}

#[test]
fn counts_what_it_may_not_look_at() -> Result<()> {
    let program = Program::find(LUAJIT).context("the demo's luajit is everywhere")?;
    let workload = Workload::start(&program, SCRIPT, &[])?;
    let folder = tempfile::tempdir()?;
    let outcome = Tracer::start_as_nobody(folder.path(), &["list", "--json"])?.wait()?;
    outcome.expect(0, &[]);
    let listing: Value = serde_json::from_str(&outcome.stdout)?;
    ensure!(listing["not_permitted"].as_u64().is_some_and(|count| count > 0), "{listing:#}");
    ensure!(process(&listing, workload.pid()).is_none(), "{listing:#}");
    let outcome = Tracer::start_as_nobody(folder.path(), &["list"])?.wait()?;
    ensure!(outcome.stdout.contains("more could not be looked at: that takes root"), "{}", outcome.stdout);
    Ok(())
}

/// The processes of a listing, by what they use of the CPU.
#[test]
fn the_busiest_come_first_with_their_roles() -> Result<()> {
    let program = Program::find(LUAJIT).context("the demo's luajit is everywhere")?;
    let idle = Workload::start(&program, SCRIPT, &[])?;
    let mut busy = Workload::start(&program, SCRIPT, &[])?;
    busy.go()?;
    let nginx = Nginx::start(1)?;
    let listing = list()?;
    let all = listing["processes"].as_array().context("no processes")?;
    let shares: Vec<f64> = all.iter().filter_map(|process| process["cpu"].as_f64()).collect();
    ensure!(shares.is_sorted_by(|a, b| a >= b) && !shares.is_empty(), "{shares:?}");
    let place =
        |pid: u32| all.iter().position(|process| process["pid"] == pid).with_context(|| format!("{pid}: {all:#?}"));
    ensure!(place(busy.pid())? < place(idle.pid())?, "{all:#?}");
    let cpu = |pid: u32| process(&listing, pid).and_then(|process| process["cpu"].as_f64());
    // Others may have nearly all of the CPU while it is looked at.
    ensure!(cpu(busy.pid()).is_some_and(|cpu| cpu > 0.0 && cpu < 110.0), "{all:#?}");
    ensure!(cpu(idle.pid()).is_some_and(|cpu| cpu < 1.0), "{all:#?}");
    ensure!(process(&listing, busy.pid()).is_some_and(|process| process["role"].is_null()), "{all:#?}");
    if let Some(nginx) = nginx {
        let role = |pid: u32| process(&listing, pid).map(|process| process["role"].clone());
        ensure!(role(nginx.workers()[0]) == Some("worker".into()), "{all:#?}");
        ensure!(role(nginx.pid()).is_none_or(|role| role == "master"), "{all:#?}");
    }
    Ok(())
}
