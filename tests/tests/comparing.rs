//! `lj-trace report --diff`: each change has its error, and what could be chance is marked.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::programs::{LUAJIT, Program};
use lj_trace_tests::tracer::{exit_code, run};
use lj_trace_tests::workload::Workload;

/// A program that does the same all the time: each of ten functions has a tenth of it.
const STEADY: &str = "
jit.off()
local functions = {}
for i = 1, 10 do
  functions[i] = loadstring(('\\n'):rep(i) .. 'return function() local x = 0 for i = 1, 2000 do x = x + i % 7 end return x end', '=steady')()
end
print('ready') io.stdout:flush()
while true do for i = 1, 10 do functions[i]() end end
";

fn record(folder: &Path, pid: u32, name: &str, duration: &str) -> Result<String> {
    let stream = folder.join(name).to_string_lossy().into_owned();
    let pid = pid.to_string();
    let arguments = ["--pid", &pid, "--rate", "199", "--duration", duration, "-o", &stream];
    run(arguments)?.expect(0, &["finished: recorded"]);
    Ok(stream)
}

#[test]
fn short_recordings_of_a_steady_program_differ_by_chance_alone() -> Result<()> {
    let Some(program) = Program::find(LUAJIT) else { return Ok(()) };
    let folder = tempfile::tempdir()?;
    let script = folder.path().join("steady.lua");
    std::fs::write(&script, STEADY)?;
    let workload = Workload::start(&program, script.to_str().context("no UTF-8")?, &[])?;
    let old = record(folder.path(), workload.pid(), "old.bin", "500ms")?;
    let new = record(folder.path(), workload.pid(), "new.bin", "400ms")?;
    let text = run(["report", "--diff", &old, &new])?;
    text.expect(0, &[]);
    let rows: Vec<&str> = text.stdout.lines().filter(|line| line.contains('±') && line.contains("@steady:")).collect();
    ensure!(rows.len() >= 5, "{}", text.stdout);
    // In one of 20 cases one function's change is taken for more than chance. Each function has a row in two tables, with the same
    // samples. Three functions are that in one of some ten thousand cases.
    let certain = rows.iter().filter(|row| !row.contains(" ~  "));
    let certain: BTreeSet<&str> =
        certain.filter_map(|row| row.split("@steady:").nth(1)?.split_whitespace().next()).collect();
    ensure!(certain.len() <= 2, "{certain:?} are no chance:\n{}", text.stdout);
    ensure!(text.stdout.contains("~ could be chance"), "{}", text.stdout);
    Ok(())
}

#[test]
fn nothing_is_compared_with_nothing() -> Result<()> {
    let Some(program) = Program::find(LUAJIT) else { return Ok(()) };
    let folder = tempfile::tempdir()?;
    let script = folder.path().join("idle.lua");
    std::fs::write(&script, "print('ready') io.stdout:flush() io.read()")?;
    let workload = Workload::start(&program, script.to_str().context("no UTF-8")?, &[])?;
    let empty = record(folder.path(), workload.pid(), "empty.bin", "100ms")?;
    let outcome = run(["report", "--diff", &empty, &empty])?;
    outcome.expect(exit_code::DATA, &["nothing to compare", "0 samples"]);
    Ok(())
}
