//! `cargo xtask demo`: profiles a real program, from nothing to a flame graph.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::run::{Guarded, is_root, run};
use crate::{build, paths, programs, setup};

/// Options of `cargo xtask demo`.
#[derive(clap::Args)]
pub struct Options {
    /// How long to profile, in seconds
    #[arg(long, default_value_t = 5)]
    seconds: u32,
}

/// How many of the busiest functions to print.
const SHOWN: usize = 12;

/// Sets up, builds, profiles `tests/lua/demo.lua` on the distribution's luajit, and shows the result.
pub fn demo(options: &Options) -> Result<()> {
    setup::setup()?;
    let binary = build::build(&build::Options::default())?;
    if !is_root() {
        bail!("profiling needs privileges: run the demo as root");
    }
    let folder = paths::target().join("demo");
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;

    let workload =
        Command::new(programs::LUAJIT).arg("demo.lua").current_dir(paths::lua()).stdout(Stdio::piped()).spawn();
    let mut workload = Guarded(workload.context("cannot start luajit")?);
    let mut ready = String::new();
    let stdout = workload.0.stdout.take().context("the workload's output is not piped")?;
    BufReader::new(stdout).read_line(&mut ready)?;
    if ready != "ready\n" {
        bail!("the workload said {ready:?} instead of \"ready\"");
    }

    let [stream, picture, folded] = ["bin", "svg", "folded"].map(|ending| folder.join(format!("demo.{ending}")));
    let mut command = Command::new(binary);
    command.args(["--force", "--pid", &workload.0.id().to_string(), "--duration", &format!("{}s", options.seconds)]);
    for file in [&stream, &picture, &folded] {
        command.arg("--output").arg(file);
    }
    run(&mut command)?;
    drop(workload);

    print_busiest(&folded)?;
    println!("\nFlame graph, for any browser: {}", picture.display());
    Ok(())
}

/// Prints the Lua functions that took the most time, by their share of the samples.
fn print_busiest(folded: &Path) -> Result<()> {
    let text = std::fs::read_to_string(folded).with_context(|| format!("cannot read {}", folded.display()))?;
    let functions = busiest(&text);
    let total: u64 = functions.iter().map(|(_, samples)| samples).sum();
    if total == 0 {
        bail!("{} has no samples", folded.display());
    }
    println!("\nWhere the CPU time went, by Lua function and the C code that it called ({total} samples):");
    for (name, samples) in functions.iter().take(SHOWN) {
        println!("{:6.1}%  {name}", 100.0 * *samples as f64 / total as f64);
    }
    Ok(())
}

/// The Lua functions that were running, or had called the running C code, with their samples; busiest first. If no Lua
/// function is on the stack, the innermost frame counts instead.
fn busiest(folded: &str) -> Vec<(&str, u64)> {
    let mut samples = std::collections::BTreeMap::new();
    for line in folded.lines() {
        let Some((stack, count)) = line.rsplit_once(' ') else { continue };
        let Ok(count) = count.parse::<u64>() else { continue };
        let mut inwards = stack.rsplit(';');
        let innermost = inwards.clone().next().unwrap_or(stack);
        let function = inwards.find(|frame| frame.contains(".lua")).unwrap_or(innermost);
        *samples.entry(function).or_insert(0) += count;
    }
    let mut functions: Vec<_> = samples.into_iter().collect();
    functions.sort_by_key(|&(name, samples)| (std::cmp::Reverse(samples), name));
    functions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_what_the_lua_functions_caused() {
        let folded = "main;f@a b.lua:2;strlen 2\nmain;f@a b.lua:2;g@a b.lua:3 4\nmain;f@a b.lua:2 3\nmain 1\nbroken\n";
        assert_eq!(busiest(folded), [("f@a b.lua:2", 5), ("g@a b.lua:3", 4), ("main", 1)]);
    }
}
