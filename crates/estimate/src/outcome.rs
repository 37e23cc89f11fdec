//! What windows amount to.

use super::exact::Exact;
use super::strata::Stratum;
use super::sums::{Level, Sum};

/// Of all bytes that are allocated at least this part is taken not to be freed explicitly; else what is not freed would
/// tell nothing about what is allocated.
const LEAST_NET: f64 = 0.02;

/// The variance, relative to it, of what is next to nothing.
const UNKNOWN: f64 = 4.0;

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

    /// Adds what was allocated in a stratum, if it is like these windows, each so many times.
    pub fn add(&mut self, stratum: &Stratum, windows: &[(&Sum, f64)]) {
        let weights = LevelWeights::new(windows);
        let gross = weights.gross(stratum);
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
pub struct LevelWeights {
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
    net_squares: f64,
    made_net: f64,
}

impl LevelWeights {
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
            level.net_squares += sum.net * sum.net * times;
            level.made_net += sum.made * sum.net * times;
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
    pub fn gross(&self, stratum: &Stratum) -> f64 {
        self.gross_and_doubt(stratum).0
    }

    /// The same, and how far that is off, relative to it, because of what other windows would not change: one deviation.
    pub fn gross_and_doubt(&self, stratum: &Stratum) -> (f64, f64) {
        let volume = &stratum.volume;
        if self.levels.is_empty() || volume.net == 0.0 && volume.gross > 0.0 {
            return (volume.gross + volume.net, 0.0);
        }
        // Of all of them together: in a single window a buffer may shrink by more than is allocated in it.
        let sum = |of: fn(&Windows) -> f64| self.levels.iter().map(of).sum::<f64>();
        let (net, made) = (sum(|level| level.net), sum(|level| level.made));
        let part = (net / made).clamp(LEAST_NET, 1.0);
        let by_net = volume.net.max(0.0) / part;
        let Some(by_time) = stratum.cpu_time.gross() else { return (volume.gross + by_net, 0.0) };
        // How far the proportion is off, relative to it: by what windows differ in it.
        let off = sum(|level| level.net_squares) - 2.0 * part * sum(|level| level.made_net)
            + part * part * sum(|level| level.made_squares);
        let variance = if net < LEAST_NET * made { UNKNOWN } else { off.max(0.0) / (part * made).powi(2) };
        let (blend, deviation) = by_time.blend(by_net, variance);
        let whole = volume.gross + blend;
        (whole, if whole > 0.0 { deviation / whole } else { 0.0 })
    }

    /// As how many windows of equal weight they count.
    pub fn windows(&self) -> f64 {
        let squares = |level: &Windows| (level.rate / self.rate / level.made).powi(2) * level.made_squares;
        1.0 / self.levels.iter().map(squares).sum::<f64>()
    }
}
