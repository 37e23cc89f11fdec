//! `lj-trace doctor` tells what works, and how to get what does not.

use std::collections::HashMap;

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::programs::{ALL, LUAJIT, Program};
use lj_trace_tests::tracer::{Tracer, exit_code, run};
use lj_trace_tests::workload::Workload;
use serde_json::Value;

const SCRIPT: &str = "standstill.lua";

fn check<'a>(diagnosis: &'a Value, name: &str) -> Result<&'a Value> {
    let mut checks = diagnosis["checks"].as_array().context("no checks")?.iter();
    let is_it = |check: &&Value| check["name"].as_str().is_some_and(|found| found.starts_with(name));
    checks.find(is_it).with_context(|| format!("no check of {name} in {diagnosis:#}"))
}

fn works(diagnosis: &Value) -> Vec<&str> {
    let modes = diagnosis["modes"].as_array().map(Vec::as_slice).unwrap_or_default();
    modes.iter().filter(|mode| mode["works"] == true).filter_map(|mode| mode["mode"].as_str()).collect()
}

#[test]
fn all_is_well_where_the_tests_run() -> Result<()> {
    for program in ALL.into_iter().filter_map(Program::find) {
        let workload = Workload::start(&program, SCRIPT, &[])?;
        let outcome = run(["doctor", "--pid", &workload.pid().to_string(), "--json"])?;
        outcome.expect(0, &[]);
        let diagnosis: Value = serde_json::from_str(&outcome.stdout)?;
        ensure!(diagnosis["well"] == true && works(&diagnosis) == ["sysprof", "memprof", "dump"], "{diagnosis:#}");
        ensure!(check(&diagnosis, "bpf_loop")?["verdict"] == "ok", "{diagnosis:#}");
        ensure!(check(&diagnosis, "BPF sampler")?["verdict"] == "ok", "{diagnosis:#}");
        let vm = check(&diagnosis, "VM at 0x")?["found"].as_str().unwrap_or_default();
        ensure!(vm.contains("fulfils every invariant"), "{vm}");
        let allocator = check(&diagnosis, "allocator")?;
        let plan = allocator["found"].as_str().unwrap_or_default();
        ensure!(allocator["verdict"] == "ok" && plan.contains("(emulated)"), "{}: {plan}", program.name);
        ensure!(plan.contains(&*program.path.file_name().unwrap_or_default().to_string_lossy()), "{plan}");
    }
    Ok(())
}

#[test]
fn the_text_ends_with_a_verdict() -> Result<()> {
    let outcome = run(["doctor"])?;
    outcome.expect(0, &[]);
    let last = outcome.stdout.lines().last().unwrap_or_default();
    ensure!(last.starts_with("all is well"), "{}", outcome.stdout);
    for line in ["kernel", "privileges", "limits", "modes"] {
        ensure!(outcome.stdout.lines().any(|found| found == line), "{}", outcome.stdout);
    }
    Ok(())
}

/// Runs of so many words that two lines have in common.
const ALIKE: usize = 7;

/// What two lines of a text both say.
fn said_twice(text: &str) -> Vec<String> {
    let mut seen = HashMap::new();
    let mut twice = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let words: Vec<&str> = line.split_whitespace().collect();
        for run in words.windows(ALIKE) {
            if seen.insert(run.join(" "), number).is_some_and(|before| before != number) {
                twice.push(run.join(" "));
            }
        }
    }
    twice
}

#[test]
fn no_two_lines_say_the_same() -> Result<()> {
    ensure!(said_twice("a b c d e f g h\nb c d e f g h i") == ["b c d e f g h"]);
    let folder = tempfile::tempdir()?;
    let program = Program::find(LUAJIT).context("the demo's luajit is everywhere")?;
    let workload = Workload::start(&program, SCRIPT, &[])?;
    let (pid, own) = (workload.pid().to_string(), std::process::id().to_string());
    let to_nobody = Tracer::start_as_nobody(folder.path(), &["doctor", "--pid", &pid])?.wait()?;
    for outcome in [run(["doctor", "--pid", &pid])?, run(["doctor", "--pid", &own])?, to_nobody] {
        // What probes are on tells where the arguments of each are.
        let lines: Vec<&str> = outcome.stdout.lines().filter(|line| !line.contains(" +0x")).collect();
        let (text, twice) = (&outcome.stdout, said_twice(&lines.join("\n")));
        ensure!(lines.len() > 10 && twice.is_empty(), "{twice:?} in {text}");
    }
    Ok(())
}

#[test]
fn each_missing_privilege_has_its_fix() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let outcome = Tracer::start_as_nobody(folder.path(), &["doctor", "--json"])?.wait()?;
    outcome.expect(exit_code::PRIVILEGES, &[]);
    let diagnosis: Value = serde_json::from_str(&outcome.stdout)?;
    ensure!(works(&diagnosis).is_empty(), "{diagnosis:#}");
    for name in ["CAP_BPF", "CAP_PERFMON", "CAP_SYS_PTRACE"] {
        let check = check(&diagnosis, name)?;
        let fix = check["fix"].as_str().unwrap_or_default();
        ensure!(
            check["verdict"] == "problem" && fix.contains("sudo") && fix.contains("AmbientCapabilities"),
            "{check:#}"
        );
    }
    let program = Program::find(LUAJIT).context("the demo's luajit is everywhere")?;
    let workload = Workload::start(&program, SCRIPT, &[])?;
    let outcome = Tracer::start_as_nobody(folder.path(), &["doctor", "--pid", &workload.pid().to_string()])?.wait()?;
    outcome.expect(exit_code::PRIVILEGES, &[]);
    ensure!(outcome.stdout.contains("not permitted to look at process"), "{}", outcome.stdout);
    Ok(())
}

#[test]
fn a_process_without_luajit_is_a_problem() -> Result<()> {
    let own = std::process::id().to_string();
    let outcome = run(["doctor", "--pid", &own])?;
    outcome.expect(exit_code::NO_LUAJIT, &[]);
    ensure!(outcome.stdout.contains("no LuaJIT VM in process") && outcome.stdout.contains("lj-trace list"));
    run(["doctor", "--pid", "4000000"])?.expect(exit_code::NO_PROCESS, &["no process 4000000"]);
    Ok(())
}
