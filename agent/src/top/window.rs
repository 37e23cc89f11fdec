//! Sums over the last seconds, and since the beginning.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::ops::AddAssign;

/// The time span of sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Span {
    /// The last intervals: as many as fit into the window.
    #[default]
    Recent,
    /// Everything since the recording began, or was cleared.
    All,
}

/// Sums by key, in intervals whose length the caller decides.
///
/// It keeps the keys of the last intervals, and 16,384 other keys. Further keys are merged into one.
#[derive(Clone, Debug)]
pub struct TopWindow<K, V> {
    length: usize,
    current: HashMap<K, V>,
    past: VecDeque<HashMap<K, V>>,
    all: HashMap<K, V>,
    /// The key that replaces keys without room.
    rare: Option<K>,
}

/// How many keys from before the window to keep: more than anybody would read.
const MAX_KEYS: usize = 1 << 14;

impl<K: Clone + Eq + Hash, V: AddAssign + Copy + Default> TopWindow<K, V> {
    /// An empty window over the current interval and `length` intervals before it.
    pub fn new(length: usize) -> Self {
        Self { length, current: HashMap::new(), past: VecDeque::new(), all: HashMap::new(), rare: None }
    }

    /// The same; keys without room become `rare`.
    pub fn folding(length: usize, rare: K) -> Self {
        Self { rare: Some(rare), ..Self::new(length) }
    }

    /// Adds to a key's sum.
    pub fn add(&mut self, key: &K, value: V) {
        for sums in [&mut self.current, &mut self.all] {
            match sums.get_mut(key) {
                Some(sum) => *sum += value,
                None => drop(sums.insert(key.clone(), value)),
            }
        }
        if self.all.len() > 2 * MAX_KEYS {
            self.fold();
        }
    }

    /// Merges keys that are not recent.
    fn fold(&mut self) {
        let Some(rare) = self.rare.clone() else { return };
        let Self { current, past, all, .. } = self;
        let is_recent = |key: &K| current.contains_key(key) || past.iter().any(|sums| sums.contains_key(key));
        let mut folded = V::default();
        let mut left = all.len();
        all.retain(|key, value| {
            let stays = is_recent(key) || left <= MAX_KEYS;
            if !stays {
                folded += *value;
                left -= 1;
            }
            stays
        });
        *all.entry(rare).or_default() += folded;
    }

    /// Ends the current interval.
    pub fn roll(&mut self) {
        self.past.push_back(std::mem::take(&mut self.current));
        while self.past.len() > self.length {
            self.past.pop_front();
        }
    }

    /// How many intervals [`Span::Recent`] covers by now, including the current one.
    pub fn intervals(&self) -> usize {
        self.past.len() + 1
    }

    /// The sums, unsorted.
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
        *self = Self { rare: self.rare.take(), ..Self::new(self.length) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_intervals_leave_the_recent_sums_alone() {
        let mut window = TopWindow::new(2);
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

    #[test]
    fn there_is_an_end_to_keys() {
        let mut window = TopWindow::folding(1, u64::MAX);
        for key in 0..10 * MAX_KEYS as u64 {
            window.add(&key, 1);
            window.add(&7, 1);
            if key % 100 == 0 {
                window.roll();
            }
            assert!(window.all.len() <= 2 * MAX_KEYS + 1);
        }
        let sums = window.sums(Span::All);
        assert_eq!(sums.values().sum::<u64>(), 20 * MAX_KEYS as u64, "nothing is lost");
        assert_eq!(sums[&7], 10 * MAX_KEYS as u64 + 1);
        assert!(sums[&u64::MAX] > 7 * MAX_KEYS as u64, "{}", sums[&u64::MAX]);
    }
}
