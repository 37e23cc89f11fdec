//! The packages of the workspace, by what their tests need.

use std::fs;

use anyhow::Result;

use crate::paths;

/// The package of the end-to-end tests.
pub const END_TO_END: &str = "lj-trace-tests";

/// Names of the packages whose tests need neither root nor real programs: all libraries, the agent and the tasks.
pub fn unit_tested() -> Result<Vec<String>> {
    let mut names = ["lj-trace", "lj-trace-common", "lj-trace-layouts", "xtask"].map(str::to_owned).to_vec();
    for entry in fs::read_dir(paths::root().join("crates"))? {
        names.push(format!("lj-trace-{}", entry?.file_name().to_string_lossy()));
    }
    names.sort();
    Ok(names)
}
