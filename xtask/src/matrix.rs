//! `cargo xtask matrix`: tests all available LuaJITs, and writes docs/matrix.md from the results.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use anyhow::{Context as _, Result, bail};

use crate::packages::END_TO_END;
use crate::programs::Scope;
use crate::run::is_root;
use crate::toolchain::host_cargo;
use crate::{build, paths, programs, setup, variants};

/// The names of the tests, in the order of their columns.
const MODES: [&str; 3] = ["sysprof", "memprof", "overhead"];

/// The text above the table.
const HEAD: &str = "# Which LuaJITs are tested

`cargo xtask matrix` writes this page from the results of the tests in `tests/tests/matrix.rs`; do not edit it by hand. \
Each cell is one test of one mode of lj-trace on a real process. The results of lj-trace are compared with what the \
workload in the process measured about itself:

- *CPU profile*: the share of each of the functions of `tests/lua/truth.lua`, in 3 seconds of CPU time at 999 Hz. A \
share may be off by 0.3 percentage points plus four standard deviations of a share estimated from that number of \
samples. At least 99.5 % of the Lua stacks and 99 % of the native stacks must be complete.
- *Memory profile*: every event of every line and C function of `tests/lua/memory.lua`, with its sizes; the heap must \
balance to the byte.
- *At 5 %*: `--overhead 5%` for 3 seconds of `tests/lua/bounded.lua`: the share of each line, within three percentage \
points plus twice the stated error; and the total, within 15 %. `cargo xtask bench bounded` measures more exactly.
- *A VM for each of 4 threads*: the samples of every thread match its own CPU time (within four standard deviations). \
All its tables are recorded, both below the root and in the stream of its own VM, and nowhere else.

`cargo xtask test` runs only the cells with an asterisk.

";

/// Runs all cells and writes the page.
pub fn matrix() -> Result<()> {
    setup::setup_for(Scope::Matrix)?;
    let binary = build::build(&build::Options::default())?;
    variants::build_for(Scope::Matrix)?;
    if !is_root() {
        bail!("the tests attach to other processes: run `cargo xtask matrix` as root");
    }
    let output = run_tests(&["--include-ignored", "--show-output"], &binary)?;
    let list = run_tests(&["--list", "--ignored"], &binary)?;
    let ignored: Vec<&str> = list.lines().filter_map(|line| line.strip_suffix(": test")).collect();
    let rows = rows(&cells(&output), &ignored);
    let page = paths::root().join("docs/matrix.md");
    std::fs::write(&page, page_of(&rows)).with_context(|| format!("cannot write {}", page.display()))?;
    eprintln!("wrote {}", page.display());
    if !output.contains("test result: ok") {
        bail!("some cells failed: see above, and {}", page.display());
    }
    Ok(())
}

/// Runs the test program and returns its output, which is also printed.
fn run_tests(arguments: &[&str], binary: &std::path::Path) -> Result<String> {
    let mut cargo = host_cargo("test")?;
    cargo.args(["--package", END_TO_END, "--test", "end_to_end", "--", "matrix::", "--test-threads=1"]).args(arguments);
    cargo.env("RUST_LIB_BACKTRACE", "0").env("LJ_TRACE_BIN", binary);
    cargo.env("LJ_TRACE_TEST_WITHOUT", programs::missing().join(",")).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = cargo.spawn().context("cannot run cargo test")?;
    let mut output = String::new();
    for line in BufReader::new(child.stdout.take().context("standard output is not piped")?).lines() {
        let line = line?;
        println!("{line}");
        // Rows are modules of the test file.
        output.push_str(&line.replace("matrix::", ""));
        output.push('\n');
    }
    child.wait()?;
    if !output.contains("test result:") && !output.contains(": test") {
        bail!("the tests cannot be run");
    }
    Ok(output)
}

/// The result of one test.
#[derive(Debug, Default, PartialEq)]
struct Cell {
    passed: bool,
    title: String,
    builds: Vec<String>,
    figures: String,
    /// Differences from what other builds show.
    notes: Vec<String>,
}

