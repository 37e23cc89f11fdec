//! Which line leaks, and what keeps it: a server that keeps a note of every session that fails.

use anyhow::{Context as _, Result};

use super::Teller;
use crate::programs::{LUAJIT, Program};
use crate::workload::Workload;

/// Tells it. Leaves `leak.txt`, `leak.svg` and `heap.txt`.
///
/// # Errors
/// If something in it fails.
pub fn leak(teller: &Teller) -> Result<Option<()>> {
    let program = Program::find(LUAJIT).context("the demo's luajit is everywhere")?;
    let workload = Workload::start(&program, "stories/leak.lua", &[])?;
    let (pid, seconds) = (workload.pid(), teller.seconds);

    teller.say("A server's memory grows and grows. What is allocated and never freed?");
    teller.run(&format!(
        "--pid {pid} --mode memprof --no-limit --duration {seconds}s --weight held -o leak.bin -o leak.txt -o leak.svg"
    ))?;
    teller.read("leak.txt")?;
    teller.show(&["leak.svg"]);
    teller.say("And what is there of it by now, and what keeps it alive?");
    teller.run(&format!("heap --pid {pid} --pause --top 1 -o heap.txt"))?;
    teller.read("heap.txt")?;
    Ok(Some(()))
}
