//! Strata: classes with enough windows each, and the estimate for each.

use std::collections::HashMap;

use super::classes::{Class, ClassKey, Classes};
use super::exact::Exact;
use super::outcome::{LevelWeights, Outcome};
use super::sums::Sum;
use super::tables::Share;
use super::timeline::Volume;
use super::used_time::CpuTime;
use crate::observation::{Part, SourceId};

/// A class with fewer windows is merged with a similar one.
const FEW: u64 = 6;

/// Classes with less similarity are not merged.
const LIKE: f64 = 0.3;

/// Classes with less than this share of all bytes are merged even if they are not similar: they cannot spoil much.
const SMALL: f64 = 0.005;

/// All strata.
#[derive(Clone, Debug)]
pub struct Strata {
    pub all: Vec<Stratum>,
    /// The known allocations: those in windows, and those of string tables.
    pub seen: Outcome,
    /// The long windows as one short window, for a recording without any short window.
    last_resort: Vec<Sum>,
}

/// A set of classes that are estimated together.
#[derive(Clone, Debug)]
pub struct Stratum {
    pub key: ClassKey,
    /// The allocations outside of windows.
    pub volume: Volume,
    /// The CPU time outside of windows.
    pub cpu_time: CpuTime,
    /// The sums over windows, by level.
    pub sums: Vec<Sum>,
}

impl Strata {
    /// Merges classes into strata.
    pub fn new(classes: &Classes, exact: &Exact, tables: &[Share], period: f64) -> Self {
        let mut all = merge(classes.all().iter().enumerate().map(Stratum::of).collect());
        let last_resort = if exact.made > 0 { vec![like_exact(exact)] } else { Vec::new() };
        all.iter_mut().for_each(|stratum| stratum.cpu_time.set_period(period));
        let mut seen = Outcome::of(exact);
        tables.iter().for_each(|share| share.add_to(&mut seen));
        let mut strata = Self { all, seen, last_resort };
        strata.deduct(&classes.late);
        strata
    }

    /// Subtracts allocations that became known too late to know their class.
    fn deduct(&mut self, late: &Volume) {
        let mut whole = Volume::default();
        for stratum in &mut self.all {
            stratum.volume.gross = stratum.volume.gross.max(0.0);
            stratum.volume.net = stratum.volume.net.max(0.0);
            whole.add(&stratum.volume);
        }
        let left = |late: f64, whole: f64| if whole > 0.0 { (1.0 - late / whole).clamp(0.0, 1.0) } else { 1.0 };
        for stratum in &mut self.all {
            stratum.volume.gross *= left(late.gross, whole.gross);
            stratum.volume.net *= left(late.net, whole.net);
        }
    }

    /// The allocations of all sources.
    pub fn outcome(&self) -> Outcome {
        let every = self.every();
        let mut outcome = self.seen.clone();
        for stratum in &self.all {
            outcome.add(stratum, &stratum.drawn(&every));
        }
        outcome
    }

    /// All windows: a stratum without windows is assumed to be like these.
    pub fn every(&self) -> Vec<(&Sum, f64)> {
        let short = || self.all.iter().flat_map(|stratum| &stratum.sums);
        let any = short().next().is_some();
        short().chain(self.last_resort.iter().filter(|_| !any)).map(|sum| (sum, 1.0)).collect()
    }

    /// The number of short windows that saw something.
    pub fn windows(&self) -> u64 {
        self.all.iter().map(Stratum::windows).sum()
    }

    /// The bytes allocated outside of windows, by stratum.
    fn outside(&self) -> Vec<f64> {
        let every = self.every();
        let gross = |stratum: &Stratum| LevelWeights::new(&stratum.drawn(&every)).gross(stratum);
        self.all.iter().map(gross).collect()
    }

    /// The share of all bytes that was allocated outside of windows, and is therefore estimated.
    pub fn estimated(&self) -> f64 {
        let outside: f64 = self.outside().iter().sum();
        if outside > 0.0 { outside / (outside + self.seen.gross) } else { 0.0 }
    }

    /// The bytes that were not freed explicitly, as a share of the bytes allocated outside of windows.
    pub fn net_share(&self) -> f64 {
        let net: f64 = self.all.iter().map(|stratum| stratum.volume.sum()).sum();
        let gross: f64 = self.outside().iter().sum();
        if gross > 0.0 { net / gross } else { 1.0 }
    }

    /// The share of all bytes in strata without a window.
    pub fn blind(&self) -> f64 {
        let outside = self.outside();
        let blind: f64 = self.all.iter().zip(&outside).filter(|(s, _)| s.sums.is_empty()).map(|(_, bytes)| bytes).sum();
        let whole = outside.iter().sum::<f64>() + self.seen.gross;
        if whole > 0.0 { blind / whole } else { 0.0 }
    }

