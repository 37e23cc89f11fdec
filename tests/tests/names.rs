//! Rows name what they are of: functions and lines are never cut, in files nothing is.

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::programs::{LUAJIT, Program};
use lj_trace_tests::tracer::run;
use lj_trace_tests::workload::Workload;

/// A script in a folder whose path is longer than a row has room for.
#[test]
fn memory_rows_of_a_long_path_have_their_functions_and_lines() -> Result<()> {
    let Some(program) = Program::find(LUAJIT) else { return Ok(()) };
    let folder = tempfile::tempdir()?;
    let long = folder.path().join("releases/20261124-a-name-that-fills-a-row/share/lua/5.1/application/models");
    std::fs::create_dir_all(&long)?;
    let script = long.join("user.lua");
    std::fs::write(&script, include_str!("../lua/names.lua"))?;
    let script = script.to_str().context("no UTF-8")?;
    let workload = Workload::start(&program, script, &[])?;
    let file = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let (pid, text, stream) = (workload.pid().to_string(), file("memory.txt"), file("memory.bin"));
    let arguments = ["--pid", &pid, "--mode", "memprof", "--no-limit", "--duration", "200ms"];
    run(arguments.into_iter().chain(["-o", &text, "-o", &stream]))?.expect(0, &["finished: recorded"]);
    let text = std::fs::read_to_string(text)?;
    for line in [3, 4] {
        let row = format!("  {script}:{line} in load_user@{script}:2\n");
        ensure!(text.contains(&row), "no {row:?} in\n{text}");
    }
    ensure!(!text.contains("..."), "something is cut in\n{text}");
    // What is read by a program is not cut either.
    let report = run(["report", &stream, "--format", "text"])?;
    ensure!(report.stdout.contains(&format!("{script}:4 in load_user@{script}:2\n")), "{}", report.stdout);
    Ok(())
}
