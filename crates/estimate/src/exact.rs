//! The allocations in windows. They are known exactly, whatever the rest is.

use std::collections::BTreeMap;

use crate::observation::{Nanos, SourceId, Window};

/// The sums over all windows.
#[derive(Clone, Debug, Default)]
pub struct Exact {
    /// The allocations of each source: bytes and calls.
    pub lines: BTreeMap<SourceId, (u64, u64)>,
    /// The bytes that all sources have allocated.
    pub made: u64,
    pub freed: u64,
    pub windows: u64,
    pub events: u64,
    /// How long the windows were open.
    pub open: Nanos,
    /// How long those windows were open that are part of the total.
    pub counted: Nanos,
}

impl Exact {
    /// Adds a window. A window that was opened before the counters were first read is not part of the total.
    pub fn add(&mut self, window: &Window, before_all: bool) {
        self.windows += 1;
        self.events = self.events.saturating_add(window.events);
        self.open = self.open.saturating_add(window.closed.saturating_sub(window.opened));
        if before_all {
            return;
        }
        self.counted = self.counted.saturating_add(window.closed.saturating_sub(window.opened));
        self.made = self.made.saturating_add(made(window));
        self.freed = self.freed.saturating_add(window.freed);
        for made in &window.made {
            let line = self.lines.entry(made.source).or_default();
            line.0 = line.0.saturating_add(made.bytes);
            line.1 = line.1.saturating_add(made.count);
        }
    }
}

/// Bytes allocated in a window.
pub fn made(window: &Window) -> u64 {
    window.made.iter().fold(0, |sum, made| made.bytes.saturating_add(sum))
}

/// Bytes allocated in a window, less bytes freed explicitly.
pub fn net(window: &Window) -> f64 {
    made(window) as f64 - window.freed as f64
}
