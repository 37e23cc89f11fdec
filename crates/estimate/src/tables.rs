//! String tables: what is known about them exactly, and which sources have allocated them.
//!
//! A string table that becomes too small is copied to a table of twice its size. That takes some milliseconds without other
//! allocations. Then the old table is freed. So of windows that open at random times, many see the old table being freed,
//! and next to none see the new one being allocated. And a table is so large that a window that sees it by chance would
//! represent hundreds of tables that did not exist. But the counters show each table. So tables are removed from what
//! windows saw, and counted separately.

use std::collections::{BTreeMap, VecDeque};

use super::exact::Exact;
use super::outcome::Outcome;
use super::proportion::proportion;
use crate::observation::{ActivityId, CpuSample, Nanos, Reading, SourceId, TableBlock, Tables, Window};

/// How long it may take to copy a table before the VM's state refers to it, in nanoseconds, plus the time per byte. The
/// program may not have a CPU for a while.
const COPYING: Nanos = 20_000_000;
const COPYING_BYTE: Nanos = 100;

/// What is known about string tables.
#[derive(Clone, Debug, Default)]
pub struct TableLog {
    /// Tables that windows saw being allocated: bytes and number.
    seen: BTreeMap<SourceId, (u64, u64)>,
    /// Tables that grew, by the activity at that time: bytes and number.
    ran: BTreeMap<ActivityId, (u64, u64)>,
    /// The table that is being copied: since when, and its bytes.
    copied: Option<(Nanos, Tables)>,
}

/// The possible sources of string tables that no window saw.
#[derive(Clone, Debug, Default)]
pub struct Growers {
    /// The sources of a function, by the activity that samples show.
    pub sources: BTreeMap<ActivityId, Vec<SourceId>>,
    /// The collector, which shrinks tables.
    pub collector: Option<SourceId>,
}

/// The allocations of a source for string tables outside of windows.
#[derive(Clone, Debug, Default)]
pub struct Share {
    pub source: SourceId,
    pub bytes: f64,
    pub count: f64,
    /// By how much the bytes may be off.
    pub error: f64,
}

impl TableLog {
    /// Removes string tables from the blocks of a window, as the readings around the window show them.
    pub fn take_out(&mut self, window: &mut Window, readings: &VecDeque<Reading>) {
        let Some(largest) = window.blocks.iter().map(|block| block.size).max() else { return };
        let until = window.closed.saturating_add(COPYING).saturating_add(largest.saturating_mul(COPYING_BYTE));
        let first = readings.partition_point(|reading| reading.at < window.opened).saturating_sub(1);
        let around = readings.range(first..).take_while(|reading| reading.at <= until);
        let changes = around.clone().zip(around.skip(1)).map(|(from, to)| to.tables.since(&from.tables));
        let changes: Vec<Tables> = changes.filter(|change| *change != Tables::default()).collect();
        for block in std::mem::take(&mut window.blocks) {
            if changes.iter().any(|change| is_of(&block, change)) && take_from(window, &block) && block.is_made {
                let seen = self.seen.entry(block.source).or_default();
                *seen = (seen.0.saturating_add(block.size), seen.1 + 1);
            }
        }
    }

    /// Notes what ran while a table was copied.
    pub fn note(&mut self, from: &Reading, to: &Reading, samples: &VecDeque<CpuSample>) {
        let change = to.tables.since(&from.tables);
        if change.growths > 0 {
            self.copied = Some((to.at, change));
        }
        if change.freed == 0 {
            if change.growths == 0 && counted(to) > counted(from) {
                // A program that allocates is not copying a table.
                self.copied = None;
            }
            return;
        }
        let Some((since, change)) = self.copied.take() else { return };
        // Samples before the allocation of the table, and after it has replaced the old one, may show anything.
        let end = samples.partition_point(|sample| sample.at <= from.at);
        let last = end.checked_sub(1).and_then(|last| samples.get(last));
        if let Some(sample) = last.filter(|sample| sample.at >= since) {
            let ran = self.ran.entry(sample.activity).or_default();
            *ran = (ran.0.saturating_add(change.grown), ran.1 + change.growths);
        }
    }

