//! Limits the memory of stacks: the rarest stacks give up their innermost frames.
//!
//! The weight of a folded stack goes to the frames that it shares with a stack that is kept, with [`Frame::Rare`] in
//! place of the rest. So no weight is lost, and the totals of every kept function, with all that it calls, are as exact
//! as before.

use std::cmp::Reverse;
use std::sync::Arc;

use super::stacks::{FrameId, StackId, StackTable};
use super::{Labels, Weights};
use crate::Frame;

impl StackTable {
    /// Folds the rarest stacks until about `keep` bytes of memory are left. Returns the new number of each stack,
    /// indexed by its old number. Frames get new numbers, too.
    pub fn fold_rare(&mut self, keep: usize) -> Vec<StackId> {
        let old = std::mem::take(self);
        if old.shows_roots() {
            self.show_roots();
        }
        let mut order: Vec<_> = old.numbered().map(|(id, row)| (id, weight(row.weights))).collect();
        // Of equally heavy stacks, the newest are the most likely to come again.
        order.sort_by_key(|(id, weight)| Reverse((*weight, id.index())));
        let mut moved = vec![None; order.len()];
        let mut kept = 0;
        for &(id, _) in &order {
            if self.bytes() >= keep {
                break;
            }
            let Some((labels, frames, weights)) = old.whole(id) else { continue };
            moved[id.index()] = Some(self.take_in(labels, frames.iter().filter_map(|id| old.frame(*id)), weights));
            kept += 1;
        }
        let (known, threads) = (self.sorted(), self.threads());
        for &(id, _) in &order[kept..] {
            let Some((labels, frames, weights)) = old.whole(id) else { continue };
            let shared = self.shared_frames(&known, frames.iter().map_while(|id| old.frame(*id)));
            let frames: Vec<Frame> = shared.iter().filter_map(|id| self.frame(*id).cloned()).collect();
            let frames = frames.iter().filter(|frame| **frame != Frame::Rare).chain([&Frame::Rare]);
            // Threads, traces and fibers come and go as functions do.
            let thread = labels.thread.clone().filter(|thread| threads.contains(thread));
            // Requests have a bounded number of labels.
            let labels = Labels { thread, state: labels.state, request: labels.request.clone(), ..Labels::default() };
            moved[id.index()] = Some(self.take_in(&labels, frames, weights));
        }
        // What is taken from a stack was added to the one that it was joined with.
        for (stack, other) in old.joined() {
            moved[stack.index()] = moved[other.index()];
        }
        // Every old stack has a new one.
        moved.into_iter().flatten().collect()
    }

    /// The weight of the folded stacks among the current stacks.
    pub fn folded(&self) -> Weights {
        let mut folded = Weights::default();
        for (id, row) in self.numbered() {
            let is_folded = self.whole(id).is_some_and(|(_, frames, _)| self.is_rare(frames));
            if is_folded {
                folded.iter_mut().zip(row.weights).for_each(|(sum, weight)| *sum = sum.saturating_add(*weight));
            }
        }
        folded
    }

    fn is_rare(&self, frames: &[FrameId]) -> bool {
        frames.iter().rev().any(|id| self.frame(*id) == Some(&Frame::Rare))
    }

    fn take_in<'a>(&mut self, labels: &Labels, frames: impl Iterator<Item = &'a Frame>, weights: &Weights) -> StackId {
        let frames: Vec<_> = frames.map(|frame| self.intern(frame.clone())).collect();
        let id = self.labelled(labels, &frames);
        weights.iter().enumerate().for_each(|(index, weight)| self.add(id, index, *weight));
        id
    }

    /// The frames of all stacks, sorted so that stacks with the same beginning are neighbours.
    fn sorted(&self) -> Vec<Arc<[FrameId]>> {
        let mut keys = self.keys();
        keys.sort_unstable_by(|a, b| a[1..].cmp(&b[1..]));
        keys
    }

    /// The longest part of a stack, from its root on, that one of `known` begins with.
    fn shared_frames<'a>(&self, known: &[Arc<[FrameId]>], frames: impl Iterator<Item = &'a Frame>) -> Vec<FrameId> {
        let frames: Vec<FrameId> = frames.map_while(|frame| self.id_of(frame)).collect();
        let place = known.partition_point(|key| key[1..] < frames[..]);
        let neighbours = known[place.saturating_sub(1)..].iter().take(2);
        let alike = |key: &Arc<[FrameId]>| key[1..].iter().zip(&frames).take_while(|(a, b)| a == b).count();
        let most = neighbours.map(alike).max().unwrap_or(0);
        frames[..most].to_vec()
    }
}

