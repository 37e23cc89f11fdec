//! What weights count.

use super::Weights;

/// The unit of a measure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unit {
    /// Samples of CPU time.
    #[default]
    Samples,
    /// CPU time, or time of waiting.
    Nanoseconds,
    /// Blocks of memory.
    Objects,
    /// Coroutines at a time.
    Coroutines,
    /// Allocations, reallocations and frees; waits.
    Events,
    /// Bytes of memory.
    Bytes,
}

impl Unit {
    /// Its name, in the plural.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Samples => "samples",
            Self::Nanoseconds => "nanoseconds",
            Self::Objects => "objects",
            Self::Coroutines => "coroutines",
            Self::Events => "events",
            Self::Bytes => "bytes",
        }
    }
}

/// A number that each stack has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measure {
    /// Its name among profilers, as pprof's tools know it: `samples`, `alloc_space`.
    pub name: &'static str,
    /// What it counts.
    pub unit: Unit,
    /// Which of the weights it is.
    pub index: usize,
    /// What one of that weight is in the unit.
    pub factor: u64,
}

impl Measure {
    /// Weight `index`, as it is.
    pub const fn new(name: &'static str, unit: Unit, index: usize) -> Self {
        Self { name, unit, index, factor: 1 }
    }

    /// What a stack of these weights has of it.
    pub fn value(&self, weights: &Weights) -> u64 {
        weights[self.index].saturating_mul(self.factor)
    }
}
