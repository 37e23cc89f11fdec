//! Sums over the last seconds, and since the beginning.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::ops::AddAssign;

/// What sums are over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Span {
    /// The last intervals: as many as the window is long.
    #[default]
    Recent,
    /// Everything since the recording began, or was begun anew.
    All,
}

/// Sums by key, in intervals that somebody else measures.
///
/// It keeps the keys of the last intervals and all keys ever seen: memory grows with the number of keys, not with time.
#[derive(Clone, Debug)]
pub struct Window<K, V> {
    length: usize,
    current: HashMap<K, V>,
    past: VecDeque<HashMap<K, V>>,
    all: HashMap<K, V>,
}

impl<K: Clone + Eq + Hash, V: AddAssign + Copy + Default> Window<K, V> {
    /// An empty window over the running interval and so many more before it.
    pub fn new(length: usize) -> Self {
        Self { length, current: HashMap::new(), past: VecDeque::new(), all: HashMap::new() }
    }

    /// Adds to a key's sum.
    pub fn add(&mut self, key: &K, value: V) {
        for sums in [&mut self.current, &mut self.all] {
            match sums.get_mut(key) {
                Some(sum) => *sum += value,
                None => drop(sums.insert(key.clone(), value)),
            }
        }
    }

    /// Ends the running interval.
    pub fn roll(&mut self) {
        self.past.push_back(std::mem::take(&mut self.current));
        while self.past.len() > self.length {
            self.past.pop_front();
        }
    }

    /// How many intervals [`Span::Recent`] covers by now; the running one counts.
    pub fn intervals(&self) -> usize {
        self.past.len() + 1
    }

    /// The sums, in no order.
    pub fn sums(&self, span: Span) -> HashMap<K, V> {
        if span == Span::All {
            return self.all.clone();
        }
        let mut sums = self.current.clone();
        for (key, value) in self.past.iter().flatten() {
            *sums.entry(key.clone()).or_default() += *value;
        }
        sums
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Self::new(self.length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_intervals_leave_the_recent_sums_alone() {
        let mut window = Window::new(2);
        window.add(&'a', 1);
        window.roll();
        window.add(&'a', 10);
        window.add(&'b', 5);
        window.roll();
        assert_eq!(window.sums(Span::Recent), [('a', 11), ('b', 5)].into());
        window.roll();
        assert_eq!(window.sums(Span::Recent), [('a', 10), ('b', 5)].into());
        window.roll();
        assert_eq!(window.sums(Span::Recent), [].into());
        assert_eq!(window.sums(Span::All), [('a', 11), ('b', 5)].into());
        assert_eq!(window.intervals(), 3);
        window.clear();
        assert!(window.sums(Span::All).is_empty());
    }
}