/// The results by test name, from the output of libtest and of the tests.
fn cells(output: &str) -> BTreeMap<String, Cell> {
    let mut cells: BTreeMap<String, Cell> = BTreeMap::new();
    let mut current = None;
    for line in output.lines() {
        if let Some(name) = line.strip_prefix("---- ").and_then(|line| line.strip_suffix(" stdout ----")) {
            current = Some(name.to_owned());
        } else if let Some((key, value)) = line.strip_prefix("cell: ").and_then(|line| line.split_once(": "))
            && let Some(name) = &current
        {
            let cell = cells.entry(name.clone()).or_default();
            match key {
                "title" => cell.title = value.to_owned(),
                "build" => cell.builds.push(value.to_owned()),
                "figures" => cell.figures = value.to_owned(),
                "note" => cell.notes.push(value.to_owned()),
                _ => {}
            }
        }
    }
    // The list at the end: elsewhere, a program's standard error may separate a test's name from its verdict.
    let failed = output.rsplit_once("\nfailures:\n").map_or("", |(_, names)| names);
    let failed: Vec<&str> = failed.lines().filter_map(|line| line.strip_prefix("    ")).collect();
    for (name, cell) in &mut cells {
        cell.passed = !cell.title.is_empty() && !failed.contains(&name.as_str());
    }
    cells
}

/// The rows of the table: title, builds, and a text for each mode.
fn rows(cells: &BTreeMap<String, Cell>, ignored: &[&str]) -> Vec<[String; 5]> {
    let mut rows: BTreeMap<&str, [String; 5]> = BTreeMap::new();
    for (name, cell) in cells {
        let Some((_, mode)) = name.split_once("::") else { continue };
        let Some(column) = MODES.iter().position(|known| *known == mode) else { continue };
        let row = rows.entry(&cell.title).or_insert_with(|| [&cell.title, "-", "-", "-", "-"].map(str::to_owned));
        if !cell.builds.is_empty() {
            row[1] = cell.builds.join("<br>");
        }
        let state = match (cell.passed, cell.figures.is_empty()) {
            (true, false) => "passed",
            (true, true) => "not available here",
            (false, _) => "**failed**",
        };
        let mark = if ignored.contains(&name.as_str()) { "" } else { " *" };
        row[2 + column] = format!("`{name}`{mark}: {state}");
        for text in [&cell.figures].into_iter().chain(&cell.notes).filter(|text| !text.is_empty()) {
            row[2 + column].push_str("<br>");
            row[2 + column].push_str(text);
        }
    }
    rows.into_values().collect()
}

fn page_of(rows: &[[String; 5]]) -> String {
    let mut page = HEAD.to_owned();
    page.push_str(
        "| program | LuaJIT, as lj-trace proves it | CPU profile | memory profile | at 5 % |\n|---|---|---|---|---|\n",
    );
    for row in rows {
        // Writing to a string cannot fail.
        let _ = writeln!(page, "| {} |", row.join(" | "));
    }
    let cells = || rows.iter().flat_map(|row| &row[2..]).filter(|cell| *cell != "-");
    let passed = cells().filter(|cell| cell.contains(": passed")).count();
    let _ = writeln!(page, "\n{passed} of {} cells passed.", cells().count());
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
test a::memprof ... FAILED
test a::sysprof ... ok

successes:

---- a::sysprof stdout ----
cell: title: Some `a`
cell: build: LuaJIT like 2.1: new
cell: figures: 12 samples


successes:
    a::sysprof

failures:

---- a::memprof stdout ----
cell: title: Some `a`

failures:
    a::memprof

test result: FAILED. 1 passed; 1 failed
";

    #[test]
    fn reads_results() {
        let cells = cells(OUTPUT);
        assert!(cells["a::sysprof"].passed && !cells["a::memprof"].passed);
        assert_eq!(cells["a::sysprof"].builds, ["LuaJIT like 2.1: new"]);
        let rows = rows(&cells, &["a::memprof"]);
        assert_eq!(
            rows,
            [[
                "Some `a`",
                "LuaJIT like 2.1: new",
                "`a::sysprof` *: passed<br>12 samples",
                "`a::memprof`: **failed**",
                "-"
            ]
            .map(str::to_owned)]
        );
        assert!(page_of(&rows).ends_with("1 of 2 cells passed.\n"));
    }
}
