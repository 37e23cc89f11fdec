//! Sums over the events of one window.

use std::collections::BTreeMap;

use lj_trace_estimate::observation::{Made, Nanos, Part, SourceId, TableBlock, Window, WindowSample};
use lj_trace_streams::memprof::{Event, Source};

/// The smallest block to report as a possible string table, in bytes.
const SMALLEST_TABLE: u64 = 4096;

/// The share of a window's events at its beginning that count less, the first event least. After these, the moment at which
/// the window was opened no longer matters.
const RAMP: f64 = 0.4;

/// The number of recent windows that determine the length of the ramp. It must not depend on the window to which it
/// applies.
const RECENT: f64 = 16.0;

/// What was seen in a window.
#[derive(Debug, Default)]
pub struct WindowTally {
    /// The number of calls.
    pub events: u64,
    /// Bytes that were freed explicitly.
    pub freed: u64,
    freed_weighed: f64,
    made: BTreeMap<SourceId, Sums>,
    blocks: Vec<TableBlock>,
    /// The number of events that count less.
    ramp: f64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    bytes: u64,
    count: u64,
    bytes_weighed: f64,
    count_weighed: f64,
}

/// The average number of events in a window.
#[derive(Clone, Copy, Debug, Default)]
pub struct UsualEvents(f64);

impl UsualEvents {
    /// Adds a window.
    pub fn note(&mut self, events: u64) {
        let events = events as f64;
        self.0 = if self.0 == 0.0 { events } else { self.0 + (events - self.0) / RECENT };
    }
}

impl WindowTally {
    /// The tally of a window that begins.
    pub fn new(usual: UsualEvents) -> Self {
        Self { ramp: (usual.0 * RAMP).max(1.0), ..Self::default() }
    }

    /// Takes an event. Symbols do not count.
    #[inline]
    pub fn add(&mut self, number: SourceId, event: &Event) {
        let weight = ((self.events as f64 + 0.5) / self.ramp).min(1.0);
        self.events += 1;
        let (made, freed, is_plain) = match *event {
            Event::Alloc { size, .. } => (Some(size), 0, true),
            Event::Realloc { size, old_size, .. } => (Some(size), old_size, false),
            // The VM itself is the source of frees by a sweep.
            Event::Free { source: Source::Internal, .. } | Event::Symbol(_) => (None, 0, false),
            Event::Free { size, .. } => (None, size, true),
        };
        self.freed += freed;
        self.freed_weighed += freed as f64 * weight;
        if let Some(size) = made {
            let sums = self.made.entry(number).or_default();
            sums.bytes += size;
            sums.count += 1;
            sums.bytes_weighed += size as f64 * weight;
            sums.count_weighed += weight;
        }
        let size = made.unwrap_or(freed);
        if is_plain && size >= SMALLEST_TABLE && size.is_power_of_two() {
            self.blocks.push(TableBlock { source: number, size, is_made: made.is_some(), weight });
        }
    }

    /// The window, after its end.
    pub fn window(self, opened: Nanos, closed: Nanos) -> Window {
        let made = self.made.iter().map(|(&source, sums)| Made { source, bytes: sums.bytes, count: sums.count });
        let part = |(&source, sums): (_, &Sums)| Part { source, bytes: sums.bytes_weighed, count: sums.count_weighed };
        Window {
            opened,
            closed,
            events: self.events,
            cost: 0.0,
            freed: self.freed,
            made: made.collect(),
            sample: WindowSample { freed: self.freed_weighed, parts: self.made.iter().map(part).collect() },
            blocks: self.blocks,
        }
    }
}

/// Appends a window to the one before it. The result is not a sample any more.
pub fn merge(first: &mut Window, second: Window) {
    first.closed = second.closed;
    first.events += second.events;
    first.freed += second.freed;
    for new in second.made {
        match first.made.iter_mut().find(|made| made.source == new.source) {
            Some(made) => (made.bytes, made.count) = (made.bytes + new.bytes, made.count + new.count),
            None => first.made.push(new),
        }
    }
    first.blocks.extend(second.blocks);
    first.sample = WindowSample::default();
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: Source = Source::Lua { proto: 0x1000, line: 4 };

    #[test]
    fn the_first_calls_count_less() {
        let mut usual = UsualEvents::default();
        usual.note(10);
        let mut tally = WindowTally::new(usual);
        for _ in 0..6 {
            tally.add(SourceId(2), &Event::Alloc { source: SOURCE, addr: 0x10, size: 100 });
        }
        tally.add(SourceId(2), &Event::Free { source: SOURCE, addr: 0x10, size: 7 });
        let window = tally.window(1, 2);
        assert_eq!((window.made[0].bytes, window.made[0].count, window.freed), (600, 6, 7));
        // 1/8, 3/8, 5/8, 7/8 and twice 1.
        assert_eq!(window.sample.parts, [Part { source: SourceId(2), bytes: 400.0, count: 4.0 }]);
        assert_eq!(window.sample.freed, 7.0);
    }

    #[test]
    fn blocks_that_may_be_string_tables_are_told() {
        let mut tally = WindowTally::new(UsualEvents::default());
        let free = |source, size| Event::Free { source, addr: 0x10, size };
        for event in [
            Event::Alloc { source: SOURCE, addr: 0x10, size: 65536 },
            Event::Alloc { source: SOURCE, addr: 0x10, size: 65537 },
            Event::Realloc { source: SOURCE, old_addr: 1, old_size: 32768, addr: 2, size: 65536 },
            free(SOURCE, 32768),
            free(SOURCE, 1024),
            free(Source::Internal, 65536),
        ] {
            tally.add(SourceId(0), &event);
        }
        let blocks: Vec<_> = tally.window(1, 2).blocks.iter().map(|block| (block.size, block.is_made)).collect();
        assert_eq!(blocks, [(65536, true), (32768, false)]);
    }
}
