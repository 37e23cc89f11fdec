//! The programs with which people open profiles, for the tests: Go's pprof, Chromium, speedscope, the Firefox profiler,
//! DuckDB.
//!
//! If one is not available, its tests say so and do not run: an unreachable registry is no fault of lj-trace.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::engines::DUCKDB;
use crate::run::run;
use crate::{apt, paths};

/// Commands, with their packages. The names are those in `LJ_TRACE_TEST_WITHOUT`.
const COMMANDS: [(&str, &str); 2] = [("go", "golang-go"), ("chromium", "chromium")];
/// The name for all packages from the npm registry.
const NPM: &str = "npm-packages";
/// The lists of these packages, with the versions of all their dependencies.
const LISTS: [&str; 2] = ["package.json", "package-lock.json"];

/// The folder of the npm packages, outside the repository.
pub fn npm_folder() -> PathBuf {
    paths::cache().join("consumers")
}

/// The missing consumers.
pub fn missing() -> Vec<&'static str> {
    let commands = COMMANDS.iter().filter(|(command, _)| paths::find_command(command).is_none());
    let others = [(NPM, has_npm_packages()), (DUCKDB.name, DUCKDB.is_here())];
    let others = others.into_iter().filter(|(_, is_here)| !is_here).map(|(name, _)| name);
    commands.map(|(command, _)| *command).chain(others).collect()
}

fn has_npm_packages() -> bool {
    let read = |folder: PathBuf| std::fs::read(folder.join(LISTS[1])).ok();
    let wanted = read(paths::root().join("tests/consumers"));
    npm_folder().join("node_modules").is_dir() && wanted.is_some() && read(npm_folder()) == wanted
}

/// Installs what is missing. Reports what is not available, and continues without it.
pub fn install() {
    for name in missing() {
        if let Err(error) = install_one(name) {
            eprintln!("setup: {name} cannot be had, so the tests that need it do not run: {error:#}");
        }
    }
}

fn install_one(name: &str) -> Result<()> {
    match COMMANDS.iter().find(|(command, _)| *command == name) {
        Some((_, package)) => {
            apt::candidate(package).with_context(|| format!("this system has no package {package}"))?;
            eprintln!("setup: installing {package}");
            apt::install(&[(*package).to_owned()])
        }
        None if name == DUCKDB.name => DUCKDB.install(),
        None => install_npm_packages(),
    }
}

fn install_npm_packages() -> Result<()> {
    paths::find_command("npm").context("there is no npm")?;
    let (folder, partial) = (npm_folder(), npm_folder().with_extension("partial"));
    eprintln!("setup: installing what opens profiles in a browser into {}", folder.display());
    for leftover in [&folder, &partial] {
        if leftover.exists() {
            std::fs::remove_dir_all(leftover).with_context(|| format!("cannot remove {}", leftover.display()))?;
        }
    }
    std::fs::create_dir_all(&partial).with_context(|| format!("cannot make {}", partial.display()))?;
    for list in LISTS {
        std::fs::copy(paths::root().join("tests/consumers").join(list), partial.join(list))?;
    }
    let mut npm = Command::new("npm");
    npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel", "error"]).current_dir(&partial);
    run(&mut npm)?;
    // It gets its name only once it is complete.
    std::fs::rename(&partial, &folder).with_context(|| format!("cannot make {}", folder.display()))
}
