//! The longest turns.

use super::Blocker;

/// The longest of all that there were.
#[derive(Clone, Debug)]
pub struct Longest {
    most: usize,
    kept: Vec<Blocker>,
}

impl Longest {
    /// So many of them.
    pub fn new(most: usize) -> Self {
        Self { most, kept: Vec::new() }
    }

    /// One more.
    pub fn add(&mut self, blocker: Blocker) {
        let place = self.kept.partition_point(|kept| kept.turn.length() >= blocker.turn.length());
        if place < self.most {
            self.kept.insert(place, blocker);
            self.kept.truncate(self.most);
        }
    }

    /// The longest first.
    pub fn all(&self) -> &[Blocker] {
        &self.kept
    }
}