/// How much a stack counts: its bytes if it has any, else the number of samples.
fn weight(weights: &Weights) -> u64 {
    weights.iter().copied().max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn c(symbol: &str) -> Frame {
        Frame::C { symbol: symbol.into(), module: None }
    }

    fn add(stacks: &mut StackTable, frames: &[&str], weight: u64) -> StackId {
        let frames: Vec<_> = frames.iter().map(|symbol| stacks.intern(c(symbol))).collect();
        let id = stacks.stack(&frames);
        stacks.add(id, 0, weight);
        id
    }

    fn shown(stacks: &StackTable) -> Vec<(String, u64)> {
        let text = |frames: &[FrameId]| {
            frames.iter().map(|id| stacks.frame(*id).unwrap().to_string()).collect::<Vec<_>>().join(";")
        };
        let mut shown: Vec<_> = stacks.iter(0).map(|(frames, weight)| (text(frames), weight)).collect();
        shown.sort();
        shown
    }

    #[test]
    fn the_rarest_keep_what_they_share_and_no_weight_is_lost() {
        let mut stacks = StackTable::default();
        let heavy = add(&mut stacks, &["main", "run", "hot"], 100);
        let rare: Vec<_> = (0..100).map(|i| add(&mut stacks, &["main", "run", &format!("handler {i}")], 1)).collect();
        let elsewhere = add(&mut stacks, &["thread", "once"], 1);
        let other = add(&mut stacks, &["main", "stop"], 7);
        let before = stacks.totals();
        // Room for the first two stacks.
        let moved = stacks.fold_rare(1000);
        assert_eq!(stacks.totals(), before);
        let expected = [("[rare stacks]", 1), ("main;run;[rare stacks]", 100), ("main;run;hot", 100), ("main;stop", 7)];
        assert_eq!(shown(&stacks), expected.map(|(text, weight)| (text.to_owned(), weight)));
        assert_eq!(stacks.folded()[0], 101);
        assert_eq!(stacks.frames().len(), 5);
        let of = |id: StackId| stacks.row(moved[id.index()]).unwrap().weights[0];
        assert_eq!([of(heavy), of(rare[0]), of(rare[99]), of(elsewhere), of(other)], [100, 100, 100, 1, 7]);
    }

    #[test]
    fn what_is_folded_can_be_folded_again() {
        let mut stacks = StackTable::default();
        for round in 0..50 {
            add(&mut stacks, &["main", "hot"], 10);
            for i in 0..50 {
                add(&mut stacks, &["main", "hot", &format!("{round} {i}"), "leaf"], 1);
            }
            stacks.fold_rare(500);
        }
        assert_eq!(stacks.totals()[0], 50 * 60);
        assert_eq!(shown(&stacks).last().unwrap().0, "main;hot;[rare stacks]");
        assert!(stacks.bytes() < 2000, "{}", stacks.bytes());
    }

    #[test]
    fn nothing_is_folded_where_there_is_room() {
        let mut stacks = StackTable::default();
        add(&mut stacks, &["main", "a"], 1);
        add(&mut stacks, &["main", "b"], 2);
        let before = shown(&stacks);
        stacks.fold_rare(usize::MAX);
        assert_eq!((shown(&stacks), stacks.folded()[0]), (before, 0));
    }
}