    /// The sources of those tables, of `all`, that no window saw.
    pub fn shares(&self, all: &Tables, exact: &Exact, growers: &Growers) -> Vec<Share> {
        let of_collector = |source: &SourceId| Some(*source) == growers.collector;
        let sum = |collector: bool| {
            self.seen
                .iter()
                .filter(|(source, _)| of_collector(source) == collector)
                .fold((0, 0), |sum, (_, seen)| (sum.0 + seen.0, sum.1 + seen.1))
        };
        let (grown, growths) = (all.grown.saturating_sub(sum(false).0), all.growths.saturating_sub(sum(false).1));
        let shrunk = all.shrunk.saturating_sub(sum(true).0);
        let mut shares = Vec::new();
        if let Some(source) = growers.collector.filter(|_| shrunk > 0) {
            // Half of the bytes that grow also shrink, as often.
            let count = growths as f64 * shrunk as f64 / grown.max(1) as f64;
            shares.push(Share { source, bytes: shrunk as f64, count: count.max(1.0), error: 0.0 });
        }
        if grown > 0 {
            let parts = self.parts(exact, growers);
            let whole: f64 = parts.values().sum();
            for (source, part) in parts.iter().filter(|_| whole > 0.0) {
                let part = part / whole;
                // As if the growths with a known source were drawn from all growths.
                let known = self.ran.values().chain(self.seen.values()).map(|(_, count)| count).sum::<u64>().max(1);
                let error = proportion(part, known as f64).error.unwrap_or(0.0) * grown as f64;
                shares.push(Share { source: *source, bytes: grown as f64 * part, count: growths as f64 * part, error });
            }
        }
        shares
    }

    /// The proportions in which sources grow tables: from samples, or else from windows, or else from their allocations.
    fn parts(&self, exact: &Exact, growers: &Growers) -> BTreeMap<SourceId, f64> {
        let calls = |source: &SourceId| exact.lines.get(source).map_or(0.0, |line| line.1 as f64);
        let seen = |source: &SourceId| self.seen.get(source).map_or(0.0, |seen| seen.1 as f64);
        let mut parts = BTreeMap::new();
        for (activity, (bytes, _)) in &self.ran {
            let Some(sources) = growers.sources.get(activity) else { continue };
            let by_seen: f64 = sources.iter().map(seen).sum();
            let weight = |source: &SourceId| if by_seen > 0.0 { seen(source) } else { calls(source) };
            let whole: f64 = sources.iter().map(weight).sum();
            for source in sources.iter().filter(|_| whole > 0.0) {
                *parts.entry(*source).or_insert(0.0) += weight(source) / whole * *bytes as f64;
            }
        }
        let others = |source: &&SourceId| Some(**source) != growers.collector;
        if parts.is_empty() {
            parts.extend(self.seen.keys().filter(others).map(|source| (*source, seen(source))));
        }
        if parts.is_empty() {
            parts.extend(exact.lines.keys().filter(others).map(|source| (*source, calls(source))));
        }
        parts
    }
}

impl Share {
    /// Adds this share to the known allocations.
    pub fn add_to(&self, known: &mut Outcome) {
        let source = self.source.0 as usize;
        if known.bytes.len() <= source {
            known.bytes.resize(source + 1, 0.0);
            known.count.resize(source + 1, 0.0);
        }
        known.bytes[source] += self.bytes;
        known.count[source] += self.count;
        known.gross += self.bytes;
    }
}

/// The counters show a table only when it has replaced the old one, some milliseconds after it was allocated. This corrects
/// the last of these readings: all of them include the table from the rise on.
pub fn move_back(readings: &mut [Reading]) {
    let [before @ .., last, now] = readings else { return };
    let change = now.tables.since(&last.tables);
    let made = change.made();
    if made == 0 {
        return;
    }
    let reach = COPYING.saturating_add(made.saturating_mul(COPYING_BYTE));
    let mut later = *now;
    let mut rises = Vec::new();
    for (index, reading) in [&*last].into_iter().chain(before.iter().rev()).enumerate() {
        if reading.at.saturating_add(reach) < now.at {
            break;
        }
        rises.push((counted(&later).saturating_sub(counted(reading)), index));
        later = *reading;
    }
    // Nothing is allocated while the table is copied.
    let before_copying = rises.iter().skip(1).find(|(rise, _)| *rise > 0).filter(|(rise, _)| *rise >= made);
    let Some(&(rise, index)) = before_copying.or_else(|| rises.iter().max()) else { return };
    if rise < made {
        return;
    }
    let end = readings.len() - 1;
    for reading in &mut readings[end - index..end] {
        reading.tables.grown += change.grown;
        reading.tables.growths += change.growths;
        reading.tables.shrunk += change.shrunk;
    }
}

/// Bytes allocated up to a reading.
fn counted(reading: &Reading) -> u64 {
    reading.gross.unwrap_or(reading.net)
}

/// Whether a block was allocated or freed in this change.
fn is_of(block: &TableBlock, change: &Tables) -> bool {
    let made = match (change.growths, change.shrunk) {
        (1, 0) => block.size == change.grown,
        (0, shrunk) if shrunk * 2 == change.freed => block.size == shrunk,
        _ => block.size <= change.made(),
    };
    let freed = if change.growths <= 1 { block.size == change.freed } else { block.size <= change.freed };
    if block.is_made { made } else { freed }
}

