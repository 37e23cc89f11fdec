//! `cargo xtask matrix`: tests all available LuaJITs, and writes docs/matrix.md from the results.

mod cell;
mod page;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context as _, Result, bail};

use crate::packages::END_TO_END;
use crate::programs::Scope;
use crate::run::is_root;
use crate::toolchain::{Target, host_cargo};
use crate::{aarch64, build, paths, programs, setup, variants};
use cell::OfMachine;
use page::Page;

/// How the matrix is made.
#[derive(clap::Args)]
pub struct Options {
    /// Test in an emulated machine of this kind
    #[arg(long, value_enum)]
    arch: Option<Target>,
}

/// Runs all cells and writes the page.
pub fn matrix(options: &Options) -> Result<()> {
    let path = paths::root().join("docs/matrix.md");
    let mut page = Page::read(&fs::read_to_string(&path).unwrap_or_default());
    let write = |page: &Page| {
        fs::write(&path, page.text()).with_context(|| format!("cannot write {}", path.display()))?;
        eprintln!("wrote {}", path.display());
        anyhow::Ok(())
    };
    match options.arch {
        Some(Target::Aarch64) => {
            let mut cells = OfMachine::default();
            let result = aarch64::matrix(|line| cells.take(line));
            let cells = cells.end();
            // Without any, there was no machine to run them in.
            if !cells.is_empty() {
                page.replace_arm64(&cells);
                write(&page)?;
            }
            result
        }
        None => {
            let (output, ignored) = on_this_machine()?;
            page.replace(&cell::of_output(&output), &ignored);
            write(&page)?;
            if !output.contains("test result: ok") {
                bail!("some cells failed: see above, and {}", path.display());
            }
            Ok(())
        }
    }
}

/// Runs the cells. Returns the tests' output, and the names of those that `cargo xtask test` leaves out.
fn on_this_machine() -> Result<(String, Vec<String>)> {
    setup::setup_for(Scope::Matrix)?;
    let binary = build::build(&build::Options::default())?;
    variants::build_for(Scope::Matrix, None)?;
    if !is_root() {
        bail!("the tests attach to other processes: run `cargo xtask matrix` as root");
    }
    let output = run_tests(&["--include-ignored", "--show-output"], &binary)?;
    let list = run_tests(&["--list", "--ignored"], &binary)?;
    let ignored = list.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect();
    Ok((output, ignored))
}

/// Runs the test program and returns its output, which is also printed.
fn run_tests(arguments: &[&str], binary: &Path) -> Result<String> {
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
