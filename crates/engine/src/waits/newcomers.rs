//! Finds the coroutines that are new on a VM's list of objects, without walking all of it.
//!
//! New objects are put at the list's head, and objects never change places on it (`lj_mem_newgco`). So a walk meets all new
//! coroutines before the known ones. An address does not identify a coroutine: a new one may have the address of a freed
//! one. But then the walk meets it out of order. So the walk goes on until it has met [`RUN`] known coroutines in a row, in
//! their previous order, with no unknown one between them.

use std::collections::HashMap;

/// The number of known coroutines in a row that cannot be chance.
const RUN: usize = 4;
/// The number of newest coroutines whose addresses the walk looks for.
const NEWEST: usize = 256;

/// Walks from the head of the list until only known coroutines follow.
#[derive(Debug)]
pub struct Meeting {
    /// The positions of the known coroutines, by their addresses.
    known: HashMap<u64, usize>,
    /// The coroutines that were met, the newest first.
    met: Vec<u64>,
    last: Option<usize>,
    run: usize,
    /// The number of met coroutines when the current run began.
    before_run: usize,
}

/// The result of a walk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Met {
    /// The new coroutines, and the known ones that were not met in order; the oldest first.
    pub newest: Vec<u64>,
    /// The number of known coroutines that are older than these.
    pub older: usize,
}

impl Meeting {
    /// A walk that knows these coroutines, the oldest first.
    pub fn new(known: impl DoubleEndedIterator<Item = u64> + ExactSizeIterator) -> Self {
        let places = (0..known.len()).rev();
        let known = known.rev().zip(places).take(NEWEST).collect();
        Self { known, met: Vec::new(), last: None, run: 0, before_run: 0 }
    }

    /// Meets the next coroutine. Returns false once only known ones follow.
    pub fn meet(&mut self, address: u64) -> bool {
        match self.known.get(&address) {
            Some(&place) => {
                if self.last != Some(place + 1) {
                    (self.run, self.before_run) = (0, self.met.len());
                }
                (self.last, self.run) = (Some(place), self.run + 1);
            }
            None => (self.last, self.run) = (None, 0),
        }
        self.met.push(address);
        self.run < RUN
    }

    /// The result. `stopped` says that the walk ended early, because only known coroutines follow.
    pub fn finish(self, stopped: bool) -> Met {
        let Self { mut met, last, run, before_run, .. } = self;
        let older = match last.filter(|_| stopped) {
            Some(last) => {
                met.truncate(before_run);
                last + run
            }
            None => 0,
        };
        met.reverse();
        Met { newest: met, older }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use super::*;

    /// A VM's list of coroutines, whose addresses are reused.
    struct Heap {
        /// The coroutines, the oldest first: address and identity.
        list: Vec<(u64, u64)>,
        free: Vec<u64>,
        next_address: u64,
        next_identity: u64,
    }

    impl Heap {
        fn create(&mut self, rng: &mut fastrand::Rng) {
            let reused = if rng.u32(..4) == 0 { None } else { self.free.pop() };
            let address = reused.unwrap_or_else(|| {
                self.next_address += 16;
                self.next_address
            });
            self.next_identity += 1;
            self.list.push((address, self.next_identity));
        }

        fn collect(&mut self, rng: &mut fastrand::Rng, share: f64) {
            let freed: Vec<u64> = self.list.extract_if(.., |_| rng.f64() < share).map(|(address, _)| address).collect();
            self.free.extend(freed);
            rng.shuffle(&mut self.free);
        }
    }

    /// After each walk, all existing coroutines are known, as long as dead ones are noticed. Only the newest one may be
    /// another by now without being noticed.
    #[test]
    fn walks_find_all_that_is_new_whatever_addresses_are_used_again() {
        let (mut walked, mut all, mut wrong) = (0, 0, 0);
        for seed in 0..300 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut heap = Heap { list: Vec::new(), free: Vec::new(), next_address: 0, next_identity: 0 };
            let mut known: Vec<(u64, u64)> = Vec::new();
            for _ in 0..30 {
                (0..rng.usize(..100)).for_each(|_| heap.create(&mut rng));
                if rng.u32(..3) == 0 {
                    let share = rng.f64() / 2.0;
                    heap.collect(&mut rng, share);
                    (0..rng.usize(..50)).for_each(|_| heap.create(&mut rng));
                }
                // Heads reveal dead coroutines, unless other coroutines have their addresses by now.
                let there: HashMap<u64, u64> = heap.list.iter().copied().collect();
                known.retain(|(address, _)| there.contains_key(address));
                let mut meeting = Meeting::new(known.iter().map(|(address, _)| *address));
                let mut count = 0;
                let stopped = heap.list.iter().rev().any(|&(address, _)| {
                    count += 1;
                    !meeting.meet(address)
                });
                (walked, all) = (walked + count, all + heap.list.len());
                let Met { newest, older } = meeting.finish(stopped);
                known.truncate(older);
                // A coroutine that was met as new is no longer the one that was known.
                let met: HashSet<u64> = newest.iter().copied().collect();
                known.retain(|(address, _)| !met.contains(address));
                known.extend(newest.into_iter().map(|address| (address, there[&address])));
                let addresses = |list: &[(u64, u64)]| list.iter().map(|(address, _)| *address).collect::<Vec<_>>();
                assert_eq!(addresses(&known), addresses(&heap.list), "seed {seed}");
                wrong += known.iter().zip(&heap.list).filter(|(known, there)| known.1 != there.1).count();
            }
        }
        assert!(walked < all * 3 / 4, "{walked} of {all} were walked");
        assert!(wrong * 1000 < all, "{wrong} of {all} were taken for others");
    }

    #[test]
    fn what_is_met_out_of_its_order_is_new() {
        let meet = |known: &[u64], list: &[u64]| {
            let mut meeting = Meeting::new(known.iter().copied());
            let stopped = list.iter().any(|address| !meeting.meet(*address));
            meeting.finish(stopped)
        };
        let known = [1, 2, 3, 4, 5, 6];
        assert_eq!(meet(&known, &[9, 6, 5, 4, 3, 2, 1]), Met { newest: vec![9], older: 6 });
        // The third one was freed, and its address is now that of the newest.
        assert_eq!(meet(&known, &[3, 9, 6, 5, 4, 2, 1]), Met { newest: vec![1, 2, 4, 5, 6, 9, 3], older: 0 });
        assert_eq!(meet(&[1, 2, 4, 5, 6], &[3, 9, 6, 5, 4, 2, 1]), Met { newest: vec![9, 3], older: 5 });
        assert_eq!(meet(&[], &[2, 1]), Met { newest: vec![1, 2], older: 0 });
    }
}