    /// The share that an unseen source may have. Windows with a low weight count as a part of one window.
    pub fn unseen(&self) -> f64 {
        // No line has a number as large as this.
        (self.blind() + self.overlooked(&[SourceId(u32::MAX)])[0]).min(1.0)
    }

    /// The share that each of these sources may have in addition, in stretches that no window hit. It is nothing if every
    /// window of a stratum has seen the source. If none has, it is what [`unseen`](Self::unseen) says.
    ///
    /// This is the rule of three: in one of 20 cases, all of n windows miss something that 3 in n windows show on average.
    pub fn overlooked(&self, sources: &[SourceId]) -> Vec<f64> {
        const RULE_OF_THREE: f64 = 3.0;
        let outside = self.outside();
        let whole: f64 = outside.iter().sum();
        let mut overlooked = vec![0.0; sources.len()];
        if whole <= 0.0 {
            return overlooked;
        }
        let estimated = self.estimated();
        for (stratum, bytes) in self.all.iter().zip(&outside).filter(|(stratum, _)| !stratum.sums.is_empty()) {
            let windows = LevelWeights::new(&stratum.drawn(&[])).windows();
            let none = RULE_OF_THREE * (bytes / whole).powi(2) / windows * estimated;
            let mut seen = HashMap::<SourceId, u64>::new();
            for sum in &stratum.sums {
                sum.parts.iter().for_each(|part| *seen.entry(part.source).or_default() += sum.windows);
            }
            let all = stratum.windows().max(1) as f64;
            for (overlooked, source) in overlooked.iter_mut().zip(sources) {
                let seen = seen.get(source).copied().unwrap_or(0) as f64;
                *overlooked += none * (1.0 - seen / all).max(0.0);
            }
        }
        overlooked
    }
}

impl Stratum {
    /// The stratum of one class. Its windows stay separate from those of other classes, even after strata are merged.
    fn of((number, class): (usize, &Class)) -> Self {
        let mut sums: Vec<Sum> = class.batches.sums().cloned().collect();
        sums.iter_mut().for_each(|sum| sum.level.class = number);
        Self { key: class.key.clone(), volume: class.volume, cpu_time: class.cpu_time, sums }
    }

    /// Its windows, each once; or the windows of `every` stratum if it has none.
    pub fn drawn<'a>(&'a self, every: &[(&'a Sum, f64)]) -> Vec<(&'a Sum, f64)> {
        if self.sums.is_empty() { every.to_vec() } else { self.sums.iter().map(|sum| (sum, 1.0)).collect() }
    }

    fn join(&mut self, other: Self) {
        if other.volume.sum() > self.volume.sum() {
            self.key = other.key;
        }
        self.volume.add(&other.volume);
        self.cpu_time.join(&other.cpu_time);
        self.sums.extend(other.sums);
    }

    /// The number of windows that saw something.
    pub fn windows(&self) -> u64 {
        self.sums.iter().map(|sum| sum.windows).sum()
    }
}

/// Merges strata with few windows with similar ones.
fn merge(mut all: Vec<Stratum>) -> Vec<Stratum> {
    let whole: f64 = all.iter().map(|stratum| stratum.volume.sum()).sum();
    let mut done = Vec::new();
    loop {
        let candidates = (0..all.len()).filter(|&i| all[i].windows() < FEW);
        let Some(at) = candidates.min_by_key(|&i| all[i].windows()) else { break };
        let few = all.swap_remove(at);
        let small = few.volume.sum() < SMALL * whole;
        let like = |other: &Stratum| few.key.similarity(&other.key);
        let best = all.iter_mut().chain(&mut done).max_by(|a, b| {
            let by_rate = |s: &Stratum| std::cmp::Reverse((s.key.rate - few.key.rate).abs());
            like(a).total_cmp(&like(b)).then_with(|| by_rate(a).cmp(&by_rate(b)))
        });
        match best {
            Some(best) if small || like(best) >= LIKE => best.join(few),
            _ => done.push(few),
        }
    }
    all.extend(done);
    all
}

/// The long windows as if they were a single short window.
fn like_exact(exact: &Exact) -> Sum {
    let part = |(&source, &(bytes, count)): (_, &(u64, u64))| Part { source, bytes: bytes as f64, count: count as f64 };
    let made = exact.made as f64;
    Sum {
        windows: 1,
        rate: 1.0,
        squares: 1.0,
        made,
        made_squares: made * made,
        net: made - exact.freed as f64,
        parts: exact.lines.iter().map(part).collect(),
        ..Sum::default()
    }
}
