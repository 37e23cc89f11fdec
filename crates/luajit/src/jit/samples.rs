//! CPU samples for the JIT report, by the place in the innermost Lua function and by what ran there.

use std::collections::HashMap;
use std::ops::AddAssign;

use serde::Serialize;

use crate::PrototypeKey;

/// A place in a Lua function, as a sample has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CodePosition {
    /// The function.
    pub prototype: PrototypeKey,
    /// Which of its instructions; [`None`] if that is not known.
    pub position: Option<u32>,
}

/// Samples by what ran, while a place was the innermost one of Lua code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CodeCounts {
    /// The interpreter, at this place itself.
    pub interpreted: u64,
    /// A library function that the interpreter has called there.
    pub library: u64,
    /// A trace.
    pub compiled: u64,
    /// Anything else: a C function, the garbage collector, the JIT compiler.
    pub other: u64,
}

impl CodeCounts {
    /// All of them.
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

/// Samples by place. Those of functions that are generated without end become places without a name.
#[derive(Clone, Debug, Default)]
pub struct CodeSamples {
    places: HashMap<CodePosition, CodeCounts>,
    /// Those of which no place is known, or no room was left for it.
    pub elsewhere: CodeCounts,
}

/// More places are not kept.
const MOST_PLACES: usize = 1 << 16;

impl CodeSamples {
    /// Counts at a place, if it is known.
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
