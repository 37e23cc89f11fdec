//! The allocations that follow from windows.

use super::exact::Exact;
use super::strata::Stratum;
use super::sums::{Level, Sum};

/// The least share of allocated bytes that is assumed not to be freed explicitly. With less, the bytes that are not freed
/// would say nothing about the allocated bytes.
const LEAST_NET: f64 = 0.02;

/// The relative variance of a value that is next to nothing.
const UNKNOWN: f64 = 4.0;

/// The allocations.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The allocations of each source, by its number.
    pub bytes: Vec<f64>,
    pub count: Vec<f64>,
    /// The bytes of all sources, including those that no window saw.
    pub gross: f64,
}

impl Outcome {
    /// No allocations, for this many sources.
    pub fn none(sources: usize) -> Self {
        Self { bytes: vec![0.0; sources], count: vec![0.0; sources], gross: 0.0 }
    }

    /// The allocations in windows.
    pub fn of(exact: &Exact) -> Self {
        let sources = exact.lines.keys().next_back().map_or(0, |last| last.0 as usize + 1);
        let mut seen = Self { gross: exact.made as f64, ..Self::none(sources) };
        for (source, &(bytes, count)) in &exact.lines {
            (seen.bytes[source.0 as usize], seen.count[source.0 as usize]) = (bytes as f64, count as f64);
        }
        seen
    }

    /// Adds the allocations of a stratum, assuming that it is like these windows with these weights.
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
    /// The weights for windows, each with its multiplicity.
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

    /// What a byte in such a window represents, if one byte was allocated in total.
    fn of(&self, sum: &Sum) -> f64 {
        let level = self.levels.iter().find(|level| level.level == sum.level);
        level.map_or(0.0, |level| level.rate / self.rate / level.made)
    }

    /// The bytes allocated in the stratum. It needs the known allocated bytes, or the bytes that were not freed explicitly.
    pub fn gross(&self, stratum: &Stratum) -> f64 {
        self.gross_and_doubt(stratum).0
    }

    /// The same, with the relative error that other windows would not change: one standard deviation.
    pub fn gross_and_doubt(&self, stratum: &Stratum) -> (f64, f64) {
        let volume = &stratum.volume;
        if self.levels.is_empty() || volume.net == 0.0 && volume.gross > 0.0 {
            return (volume.gross + volume.net, 0.0);
        }
        // Take the sums over all windows: in a single window, a buffer may shrink by more than is allocated in it.
        let sum = |of: fn(&Windows) -> f64| self.levels.iter().map(of).sum::<f64>();
        let (net, made) = (sum(|level| level.net), sum(|level| level.made));
        let part = (net / made).clamp(LEAST_NET, 1.0);
        let by_net = volume.net.max(0.0) / part;
        let Some(by_time) = stratum.cpu_time.gross() else { return (volume.gross + by_net, 0.0) };
        // The relative error of the proportion, from its differences between windows.
        let off = sum(|level| level.net_squares) - 2.0 * part * sum(|level| level.made_net)
            + part * part * sum(|level| level.made_squares);
        let variance = if net < LEAST_NET * made { UNKNOWN } else { off.max(0.0) / (part * made).powi(2) };
        let (blend, deviation) = by_time.blend(by_net, variance);
        let whole = volume.gross + blend;
        (whole, if whole > 0.0 { deviation / whole } else { 0.0 })
    }

    /// The number of windows of equal weight that would be as informative.
    pub fn windows(&self) -> f64 {
        let squares = |level: &Windows| (level.rate / self.rate / level.made).powi(2) * level.made_squares;
        1.0 / self.levels.iter().map(squares).sum::<f64>()
    }
}
