//! CPU samples for the JIT report, by the place in the innermost Lua function and by the kind of code that ran there.

use std::collections::HashMap;
use std::ops::AddAssign;

use serde::Serialize;

use crate::PrototypeKey;

/// A place in a Lua function, as a sample shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CodePosition {
    /// The function.
    pub prototype: PrototypeKey,
    /// Index of the instruction; [`None`] if that is not known.
    pub position: Option<u32>,
}

/// Counts of samples with the same innermost place in Lua code, by the kind of code that ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CodeCounts {
    /// Samples in the interpreter, at this place itself.
    pub interpreted: u64,
    /// Samples in a library function that the interpreter called from this place.
    pub library: u64,
    /// Samples in a trace.
    pub compiled: u64,
    /// Other samples: in a C function, the garbage collector, the JIT compiler.
    pub other: u64,
}

impl CodeCounts {
    /// The sum of all counts.
    pub fn all(&self) -> u64 {
        self.interpreted + self.library + self.compiled + self.other
    }
}

impl AddAssign for CodeCounts {
    fn add_assign(&mut self, other: Self) {
        self.interpreted += other.interpreted;
        self.library += other.library;
        self.compiled += other.compiled;
        self.other += other.other;
    }
}

/// Samples by place. If a program generates functions without end, the samples of later ones count without a place.
#[derive(Clone, Debug, Default)]
pub struct CodeSamples {
    places: HashMap<CodePosition, CodeCounts>,
    /// Samples without a known place, or without room for their place.
    pub elsewhere: CodeCounts,
}

/// The most places that are kept.
const MOST_PLACES: usize = 1 << 16;

impl CodeSamples {
    /// Adds counts to a place, if it is known.
    pub fn add(&mut self, place: Option<CodePosition>, counts: CodeCounts) {
        let has_room = self.places.len() < MOST_PLACES;
        match place.filter(|place| has_room || self.places.contains_key(place)) {
            Some(place) => *self.places.entry(place).or_default() += counts,
            None => self.elsewhere += counts,
        }
    }

    /// All places, in no order.
    pub fn places(&self) -> impl Iterator<Item = (&CodePosition, &CodeCounts)> {
        self.places.iter()
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_an_end_to_places() {
        let mut samples = CodeSamples::default();
        let one = CodeCounts { interpreted: 1, ..CodeCounts::default() };
        let count = 2 * MOST_PLACES as u32;
        for position in 0..count {
            let prototype = PrototypeKey { address: 8, chunkname: 0, firstline: 0, sizebc: count };
            samples.add(Some(CodePosition { prototype, position: Some(position) }), one);
        }
        samples.add(None, one);
        let kept: u64 = samples.places().map(|(_, counts)| counts.all()).sum();
        assert_eq!((kept, samples.elsewhere.interpreted), (MOST_PLACES as u64, MOST_PLACES as u64 + 1));
    }
}