/// Removes a block from what a window saw, if the window contains it.
fn take_from(window: &mut Window, block: &TableBlock) -> bool {
    let Window { made, freed, sample, .. } = window;
    if !block.is_made {
        *freed = freed.saturating_sub(block.size);
        sample.freed -= block.weight * block.size as f64;
        return true;
    }
    let Some(made) = made.iter_mut().find(|made| made.source == block.source && made.bytes >= block.size) else {
        return false;
    };
    made.bytes -= block.size;
    made.count = made.count.saturating_sub(1);
    if let Some(part) = sample.parts.iter_mut().find(|part| part.source == block.source) {
        part.bytes -= block.weight * block.size as f64;
        part.count -= block.weight;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::{Made, Part, WindowSample};

    const MS: Nanos = 1_000_000;
    const OLD: u64 = 1 << 20;

    /// The readings of a program that allocates 100 KB per millisecond, except for five milliseconds in which its string
    /// table grows.
    fn readings() -> VecDeque<Reading> {
        readings_with(0)
    }

    /// The same, except for this many bytes more in the tenth.
    fn readings_with(more: u64) -> VecDeque<Reading> {
        let mut readings = Vec::new();
        let mut reading = Reading::default();
        for ms in 0..40 {
            reading.at = ms * MS;
            match ms {
                10 => reading.net += 100_000 + more,
                20 => reading.net += 2 * OLD,
                21..25 => {}
                25 => reading.tables.resize(OLD, 2 * OLD),
                _ => reading.net += 100_000,
            }
            readings.push(reading);
            move_back(&mut readings);
        }
        readings.into()
    }

    #[test]
    fn a_table_is_counted_when_it_is_allocated() {
        let readings = readings();
        assert_eq!((readings[19].tables.grown, readings[20].tables.grown), (0, 2 * OLD));
        assert_eq!((readings[24].tables.freed, readings[25].tables.freed), (0, OLD));
        assert!(readings.iter().all(|reading| reading.tables.made() <= 2 * OLD));
    }

    #[test]
    fn what_is_allocated_in_a_pause_of_the_reader_is_no_table() {
        let readings = readings_with(5 * OLD);
        assert_eq!((readings[19].tables.grown, readings[20].tables.grown), (0, 2 * OLD));
    }

    #[test]
    fn tables_are_no_part_of_what_a_window_shows() {
        let block = |size, is_made| TableBlock { source: SourceId(3), size, is_made, weight: 0.5 };
        let mut window = Window {
            opened: 19 * MS,
            closed: 26 * MS,
            freed: OLD + 7,
            made: vec![Made { source: SourceId(3), bytes: 2 * OLD + 4096, count: 2 }],
            sample: WindowSample {
                freed: 0.5 * OLD as f64,
                parts: vec![Part { source: SourceId(3), bytes: OLD as f64 + 2048.0, count: 1.0 }],
            },
            blocks: vec![block(2 * OLD, true), block(OLD, false), block(4096, true)],
            ..Window::default()
        };
        let mut log = TableLog::default();
        log.take_out(&mut window, &readings());
        assert_eq!((window.made[0].bytes, window.made[0].count, window.freed), (4096, 1, 7));
        let part = Part { source: SourceId(3), bytes: 2048.0, count: 0.5 };
        assert_eq!((window.sample.freed, window.sample.parts), (0.0, vec![part]));
        assert_eq!(log.seen[&SourceId(3)], (2 * OLD, 1));
    }

    #[test]
    fn who_ran_while_a_table_was_copied_has_made_it() {
        let readings = readings();
        let samples: VecDeque<_> = [(10, 1), (19, 3), (23, 7), (25, 4), (30, 2)]
            .map(|(ms, id)| CpuSample { at: ms * MS, activity: ActivityId(id) })
            .into();
        let mut log = TableLog::default();
        for (from, to) in readings.iter().zip(readings.iter().skip(1)) {
            log.note(from, to, &samples);
        }
        assert_eq!(log.ran, [(ActivityId(7), (2 * OLD, 1))].into());
        let sources = [(ActivityId(7), vec![SourceId(1), SourceId(2)])].into();
        let growers = Growers { sources, collector: Some(SourceId(0)) };
        let mut exact = Exact::default();
        exact.lines.extend([(SourceId(1), (10, 3)), (SourceId(2), (10, 1)), (SourceId(5), (10, 90))]);
        let all = Tables { grown: 8 * OLD, growths: 4, shrunk: OLD, freed: 5 * OLD };
        let shares = log.shares(&all, &exact, &growers);
        let bytes: Vec<_> = shares.iter().map(|share| (share.source.0, share.bytes / OLD as f64)).collect();
        assert_eq!(bytes, [(0, 1.0), (1, 6.0), (2, 2.0)], "by the calls of those lines of that function");
    }
}
