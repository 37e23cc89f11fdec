//! `lj-trace jit --duration` says what being interpreted costs: the program itself measures the same.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::capabilities::SYS_PTRACE;
use lj_trace_tests::chance::of_share;
use lj_trace_tests::programs::{ALL, LUAJIT, Program};
use lj_trace_tests::source::line_of;
use lj_trace_tests::tracer::{Tracer, run};
use lj_trace_tests::workload::Workload;
use serde_json::Value;

const SCRIPT: &str = "jit_cost.lua";

fn rows(time: &Value) -> &[Value] {
    time["rows"].as_array().map_or(&[], Vec::as_slice)
}

/// Shares have one denominator: samples add up to all, and what is shown of them to 100.0%.
fn check_sums(time: &Value) -> Result<f64> {
    ensure!(time["withheld"].is_null() && time["lost"].as_array().is_some_and(Vec::is_empty), "{time:#}");
    let all = time["samples"].as_u64().context("no samples")?;
    let sum: u64 = rows(time).iter().filter_map(|row| row["samples"].as_u64()).sum();
    let tenths: i64 =
        rows(time).iter().filter_map(|row| row["percent"].as_f64()).map(|it| (it * 10.0).round() as i64).sum();
    ensure!(sum == all && tenths == 1000, "{sum} of {all}, {tenths}: {time:#}");
    Ok(all as f64)
}

/// The samples of rows with this reason, at a line that is marked.
fn samples(time: &Value, why: &str, mark: &str) -> f64 {
    let line = line_of(SCRIPT, mark);
    let is_it = |row: &&Value| {
        let part = &row["interpreted"];
        part["why"] == why && part["place"]["source"] == SCRIPT && part["place"]["line"] == line
    };
    rows(time).iter().filter(is_it).filter_map(|row| row["samples"].as_f64()).sum()
}

#[test]
fn the_time_in_the_interpreter_is_put_down_to_its_reasons() -> Result<()> {
    for program in ALL.into_iter().filter_map(Program::find) {
        let mut workload = Workload::start(&program, SCRIPT, &["1"])?;
        let folder = tempfile::tempdir()?;
        let page = folder.path().join("cost.html");
        let (pid, html) = (workload.pid().to_string(), page.display().to_string());
        let words = ["jit", "--pid", &pid, "--duration", "60s", "--rate", "997", "--annotate", SCRIPT];
        let mut tracer = Tracer::start(words.iter().chain(&["-o", "json:-", "-o", &html]))?;
        tracer.wait_until_attached()?;
        workload.go()?;
        let told = workload.report()?;
        // Ctrl-C ends the watching, and the report is of what there is.
        tracer.signal(libc::SIGINT)?;
        let (ended, outcome) = (Instant::now(), tracer.wait()?);
        outcome.expect(0, &[]);
        ensure!(ended.elapsed() < Duration::from_secs(20), "it took {:?} to end", ended.elapsed());
        let dump: Value = serde_json::from_str(&outcome.stdout)?;
        let time = &dump["time"];
        let all = check_sums(time)?;
        let truth: BTreeMap<&str, f64> = told
            .iter()
            .filter_map(|line| line.split_once(' '))
            .filter_map(|(name, it)| Some((name, it.parse().ok()?)))
            .collect();
        let compiled = rows(time).iter().find(|row| row["kind"] == "compiled");
        for (name, found) in [
            ("compiled", compiled.and_then(|row| row["samples"].as_f64()).unwrap_or(0.0)),
            ("blacklisted", samples(time, "blacklisted", "blacklisted") + samples(time, "turned-off", "turned off")),
            ("vararg", samples(time, "vararg", "vararg")),
        ] {
            let (share, truth) = (found / all, truth[name]);
            // What chance makes of so many samples, and what the clock itself takes.
            let tolerance = of_share(truth, all) + 0.02;
            ensure!((share - truth).abs() < tolerance, "{}: {name} {share} instead of {truth}: {time:#}", program.name);
            println!("{}: {name} {share:.3}, measured {truth:.3}, {all} samples", program.name);
        }
        let blacklisted = rows(time).iter().find(|row| row["interpreted"]["why"] == "blacklisted").context("none")?;
        let reason = blacklisted["interpreted"]["abort"]["reason"]["name"].as_str();
        // The header of a function that compiling is turned off for becomes that of a blacklisted one when it is hot.
        ensure!(["CJITOFF", "BLACKL"].map(Some).contains(&reason), "{blacklisted:#}");
        let lines = &dump["vms"][0]["jit_compiler"]["files"][0]["lines"];
        for (mark, state) in [("blacklisted", "blacklisted"), ("compiled", "compiled")] {
            let line = line_of(SCRIPT, mark).to_string();
            ensure!(lines[&line]["state"] == state, "{mark}: {lines:#}");
        }
        let page = std::fs::read_to_string(page)?;
        for text in ["<td>    for i = 1, n do --@ blacklisted</td>", ">blacklisted</td>", ">turned off</td>", "jit.off"]
        {
            ensure!(page.contains(text), "no {text:?} in {page}");
        }
    }
    Ok(())
}

/// Without the privileges for samples it says so, and tells the rest.
#[test]
fn what_can_be_known_without_samples_is_told() -> Result<()> {
    let program = Program::find(LUAJIT).context("the demo's luajit is everywhere")?;
    let workload = Workload::start(&program, SCRIPT, &[])?;
    let (folder, pid) = (tempfile::tempdir()?, workload.pid().to_string());
    let words = ["jit", "--pid", &pid, "--duration", "200ms", "--json"];
    let outcome = Tracer::start_as_nobody_with(&[SYS_PTRACE], folder.path(), &words)?.wait()?;
    outcome.expect(0, &["goes on without samples", "CAP_BPF"]);
    let own = run(words.iter().chain(&["--no-samples"]))?;
    own.expect(0, &[]);
    for outcome in [outcome, own] {
        let dump: Value = serde_json::from_str(&outcome.stdout)?;
        ensure!(dump["time"].is_null() && dump["no_samples"].is_string(), "{dump:#}");
        let blacklisted = dump["vms"][0]["jit_compiler"]["blacklisted"].as_array().context("no list")?;
        ensure!(blacklisted.len() == 1, "{dump:#}");
    }
    Ok(())
}
