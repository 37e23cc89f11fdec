//! The longest turns.

use super::Blocker;

/// Keeps the longest of all turns.
#[derive(Clone, Debug)]
pub struct Longest {
    most: usize,
    kept: Vec<Blocker>,
}

impl Longest {
    /// Keeps this many turns.
    pub fn new(most: usize) -> Self {
        Self { most, kept: Vec::new() }
    }

    /// Adds a turn.
    pub fn add(&mut self, blocker: Blocker) {
        let place = self.kept.partition_point(|kept| kept.turn.length() >= blocker.turn.length());
        if place < self.most {
            self.kept.insert(place, blocker);
            self.kept.truncate(self.most);
        }
    }

    /// The turns, the longest first.
    pub fn all(&self) -> &[Blocker] {
        &self.kept
    }
}
