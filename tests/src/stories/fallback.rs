//! The JIT gave up: a hot function makes a closure in its loop, so it is never compiled.

use anyhow::{Context as _, Result};

use super::Teller;
use crate::programs::{LUAJIT, Program};
use crate::workload::Workload;

/// Tells it. Leaves `interpreted.svg`, `compiled.svg` and `fallback-diff.svg`.
///
/// # Errors
/// If something in it fails.
pub fn fallback(teller: &Teller) -> Result<Option<()>> {
    let program = Program::find(LUAJIT).context("the demo's luajit is everywhere")?;
    let start = |variant| Workload::start(&program, "stories/fallback.lua", &[variant]);

    teller.say("A hot function, and the JIT compiler is on. Is the function compiled?");
    teller.record_cpu(start("slow")?.pid(), "interpreted")?;
    teller.run("report interpreted.bin")?;
    teller.say("It is not: its loop makes a closure. With the closure made once, outside of the loop:");
    teller.record_cpu(start("fixed")?.pid(), "compiled")?;
    teller.run("report compiled.bin")?;
    teller.run("report --diff interpreted.bin compiled.bin -o fallback-diff.svg -o text:-")?;
    teller.show(&["interpreted.svg", "fallback-diff.svg"]);
    Ok(Some(()))
}
