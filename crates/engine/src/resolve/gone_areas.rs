//! Areas of machine code that were freed a moment ago: samples from before that may still wait to be resolved.

use std::ops::Range;

use lj_trace_process::{Maps, Process};

/// The most areas: a program that flushes its traces all the time frees a few in each batch.
const MAX_AREAS: usize = 256;

/// Samples of several CPUs arrive in no order. They are no further apart than this, in nanoseconds.
const SPREAD: u64 = 1_000_000_000;

/// The areas of one VM that are gone, with the time when that was noticed.
#[derive(Debug, Default)]
pub struct GoneAreas(Vec<(Range<u64>, u64)>);

impl GoneAreas {
    /// Compares the areas `before` with those that are there at the time `now`.
    pub fn note(&mut self, before: &[Range<u64>], after: &[Range<u64>], process: &Process, now: u64) {
        let gone = || before.iter().filter(|area| !after.contains(area));
        // Nothing can be said of a process that has exited; nor is it needed then.
        if let Some(maps) = gone().next().and_then(|_| process.maps().ok()) {
            self.add(gone().cloned(), &maps, now);
        }
    }

    fn add(&mut self, gone: impl Iterator<Item = Range<u64>>, maps: &Maps, now: u64) {
        // What the code of a file has replaced since says nothing of samples in this place.
        let is_taken = |area: &Range<u64>| {
            let overlaps = |start: u64, end: u64| start < area.end && area.start < end;
            maps.iter().any(|mapping| mapping.is_file() && overlaps(mapping.start, mapping.end))
        };
        self.0.extend(gone.filter(|area| !is_taken(area)).map(|area| (area, now)));
        let over = self.0.len().saturating_sub(MAX_AREAS);
        self.0.drain(..over);
    }

    /// The areas that may have been there at the time of a sample.
    pub fn at(&mut self, time: u64) -> impl Iterator<Item = &Range<u64>> {
        self.0.retain(|(_, noticed)| noticed.saturating_add(SPREAD) >= time);
        self.0.iter().filter(move |(_, noticed)| time <= *noticed).map(|(area, _)| area)
    }
}

#[cfg(test)]
mod tests {
    use std::iter::once;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn at(areas: &mut GoneAreas, time: u64) -> Vec<u64> {
        areas.at(time).map(|area| area.start).collect()
    }

    #[test]
    fn an_area_is_known_for_samples_from_before_it_was_gone() {
        let maps = Maps::parse("3000-5000 r-xp 00000000 08:01 7 /lib/x.so\n");
        let mut areas = GoneAreas::default();
        areas.add([0x1000..0x2000, 0x2000..0x3000].into_iter(), &maps, 5 * SECOND);
        // A file is there now.
        areas.add(once(0x4000..0x6000), &maps, 5 * SECOND);
        areas.add(once(0x6000..0x7000), &maps, 7 * SECOND);
        assert_eq!(at(&mut areas, 5 * SECOND), [0x1000, 0x2000, 0x6000]);
        assert_eq!(at(&mut areas, 5 * SECOND + 1), [0x6000]);
        assert_eq!(at(&mut areas, 4 * SECOND), [0x1000, 0x2000, 0x6000], "it comes late from another CPU");
        assert_eq!(at(&mut areas, 7 * SECOND), [0x6000]);
        assert_eq!(at(&mut areas, 4 * SECOND), [0x6000], "the others are forgotten");
    }

    #[test]
    fn the_oldest_are_dropped_if_there_are_too_many() {
        let mut areas = GoneAreas::default();
        let all = (0..1000).map(|number| number << 16..(number + 1) << 16);
        areas.add(all, &Maps::default(), SECOND);
        assert_eq!(at(&mut areas, 1).len(), MAX_AREAS);
        assert_eq!(at(&mut areas, 1)[0], (1000 - MAX_AREAS as u64) << 16);
    }
}
