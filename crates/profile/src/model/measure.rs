//! What the weights of stacks measure.

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
    /// The number of coroutines that wait at a time.
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

/// A value that each stack has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measure {
    /// Its name in pprof and similar tools: `samples`, `alloc_space`.
    pub name: &'static str,
    /// What it counts.
    pub unit: Unit,
    /// The index of its weight.
    pub index: usize,
    /// How many units one of that weight is.
    pub factor: u64,
}

impl Measure {
    /// Weight `index`, with factor 1.
    pub const fn new(name: &'static str, unit: Unit, index: usize) -> Self {
        Self { name, unit, index, factor: 1 }
    }

    /// The value of this measure for a stack with these weights.
    pub fn value(&self, weights: &Weights) -> u64 {
        weights[self.index].saturating_mul(self.factor)
    }
}
