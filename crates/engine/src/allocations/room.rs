//! Limits the memory of a memory profile's tables. All its VMs share the limit.

use std::cell::Cell;
use std::rc::Rc;

/// The bytes for the names of functions that allocate: enough for two hundred thousand at a time. Usual programs have a
/// hundredth of that.
const BYTES: usize = 64 << 20;

/// The bytes that the entries of a name take in all tables, besides the name itself.
pub const ENTRY: usize = 256;

/// The memory that is left for names.
#[derive(Clone, Debug)]
pub struct NameRoom {
    left: Rc<Cell<usize>>,
    taken: Rc<Taken>,
}

/// The memory that one user and its clones have taken. It is given back once all of them are gone.
#[derive(Debug)]
struct Taken {
    left: Rc<Cell<usize>>,
    bytes: Cell<usize>,
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.left.set(self.left.get().saturating_add(self.bytes.get()));
    }
}

impl Default for NameRoom {
    fn default() -> Self {
        Self::of(BYTES)
    }
}

impl NameRoom {
    /// A room of this many bytes.
    pub fn of(bytes: usize) -> Self {
        Self::within(Rc::new(Cell::new(bytes)))
    }

    /// The same room for another user, whose memory is given back when that user is gone.
    pub fn of_another(&self) -> Self {
        Self::within(self.left.clone())
    }

    fn within(left: Rc<Cell<usize>>) -> Self {
        Self { taken: Rc::new(Taken { left: left.clone(), bytes: Cell::new(0) }), left }
    }

    /// Takes this many bytes, if they are left.
    #[must_use]
    pub fn take(&self, bytes: usize) -> bool {
        let Some(left) = self.left.get().checked_sub(bytes) else { return false };
        self.left.set(left);
        self.taken.bytes.set(self.taken.bytes.get() + bytes);
        true
    }

    /// Gives bytes back.
    pub fn give(&self, bytes: usize) {
        let bytes = bytes.min(self.taken.bytes.get());
        self.taken.bytes.set(self.taken.bytes.get() - bytes);
        self.left.set(self.left.get().saturating_add(bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_gone_for_all_until_it_is_given_back() {
        let room = NameRoom::of(100);
        let another = room.clone();
        assert!(room.take(60) && !another.take(41) && another.take(40) && !room.take(1));
        another.give(60);
        assert!(room.take(60));
    }

    #[test]
    fn what_a_user_has_taken_is_given_back_when_it_is_gone() {
        let room = NameRoom::of(100);
        assert!(room.take(30));
        let other = room.of_another();
        assert!(other.clone().take(50) && other.take(20) && !room.take(1));
        drop(other);
        assert!(room.take(70) && !room.take(1));
    }
}
