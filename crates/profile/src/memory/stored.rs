//! A memory profile that is merged from the profiles of many intervals and processes.

use std::io::{self, Write};
use std::time::SystemTime;

use lj_trace_text::table::{Column, Table};
use lj_trace_text::{Room, bytes};

use super::{ALLOC_SPACE, EVENTS, MemoryProfile, Weight};
use crate::model::{Recorded, StackTable};

/// What is known of such a profile apart from its stacks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StoredMemory {
    /// The time of all intervals.
    pub recorded: Option<Recorded>,
    /// The bytes in each interval, in the order of time.
    pub steps: Vec<GrowthStep>,
    /// If the bytes were estimated: by how much their sum may be off, in 19 of 20 cases.
    pub error: Option<f64>,
}

/// Intervals that began at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrowthStep {
    /// When they began.
    pub time: SystemTime,
    /// Bytes that were allocated in them.
    pub allocated: u64,
    /// Bytes of these that were still held when they ended.
    pub held: u64,
}

/// The largest number of rows in the table over time.
const PARTS: usize = 12;

impl MemoryProfile {
    /// A profile of these stacks, which have the weights of a memory profile.
    pub fn of_stacks(weight: Weight, title: impl Into<String>, stacks: StackTable, stored: StoredMemory) -> Self {
        let totals = stacks.totals();
        Self {
            events: totals[EVENTS.index],
            allocated: totals[ALLOC_SPACE.index],
            stacks,
            stored: Some(stored),
            ..Self::new(weight, title)
        }
    }

    /// What it was merged from, if it was.
    pub fn stored(&self) -> Option<&StoredMemory> {
        self.stored.as_ref()
    }
}

/// The steps merged into this many equal spans of time, or into fewer if there are fewer steps.
fn parts(steps: &[GrowthStep]) -> Vec<GrowthStep> {
    let [Some(first), Some(last)] = [steps.first(), steps.last()] else { return Vec::new() };
    let since = |step: &GrowthStep| step.time.duration_since(first.time).unwrap_or_default();
    // A nanosecond more, so that the last step is within the last part.
    let part = (since(last) + std::time::Duration::from_nanos(1)).div_f64(PARTS as f64);
    let mut parts: Vec<(u128, GrowthStep)> = Vec::new();
    for step in steps {
        let number = since(step).as_nanos() / part.as_nanos().max(1);
        match parts.last_mut() {
            Some((known, sum)) if *known == number => {
                sum.allocated = sum.allocated.saturating_add(step.allocated);
                sum.held = sum.held.saturating_add(step.held);
            }
            _ => parts.push((number, *step)),
        }
    }
    parts.into_iter().map(|(_, step)| step).collect()
}

/// Writes the development over time.
pub(super) fn write(profile: &MemoryProfile, stored: &StoredMemory, room: Room, out: &mut dyn Write) -> io::Result<()> {
    if let Some(error) = stored.error {
        writeln!(
            out,
            "estimated: the bytes allocated may be \u{b1}{} more or less, in 19 of 20 cases",
            bytes(error as u64)
        )?;
    }
    let parts = parts(&stored.steps);
    if parts.len() < 2 {
        return Ok(());
    }
    writeln!(out, "\nOver time, by when intervals began")?;
    let held = |step: &GrowthStep| if profile.follows_blocks() { bytes(step.held) } else { String::new() };
    let largest = |step: &GrowthStep| if profile.follows_blocks() { step.held } else { step.allocated };
    let most = parts.iter().map(largest).max().unwrap_or(0).max(1);
    let title = if profile.follows_blocks() { "held" } else { "" };
    let columns = [Column::left("from", 23), Column::right("allocated", 11), Column::right(title, 11)];
    let mut table = Table::new(columns).end("", lj_trace_text::table::Fit::End, room);
    for step in &parts {
        let when = Recorded { began: step.time, duration: std::time::Duration::ZERO }.to_string();
        let when = when.split(',').next().unwrap_or_default().to_owned();
        let bar = (u128::from(largest(step)) * 30 / u128::from(most)) as usize;
        table.row([when, bytes(step.allocated), held(step)], "#".repeat(bar));
    }
    write!(out, "{table}")?;
    if profile.follows_blocks() {
        writeln!(out, "    (held: allocated in intervals, and not freed by the end of the same interval)")?;
    }
    Ok(())
}
