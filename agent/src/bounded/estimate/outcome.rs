//! What windows amount to.

use super::exact::Exact;
use super::sums::{Level, Sum};
use super::timeline::Volume;

/// Of all bytes that are allocated at least this part is taken not to be freed explicitly; else what is not freed would
/// tell nothing about what is allocated.
const LEAST_NET: f64 = 0.02;

/// What was allocated.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// By each source, by number.
    pub bytes: Vec<f64>,
    pub count: Vec<f64>,
    /// By all of them, and by those that nobody saw.
    pub gross: f64,
}

impl Outcome {
    /// Nothing, by so many sources.
    pub fn none(sources: usize) -> Self {
        Self { bytes: vec![0.0; sources], count: vec![0.0; sources], gross: 0.0 }
    }

    /// What was allocated in windows.
    pub fn of(exact: &Exact) -> Self {
        let sources = exact.lines.keys().next_back().map_or(0, |last| last.0 as usize + 1);
        let mut seen = Self { gross: exact.made as f64, ..Self::none(sources) };
        for (source, &(bytes, count)) in &exact.lines {
            (seen.bytes[source.0 as usize], seen.count[source.0 as usize]) = (bytes as f64, count as f64);
        }
        seen
    }

    /// Adds what was allocated in a stratum of this volume, if it is like these windows, each so many times; the whole
    /// `times` over.
    pub fn add(&mut self, volume: &Volume, windows: &[(&Sum, f64)], times: f64) {
        let weights = Weights::new(windows);
        let gross = weights.gross(volume) * times;
        self.gross += gross;
        for (sum, drawn) in windows {
            let times = gross * drawn * weights.of(sum);
            for part in &sum.parts {
                let source = part.source.0 as usize;
                if let (Some(bytes), Some(count)) = (self.bytes.get_mut(source), self.count.get_mut(source)) {
                    *bytes += part.bytes * times;
                    *count += part.count * times;
                }
            }
        }
    }
}

/// How much windows of each level count.
pub struct Weights {
    levels: Vec<Windows>,
    rate: f64,
}

#[derive(Default)]
struct Windows {
    level: Level,
    rate: f64,
    made: f64,
    made_squares: f64,
    net: f64,
}

impl Weights {
    /// Of windows, each of them so many times.
    pub fn new(windows: &[(&Sum, f64)]) -> Self {
        let mut levels: Vec<Windows> = Vec::new();
        for (sum, times) in windows {
            let at = levels.iter().position(|level| level.level == sum.level).unwrap_or_else(|| {
                levels.push(Windows { level: sum.level, ..Windows::default() });
                levels.len() - 1
            });
            let level = &mut levels[at];
            level.rate += sum.rate * times;
            level.made += sum.made * times;
            level.made_squares += sum.made_squares * times;
            level.net += sum.net * times;
        }
        let rate = levels.iter().map(|level| level.rate).sum();
        Self { levels, rate }
    }

    /// What a byte in such a window stands for, where one byte was allocated in all.
    fn of(&self, sum: &Sum) -> f64 {
        let level = self.levels.iter().find(|level| level.level == sum.level);
        level.map_or(0.0, |level| level.rate / self.rate / level.made)
    }

    /// What was allocated, where it is known what was, or what of it was not freed explicitly.
    pub fn gross(&self, volume: &Volume) -> f64 {
        // Of all of them together: in a single window a buffer may shrink by more than is allocated in it.
        let (net, made) = self.levels.iter().fold((0.0, 0.0), |sum, level| (sum.0 + level.net, sum.1 + level.made));
        let net = net / made;
        volume.gross + volume.net / if self.levels.is_empty() { 1.0 } else { net.clamp(LEAST_NET, 1.0) }
    }

    /// As how many windows of equal weight they count.
    pub fn windows(&self) -> f64 {
        let squares = |level: &Windows| (level.rate / self.rate / level.made).powi(2) * level.made_squares;
        1.0 / self.levels.iter().map(squares).sum::<f64>()
    }
}
