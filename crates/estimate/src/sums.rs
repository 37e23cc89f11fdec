//! Sums over the windows of a class.
//!
//! A window sees little of a stretch that allocates much. So a window is weighted by the rate around it, divided by the
//! bytes in it; that is one over the program's own time that it covers. This ratio must not be taken per window: a window
//! that happens to contain a big block covers more than it seems, and would count too little. Instead, windows with about
//! the same rate around them form a level. Within a level, bytes are added up as they are, and levels are weighted by their
//! rates.

use crate::observation::{Part, Window};

/// The most sums to keep for a level. Beyond it, each two neighbouring sums are merged. The bootstrap draws from these sums
/// to find the error, and some dozens are enough for that.
const MOST: usize = 64;

/// The width of a level: its rates differ by less than 2 to the power of this.
const LEVEL: f64 = 2.0;

/// The windows of one class: single windows while there are few, then batches of equal size.
#[derive(Clone, Debug, Default)]
pub struct Batches {
    levels: Vec<Windows>,
}

/// Windows with about the same rate around them.
#[derive(Clone, Debug)]
struct Windows {
    level: Level,
    batches: Vec<Sum>,
    /// The number of windows in a full batch.
    size: u64,
}

/// The properties that windows of one level share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Level {
    /// The number of the class.
    pub class: usize,
    /// The logarithm of the rate around the windows.
    rate: i32,
    /// The logarithm of the events per time, if nothing else shows what the program did.
    density: i32,
}

/// The sums over some windows of one level.
#[derive(Clone, Debug, Default)]
pub struct Sum {
    pub level: Level,
    /// The number of windows.
    pub windows: u64,
    /// The sum of the rates around them, in bytes per nanosecond, and of the squares of these rates.
    pub rate: f64,
    pub squares: f64,
    /// The sum of the bytes allocated in them, and of the squares of these.
    pub made: f64,
    pub made_squares: f64,
    /// Bytes allocated, less bytes freed explicitly.
    pub net: f64,
    /// The part of each source, by number.
    pub parts: Vec<Part>,
}

impl Batches {
    /// Adds a window. `rate` is the allocation rate around it in bytes per nanosecond. `known` says whether samples show
    /// what ran around it.
    pub fn add(&mut self, window: &Window, rate: f64, known: bool) {
        let Some(sum) = Sum::of(window, rate, known) else { return };
        let found = self.levels.iter_mut().position(|level| level.level == sum.level);
        let at = found.unwrap_or_else(|| {
            self.levels.push(Windows { level: sum.level, batches: Vec::new(), size: 1 });
            self.levels.len() - 1
        });
        self.levels[at].add(sum);
    }

    /// The batches, none of them empty.
    pub fn sums(&self) -> impl Iterator<Item = &Sum> {
        self.levels.iter().flat_map(|level| &level.batches)
    }
}

impl Windows {
    fn add(&mut self, sum: Sum) {
        self.join(sum);
        if self.batches.len() > MOST {
            self.size *= 2;
            for batch in std::mem::take(&mut self.batches) {
                self.join(batch);
            }
        }
    }

    /// Adds to the last batch, if it has room.
    fn join(&mut self, sum: Sum) {
        match self.batches.last_mut() {
            Some(last) if last.windows + sum.windows <= self.size => last.add(&sum),
            _ => self.batches.push(sum),
        }
    }
}

impl Sum {
    /// The sums of one window; `None` if it says nothing about the sources of allocations.
    fn of(window: &Window, rate: f64, known: bool) -> Option<Self> {
        let parts: Vec<Part> = window.sample.parts.iter().filter(|part| part.bytes > 0.0).copied().collect();
        let made: f64 = parts.iter().map(|part| part.bytes).sum();
        if made <= 0.0 || rate <= 0.0 {
            return None;
        }
        Some(Self {
            level: Level {
                class: 0,
                rate: (rate.log2() / LEVEL).floor() as i32,
                density: if known { 0 } else { density(window) },
            },
            windows: 1,
            rate,
            squares: rate * rate,
            made,
            made_squares: made * made,
            net: made - window.sample.freed,
            parts,
        })
    }

    /// Adds the sums of other windows.
    pub fn add(&mut self, other: &Self) {
        self.windows += other.windows;
        self.rate += other.rate;
        self.squares += other.squares;
        self.made += other.made;
        self.made_squares += other.made_squares;
        self.net += other.net;
        for part in &other.parts {
            match self.parts.binary_search_by_key(&part.source, |part| part.source) {
                Ok(at) => {
                    self.parts[at].bytes += part.bytes;
                    self.parts[at].count += part.count;
                }
                Err(at) => self.parts.insert(at, *part),
            }
        }
    }
}

/// The logarithm of the events per time, to the base 1.5.
fn density(window: &Window) -> i32 {
    let time = window.closed.saturating_sub(window.opened).max(1);
    ((window.events.max(1) as f64 / time as f64).log2() / 1.5f64.log2()).floor() as i32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::{Made, SourceId};

    fn window(bytes: &[u64]) -> Window {
        let made = bytes.iter().enumerate().map(|(i, &bytes)| Made { source: SourceId(i as u32), bytes, count: 1 });
        Window { made: made.collect(), ..Window::default() }.sampled_alike()
    }

    #[test]
    fn many_windows_are_kept_in_few_sums_that_lose_nothing() {
        let mut batches = Batches::default();
        for i in 0..10_000u64 {
            batches.add(&window(&[i % 7 + 1, 3]), 2.0, true);
        }
        let sums: Vec<&Sum> = batches.sums().collect();
        assert!(sums.len() <= MOST && sums.len() > MOST / 4);
        assert_eq!(sums.iter().map(|sum| sum.windows).sum::<u64>(), 10_000);
        let bytes: f64 = sums.iter().flat_map(|sum| &sum.parts).map(|part| part.bytes).sum();
        let made: f64 = (0..10_000u64).map(|i| (i % 7 + 4) as f64).sum();
        assert_eq!(bytes, made);
        assert!(sums.iter().all(|sum| sum.windows <= sums[0].windows));
    }

    #[test]
    fn windows_with_other_rates_are_kept_apart() {
        let mut batches = Batches::default();
        for rate in [0.01, 1.1, 1.2, 0.011, 1.3] {
            batches.add(&window(&[100]), rate, true);
        }
        let mut levels: Vec<Level> = batches.sums().map(|sum| sum.level).collect();
        levels.dedup();
        assert_eq!(levels.len(), 2);
    }

    #[test]
    fn windows_without_allocations_say_nothing() {
        let mut batches = Batches::default();
        batches.add(&window(&[]), 2.0, true);
        batches.add(&window(&[5]), 0.0, true);
        assert_eq!(batches.sums().count(), 0);
    }
}
