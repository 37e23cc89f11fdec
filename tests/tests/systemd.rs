//! Recordings as jobs of a real systemd, in the sandbox that `lj-trace unit` prints: without root, and in another
//! namespace of processes.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::allocations::Allocations;
use lj_trace_tests::folded::Folded;
use lj_trace_tests::skips;
use lj_trace_tests::systemd::Systemd;
use lj_trace_tests::tracer::{binary, run};

fn in_workspace(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// A systemd with a workload in it, and the workload's process id there.
fn boot() -> Result<Option<(Systemd, String)>> {
    let Some(systemd) = Systemd::boot(&[&in_workspace("tests/lua/demo.lua"), &in_workspace("tests/lua/hoard.lua")])?
    else {
        return Ok(None);
    };
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
    start(&systemd, &format!("--pid {pid} --mode all --no-limit --duration 10s --verbose"))?;
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
    for said in ["attached in", "finished: recorded", "Lua complete", "Deactivated successfully"] {
        ensure!(journal.contains(said), "no {said:?} in {journal}");
    }
    // Lines for the journal begin with a priority, which it takes off.
    ensure!(!journal.contains("<6>"), "{journal}");
    let warnings = systemd.run(&format!("journalctl --quiet --unit {unit} --priority warning --output cat"))?;
    // A busy machine may have lost something.
    ensure!(warnings.lines().all(|line| line.starts_with("LOST: ")), "{warnings}");
    let folded = samples(&systemd, &default_file(&systemd, &pid, "sysprof")?)?;
    ensure!(folded.samples_where(|stack| stack.frames.iter().any(|frame| frame.starts_with("Index:add@demo.lua"))) > 0);
    let stream = systemd.path("var/lib/lj-trace").join(default_file(&systemd, &pid, "memprof")?);
    ensure!(Allocations::read(&stream)?.events.len() > 1000);
    Ok(())
}

/// The stream of this kind whose name was not chosen: it has the process and the time in it.
fn default_file(systemd: &Systemd, pid: &str, kind: &str) -> Result<String> {
    for entry in std::fs::read_dir(systemd.path("var/lib/lj-trace"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.starts_with(&format!("lj-trace-{pid}-2")) && name.ends_with(&format!("Z.{kind}.bin")) {
            return Ok(name);
        }
    }
    anyhow::bail!("no {kind} stream of process {pid}")
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

/// A program that allocates as fast as it can, and a memory profile of it, with memory held by whom as a report. Gives
/// the unit's name.
fn record_hoard(systemd: &Systemd, tables: u32, options: &str) -> Result<String> {
    let hoard = format!("sh -c 'exec luajit hoard.lua {tables} > rounds'");
    systemd.run(&format!("systemd-run --unit=hoard --property=WorkingDirectory=/run/test {hoard}"))?;
    let pid = show(systemd, "hoard", "MainPID")?;
    start(systemd, &format!("--pid {pid} --mode memprof --no-limit {options}"))?;
    Ok(format!("lj-trace-{pid}"))
}

/// Whether systemd has the controllers that limits need: within a control group of somebody else's it may not.
fn limits_work(systemd: &Systemd, unit: &str) -> Result<bool> {
    let works = show(systemd, unit, "MemoryCurrent")?.parse::<u64>().is_ok();
    if !works {
        skips::skip("this machine gives no memory and CPU controllers to a systemd in namespaces");
    }
    Ok(works)
}

/// What a job has said, once it has ended with success.
fn journal(systemd: &Systemd, unit: &str) -> Result<String> {
    systemd.wait_for(&format!("systemctl show --property=LoadState --value {unit}"), |state| state == "not-found")?;
    let journal = systemd.run(&format!("journalctl --unit {unit} --output cat"))?;
    ensure!(journal.contains("Deactivated successfully"), "{journal}");
    Ok(journal)
}

/// How many events of allocations a job has taken by now, as it says itself, and the CPU time that it has used, in seconds.
fn progress(systemd: &Systemd, unit: &str) -> Result<(f64, f64)> {
    let status = show(systemd, unit, "StatusText")?;
    let events =
        status.split_once(" allocation events").and_then(|(before, _)| before.rsplit(' ').next()?.parse().ok());
    let stat = systemd.run(&format!("cat /proc/$(systemctl show --property=MainPID --value {unit})/stat"))?;
    // As in proc(5), in hundredths of a second.
    let fields: Vec<&str> = stat.rsplit_once(')').context("no command in stat")?.1.split_whitespace().collect();
    let time =
        |index: usize| fields.get(index).and_then(|field| field.parse::<f64>().ok()).context("stat is too short");
    Ok((events.unwrap_or(0.0), (time(11)? + time(12)?) / 100.0))
}

#[test]
fn a_job_with_too_little_cpu_time_counts_what_it_loses() -> Result<()> {
    const TABLES: u32 = 300_000;
    /// The buffer has 16 MiB, an event 48 bytes and a header of 8.
    const ROOM: f64 = (16 << 20) as f64 / 56.0;
    let Some((systemd, _)) = boot()? else { return Ok(()) };
    let unit = record_hoard(&systemd, TABLES, "--output slow.bin")?;
    if !limits_work(&systemd, &unit)? {
        return Ok(());
    }
    // How fast it is, with all the CPU time that it wants: it has used some before there were events.
    let mut first = (0.0, 0.0);
    let mut now = (0.0, 0.0);
    systemd.wait_for("true", |_| {
        now = progress(&systemd, &unit).unwrap_or_default();
        if first.0 == 0.0 {
            first = now;
        }
        now.0 > first.0 + 500_000.0 && now.1 > first.1 + 0.1
    })?;
    let each = (now.1 - first.1) / (now.0 - first.0);
    systemd.run(&format!("systemctl set-property --runtime {unit} CPUQuota=0.1% CPUQuotaPeriodSec=1s"))?;
    let (_, used) = progress(&systemd, &unit)?;
    let rounds = |text: &str| text.lines().filter(|line| *line == "round").count();
    let before = rounds(&systemd.run("cat /run/test/rounds")?);
    // However fast the program is on this machine: it goes on until it has made more tables than the buffer has room for and
    // lj-trace can have taken, were it three times as fast. Those that are freed come on top. Its first round had begun before.
    systemd.wait_for("cat /run/test/rounds", |text| {
        let made = rounds(text).saturating_sub(before + 1) as f64 * f64::from(TABLES);
        progress(&systemd, &unit).is_ok_and(|(_, now)| {
            let taken = 3.0 * (now - used) / each;
            println!("made {made:.0}, taken at most {taken:.0} in {:.2} s, {:.2} us each", now - used, each * 1e6);
            made > ROOM + taken
        })
    })?;
    systemd.run(&format!("systemctl set-property --runtime {unit} CPUQuota= CPUQuotaPeriodSec="))?;
    systemd.run(&format!("systemctl stop {unit}"))?;
    let journal = journal(&systemd, &unit)?;
    ensure!(journal.contains("LOST: ") && journal.contains("allocation events lost"), "{journal}");
    ensure!(!journal.contains("events were handed over"), "{journal}");
    let stream = systemd.path("var/lib/lj-trace").join("slow.bin");
    ensure!(Allocations::read(&stream)?.events.len() > 1000);
    Ok(())
}

#[test]
fn a_job_whose_memory_is_used_up_ends_with_complete_files() -> Result<()> {
    let Some((systemd, _)) = boot()? else { return Ok(()) };
    let unit = record_hoard(&systemd, 3_000_000, "--duration 10m --output held.bin --output held.svg --weight held")?;
    let status = format!("systemctl show --property=StatusText --value {unit}");
    systemd.wait_for(&status, |status| status.contains("allocation events"))?;
    // Room for what it has, and for its tables to grow a few times.
    if !limits_work(&systemd, &unit)? {
        return Ok(());
    }
    let used: u64 = show(&systemd, &unit, "MemoryCurrent")?.parse()?;
    systemd.run(&format!("systemctl set-property --runtime {unit} MemoryMax={}", 2 * used))?;
    let journal = journal(&systemd, &unit)?;
    ensure!(journal.contains("stopped before memory ran out") && journal.contains("MemoryMax"), "{journal}");
    let folder = systemd.path("var/lib/lj-trace");
    ensure!(Allocations::read(&folder.join("held.bin"))?.events.len() > 1000);
    ensure!(std::fs::read_to_string(folder.join("held.svg"))?.contains("hoard.lua"));
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

/// The text of a packaged unit, for this program.
fn packaged(unit: &str, program: &str) -> Result<String> {
    let text = std::fs::read_to_string(in_workspace("packaging/systemd").join(unit))?;
    Ok(text.replace("/usr/bin/lj-trace", program))
}

#[test]
fn the_agent_runs_beside_a_recording() -> Result<()> {
    let Some((systemd, pid)) = boot()? else { return Ok(()) };
    let folder = systemd.path("run/systemd/system");
    std::fs::create_dir_all(&folder)?;
    for unit in ["lj-trace-agent.service", "lj-trace@.service"] {
        // Addresses are those of this machine.
        let text = packaged(unit, systemd.program())?.replace(" agent\n", " agent --metrics off\n");
        std::fs::write(folder.join(unit), text)?;
    }
    systemd.run("systemctl daemon-reload && systemctl start lj-trace-agent")?;
    // Both have /var/lib/lj-trace, and neither takes it from the other.
    systemd.run(&format!("systemctl start lj-trace@{pid}"))?;
    systemd.wait_for("systemctl show --property=StatusText --value lj-trace-agent", |status| {
        status.starts_with("1 processes, ") && !status.contains(", 0 samples")
    })?;
    systemd.run("systemctl reload lj-trace-agent")?;
    let show_journal = "journalctl --unit lj-trace-agent --output cat";
    systemd.wait_for(show_journal, |journal| journal.contains("reloaded: CPU at 19 Hz"))?;
    let user = |unit: &str| {
        systemd.run(&format!("stat --format %u /proc/$(systemctl show --property=MainPID --value {unit})"))
    };
    let (own, other) = (user("lj-trace-agent")?, user(&format!("lj-trace@{pid}"))?);
    ensure!(own != "0" && own == other, "users {own} and {other}");
    systemd.run(&format!("systemctl stop lj-trace-agent lj-trace@{pid}"))?;
    let journal = systemd.run(show_journal)?;
    ensure!(journal.contains("Deactivated successfully") && !journal.contains("cannot"), "{journal}");
    let files = systemd.run("find /var/lib/private/lj-trace")?;
    ensure!(files.contains("/service=demo/") && files.contains(".sysprof.bin"), "{files}");
    Ok(())
}

/// What `systemd-analyze` says of a file.
fn analyze(arguments: &[&str], path: &Path) -> Result<String> {
    let output = std::process::Command::new("systemd-analyze").args(arguments).arg(path).output();
    let output = output.context("cannot run systemd-analyze: run `cargo xtask setup`")?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{arguments:?}: {said}");
    Ok(said)
}

#[test]
fn the_sandboxes_are_tight() -> Result<()> {
    let folder = tempfile::tempdir()?;
    for (unit, name) in
        [("lj-trace@.service", "lj-trace@1.service"), ("lj-trace-agent.service", "lj-trace-agent.service")]
    {
        // systemd-analyze wants the program to be there.
        let path = folder.path().join(name);
        std::fs::write(&path, packaged(unit, &binary().to_string_lossy())?)?;
        // 3.0 of 10, where 10 is no protection at all.
        let said = analyze(&["security", "--offline=true", "--threshold=30", "--no-pager"], &path)?;
        println!("{}", said.lines().last().unwrap_or_default());
        ensure!(said.contains("Overall exposure level"), "{said}");
        let said = analyze(&["verify", "--man=no"], &path)?;
        ensure!(!said.contains(name), "{said}");
    }
    Ok(())
}
