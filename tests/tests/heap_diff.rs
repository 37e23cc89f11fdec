//! `lj-trace heap --diff` finds what has grown, and nothing that has not: what it says of types and of paths adds up to the
//! growth of the heap.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::heap::HeapView;
use lj_trace_tests::programs::{LUAJIT, Program, TARANTOOL};
use lj_trace_tests::tracer::run;
use lj_trace_tests::workload::Workload;
use serde_json::Value;

/// Has a store that grows and is reached on another path meanwhile.
const MOVES: &str = "heap_moves.lua";
/// Leaks while it runs.
const LEAK: &str = "heap_leak.lua";

/// What is written down of a change in the paths, one by one: the path, and the bytes of its own objects.
fn paths(vm: &Value) -> Vec<(&str, i64)> {
    let rows = vm["paths"].as_array().into_iter().flatten();
    rows.filter_map(|row| Some((row["path"].as_str()?, row["own_bytes"].as_i64()?))).collect()
}

fn sum(rows: &Value) -> i64 {
    rows.as_array().into_iter().flatten().filter_map(|row| row["bytes"].as_i64()).sum()
}

/// What has changed between two snapshots, once it adds up.
fn diff(before: &Path, after: &Path) -> Result<Value> {
    let (before, after) = (before.to_string_lossy(), after.to_string_lossy());
    let outcome = run(["heap", &after, "--diff", &before, "--json"])?;
    outcome.expect(0, &[]);
    let json: Value = serde_json::from_str(&outcome.stdout)?;
    let vm = json["vms"][0].clone();
    let number = |name: &str| vm[name].as_i64().with_context(|| format!("no {name}"));
    let (total, own_blocks) = (number("total")?, sum(&vm["overhead"]));
    let by_type = sum(&vm["types"]) + own_blocks + number("unaccounted")?;
    let garbage = vm["garbage"]["bytes"].as_i64().context("no garbage")?;
    let of_paths: i64 = paths(&vm).iter().map(|(_, bytes)| bytes).sum();
    let by_path = of_paths + garbage + own_blocks + number("unaccounted_by_paths")?;
    ensure!([by_type, by_path] == [total; 2], "by type {by_type}, by path {by_path}, of {total} bytes");
    ensure!(number("unaccounted")? == number("unaccounted_by_paths")?, "{vm:#}");
    ensure!(vm["by_identity"] == true, "the objects are not known");
    Ok(vm)
}

fn save(workload: &Workload, file: &Path) -> Result<()> {
    let (pid, file) = (workload.pid().to_string(), file.to_string_lossy());
    run(["heap", "--pid", &pid, "--pause", "--output", &file])?.expect(0, &["; exact"]);
    Ok(())
}

#[test]
fn what_is_reached_on_another_path_has_not_moved() -> Result<()> {
    for name in [LUAJIT, TARANTOOL] {
        let Some(program) = Program::find(name) else { continue };
        let folder = tempfile::tempdir()?;
        let (before, after) = (folder.path().join("before.heap.gz"), folder.path().join("after.heap.gz"));
        let mut workload = Workload::start(&program, MOVES, &["20000"])?;
        save(&workload, &before)?;
        // What is on the stack of a coroutine on a stack is no garbage.
        let outcome = run(["heap", &before.to_string_lossy(), "--json"])?;
        let garbage = HeapView::parse(&outcome.stdout)?.garbage();
        ensure!(garbage <= 2, "{name}: all garbage was collected, but {garbage} objects are");
        workload.go()?;
        workload.report()?;
        save(&workload, &after)?;
        let vm = diff(&before, &after)?;
        ensure!(vm["unaccounted"] == 0, "both are exact, but {} bytes are not accounted for", vm["unaccounted"]);
        // 2000 entries have come, and nothing has gone.
        let paths = paths(&vm);
        let of_store: i64 =
            paths.iter().filter(|(path, _)| path.starts_with("globals.aka")).map(|(_, bytes)| bytes).sum();
        let shrunk: Vec<_> = paths.iter().filter(|(_, bytes)| *bytes < -4096).collect();
        ensure!(shrunk.is_empty(), "{name}: {shrunk:?}");
        ensure!((2000 * 100..2000 * 400).contains(&of_store), "{name}: {of_store} bytes in {paths:?}");
        let of_traces: i64 =
            paths.iter().filter(|(path, _)| path.contains("(trace)")).map(|(_, bytes)| bytes.abs()).sum();
        ensure!(of_traces < 64 << 10, "{name}: {of_traces} bytes in {paths:?}");
    }
    Ok(())
}

#[test]
fn what_is_freed_and_made_again_adds_up() -> Result<()> {
    let program = Program::find(LUAJIT).context("the demo's luajit is everywhere")?;
    let folder = tempfile::tempdir()?;
    let mut workload = Workload::start(&program, LEAK, &["20"])?;
    workload.go()?;
    // In the middle of its work there is garbage, and the path of much changes.
    let files = ["1", "2", "3"].map(|name| folder.path().join(format!("{name}.heap.gz")));
    files.iter().try_for_each(|file| save(&workload, file))?;
    for pair in files.windows(2) {
        diff(&pair[0], &pair[1])?;
    }
    Ok(())
}
