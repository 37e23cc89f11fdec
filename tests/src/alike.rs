//! Processes of one program that differ in the names of their functions alone: even their addresses are the same.

use std::collections::HashMap;

use anyhow::{Context as _, Result};

use crate::programs::{LUAJIT, Program};
use crate::tracer::Tracer;
use crate::workload::Workload;

/// Processes that differ in their functions alone.
#[derive(Debug)]
pub struct AlikePrograms {
    /// The process that starts them.
    pub parent: Workload,
    /// The numbers of all that there have been, by process id.
    pub children: HashMap<u32, u32>,
}

impl AlikePrograms {
    /// None of them yet.
    ///
    /// # Errors
    /// LuaJIT does not run.
    pub fn start_none() -> Result<Self> {
        let program = Program::find(LUAJIT).context("the demo's luajit is everywhere")?;
        Ok(Self { parent: Workload::start(&program, "alike.lua", &[])?, children: HashMap::new() })
    }

    /// One more, which pauses for so many milliseconds after each turn.
    ///
    /// # Errors
    /// The parent has ended.
    pub fn start(&mut self, pause: u32) -> Result<u32> {
        let number = self.children.len() as u32 + 1;
        self.parent.tell(&format!("start {number:03} {pause}"))?;
        let line = self.parent.line()?;
        let pid = line.strip_prefix("child ").with_context(|| line.clone())?.trim().parse()?;
        self.children.insert(pid, number);
        Ok(pid)
    }

    /// Kills one.
    ///
    /// # Errors
    /// The parent has ended.
    pub fn kill(&mut self, pid: u32) -> Result<()> {
        self.parent.tell(&format!("kill {pid}"))?;
        self.parent.expect("gone")
    }
}

/// Records all children, into a folded file; waits until `count` of them are recorded.
///
/// # Errors
/// lj-trace ends before that.
pub fn record(all: &AlikePrograms, rate: &str, output: &str, count: usize) -> Result<Tracer> {
    let pid = all.parent.pid().to_string();
    let arguments = ["--pid", &pid, "--children", "--rate", rate, "--mode", "sysprof", "--output", output];
    let mut tracer = Tracer::start(arguments)?;
    for _ in 0..count {
        tracer.wait_until_attached()?;
    }
    Ok(tracer)
}

/// Whose function a Lua frame is: `leaf_007@alike_007:1` is number 7's.
pub fn number_of(frame: &str) -> Option<u32> {
    frame.split_once("@alike_")?.1.get(..3)?.parse().ok()
}
