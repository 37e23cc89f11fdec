//! The lines that led to waits. A library has one line in which all its coroutines yield: the program's own lines are
//! those that called it.

use std::collections::{HashMap, HashSet};

use super::text::line_of;
use super::{WAIT, WaitProfile};
use crate::Frame;
use crate::model::FrameId;

/// A line of Lua code below which coroutines wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitCaller {
    /// `get@app.lua:12`: the function, and the line from which it called.
    pub name: String,
    /// Nanoseconds of waiting, in all that it called.
    pub time: u64,
}

/// All lines that called, longest time first. Recursion counts once.
pub fn callers(profile: &WaitProfile) -> Vec<WaitCaller> {
    let mut times: HashMap<FrameId, u64> = HashMap::new();
    for (_, row) in profile.stacks.numbered().filter(|(_, row)| row.weights[WAIT.index] > 0) {
        let is_lua = |id: &&FrameId| matches!(profile.stacks.frame(**id), Some(Frame::Lua { .. }));
        let outward = row.frames.iter().rev().filter(is_lua);
        let own = outward.clone().next();
        let called: HashSet<&FrameId> = outward.skip(1).filter(|id| Some(*id) != own).collect();
        for id in called {
            let time = times.entry(*id).or_default();
            *time = time.saturating_add(row.weights[WAIT.index]);
        }
    }
    // Frames may differ in what a line does not show.
    let mut lines: HashMap<String, u64> = HashMap::new();
    for (id, time) in times {
        let Some(name) = profile.stacks.frame(id).map(line_of) else { continue };
        let sum = lines.entry(name).or_default();
        *sum = sum.saturating_add(time);
    }
    let mut lines: Vec<WaitCaller> = lines.into_iter().map(|(name, time)| WaitCaller { name, time }).collect();
    lines.sort_by(|a, b| b.time.cmp(&a.time).then_with(|| a.name.cmp(&b.name)));
    lines
}
