//! Recordings as jobs of a real systemd, in the sandbox that `lj-trace unit` prints: without root, and in another
//! namespace of processes.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::allocations::Allocations;
use lj_trace_tests::folded::Folded;
use lj_trace_tests::systemd::Systemd;
use lj_trace_tests::tracer::{binary, run};

fn in_workspace(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// A systemd with a workload in it, and the workload's process id there.
fn boot() -> Result<Option<(Systemd, String)>> {
    let Some(systemd) = Systemd::boot(&[&in_workspace("tests/lua/demo.lua")])? else { return Ok(None) };
    systemd.run("systemd-run --unit=demo --property=WorkingDirectory=/run/test luajit demo.lua")?;
    let pid = systemd.run("systemctl show --property=MainPID --value demo")?;
    Ok(Some((systemd, pid)))
}

/// Starts what `lj-trace unit` prints; that ends once recording has begun.
fn start(systemd: &Systemd, options: &str) -> Result<()> {
    systemd.run(&format!("{} unit {options} | sh", systemd.program())).map(drop)
}

fn show(systemd: &Systemd, unit: &str, property: &str) -> Result<String> {
    systemd.run(&format!("systemctl show --property={property} --value {unit}"))
}

fn samples(systemd: &Systemd, file: &str) -> Result<Folded> {
    let path = systemd.path("var/lib/lj-trace").join(file);
    let report = run(["report", &path.to_string_lossy(), "--format", "folded"])?;
    report.expect(0, &[]);
    ensure!(!report.stderr.contains("warning"), "{file} is not complete: {}", report.stderr);
    Folded::parse(&report.stdout)
}

#[test]
fn a_job_records_and_ends_by_itself() -> Result<()> {
    let Some((systemd, pid)) = boot()? else { return Ok(()) };
    start(&systemd, &format!("--pid {pid} --mode all --no-limit --duration 5s"))?;
    let unit = format!("lj-trace-{pid}");
    // It is up only since it records, and it is not root that does.
    let status = show(&systemd, &unit, "StatusText")?;
    ensure!(status.contains(&format!("(pid {pid})")) || status.contains("samples"), "status {status:?}");
    systemd.wait_for(&format!("systemctl show --property=StatusText --value {unit}"), |status| {
        status.contains("samples") && status.contains("allocation events")
    })?;
    let user = systemd.run(&format!("stat --format %u /proc/$(systemctl show --property=MainPID --value {unit})"))?;
    ensure!(user != "0", "it runs as root");
    // Once it has ended with success it is collected.
    systemd.wait_for(&format!("systemctl show --property=LoadState --value {unit}"), |state| state == "not-found")?;
    let journal = systemd.run(&format!("journalctl --unit {unit} --priority info --output cat"))?;
    for said in ["attached in", "the time is over", "Lua complete", "Deactivated successfully"] {
        ensure!(journal.contains(said), "no {said:?} in {journal}");
    }
    // Lines for the journal begin with a priority, which it takes off.
    ensure!(!journal.contains("<6>"), "{journal}");
    ensure!(systemd.run(&format!("journalctl --quiet --unit {unit} --priority warning --output cat"))?.is_empty());
    let folded = samples(&systemd, &format!("lj-trace-{pid}.sysprof.bin"))?;
    ensure!(folded.samples_where(|stack| stack.frames.iter().any(|frame| frame.starts_with("add@demo.lua"))) > 0);
    let stream = systemd.path("var/lib/lj-trace").join(format!("lj-trace-{pid}.memprof.bin"));
    ensure!(Allocations::read(&stream)?.events.len() > 1000);
    Ok(())
}

#[test]
fn a_job_that_is_stopped_leaves_complete_files() -> Result<()> {
    let Some((systemd, pid)) = boot()? else { return Ok(()) };
    start(&systemd, &format!("--pid {pid} --output stopped.bin"))?;
    let unit = format!("lj-trace-{pid}");
    let show_status = format!("systemctl show --property=StatusText --value {unit}");
    systemd.wait_for(&show_status, |status| status.contains("samples"))?;
    systemd.run(&format!("systemctl stop {unit}"))?;
    let journal = systemd.run(&format!("journalctl --unit {unit} --output cat"))?;
    ensure!(journal.contains("stopped by a signal") && journal.contains("Deactivated successfully"), "{journal}");
    ensure!(samples(&systemd, "stopped.bin")?.samples() > 0);
    Ok(())
}

#[test]
fn a_job_that_cannot_record_fails_with_its_reason() -> Result<()> {
    let Some((systemd, _)) = boot()? else { return Ok(()) };
    // Process 1 is systemd itself.
    let outcome = start(&systemd, "--pid 1 --duration 1s");
    ensure!(outcome.is_err(), "there is no LuaJIT in systemd");
    let errors = systemd.run("journalctl --quiet --priority err --output cat --unit lj-trace-1")?;
    ensure!(errors.contains("no LuaJIT VM"), "{errors}");
    Ok(())
}

#[test]
fn the_sandbox_is_tight() -> Result<()> {
    let folder = tempfile::tempdir()?;
    // systemd-analyze wants the program to be there.
    let unit = std::fs::read_to_string(in_workspace("packaging/systemd/lj-trace@.service"))?;
    let unit = unit.replace("/usr/bin/lj-trace", &binary().to_string_lossy());
    let path = folder.path().join("lj-trace@1.service");
    std::fs::write(&path, unit)?;
    let mut analyze = std::process::Command::new("systemd-analyze");
    // 3.0 of 10, where 10 is no protection at all.
    let output = analyze.args(["security", "--offline=true", "--threshold=30", "--no-pager"]).arg(&path).output();
    let output = output.context("cannot run systemd-analyze: run `cargo xtask setup`")?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    println!("{}", said.lines().last().unwrap_or_default());
    ensure!(output.status.success() && said.contains("Overall exposure level"), "{said}");
    Ok(())
}
