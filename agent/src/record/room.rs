//! A bound on what the tables of a memory profile take together: those of all its VMs share it.

use std::cell::Cell;
use std::rc::Rc;

/// Bytes of memory that there are for the names of what allocates: for two hundred thousand functions at a time. A program has
/// a hundredth of that, unless it is made to have more.
const BYTES: usize = 64 << 20;

/// What the entries of a name take in all tables, beside the name itself.
pub const ENTRY: usize = 256;

/// The memory that is left for names.
#[derive(Clone, Debug)]
pub struct Room(Rc<Cell<usize>>);

impl Default for Room {
    fn default() -> Self {
        Self::of(BYTES)
    }
}

impl Room {
    /// So many bytes.
    pub fn of(bytes: usize) -> Self {
        Self(Rc::new(Cell::new(bytes)))
    }

    /// Takes so many bytes, if they are left.
    #[must_use]
    pub fn take(&self, bytes: usize) -> bool {
        let left = self.0.get().checked_sub(bytes);
        left.inspect(|&left| self.0.set(left)).is_some()
    }

    /// Gives back what was taken.
    pub fn give(&self, bytes: usize) {
        self.0.set(self.0.get().saturating_add(bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_gone_for_all_until_it_is_given_back() {
        let room = Room::of(100);
        let another = room.clone();
        assert!(room.take(60) && !another.take(41) && another.take(40) && !room.take(1));
        another.give(60);
        assert!(room.take(60));
    }
}
