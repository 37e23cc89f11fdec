//! Stacks with their weights: every profile is made of them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use lj_trace_streams::hash::AddrMap;

use super::Labels;
use super::labels::ThreadLabel;
use crate::Frame;

/// A frame of a [`StackTable`], by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrameId(u32);

impl FrameId {
    /// Its index in [`StackTable::frames`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A stack of a [`StackTable`] with its labels, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StackId(u32);

impl StackId {
    /// Its index among all stacks.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The weights of a stack: one for each measure that a profile may have.
pub type Weights = [u64; 5];

/// Stacks, root first, with their weights. Equal frames and equal stacks are stored once.
///
/// A stack may begin with a [`Frame::Root`]. If all stacks begin with the same root, the root carries no information
/// and is hidden, unless it is a group that somebody has asked for.
#[derive(Clone, Debug, Default)]
pub struct StackTable {
    /// How many different [`Frame::Root`]s there are.
    roots: usize,
    /// Whether a root is shown even if it is the only one.
    shows_roots: bool,
    frames: Vec<Frame>,
    frame_ids: HashMap<Frame, FrameId>,
    labels: Vec<Labels>,
    label_ids: HashMap<Labels, u32>,
    stacks: Vec<Weighted>,
    /// Keyed by the number of the labels, followed by the frames.
    stack_ids: AddrMap<Arc<[FrameId]>, StackId>,
    /// Stacks that mean the same as another one since their function has a name.
    joined: HashMap<StackId, StackId>,
    scratch: Vec<FrameId>,
    /// Roughly how much memory all of it takes, in bytes.
    bytes: usize,
}

/// Roughly how much memory a stack, a frame and a set of labels take in the tables, in bytes, without their contents.
const STACK_SIZE: usize = 140;
const FRAME_SIZE: usize = 2 * size_of::<Frame>() + 60;
const LABELS_SIZE: usize = 2 * size_of::<Labels>() + 60;

#[derive(Clone, Debug)]
struct Weighted {
    /// The number of the labels, followed by the frames.
    key: Arc<[FrameId]>,
    weights: Weights,
}

/// A stack with all that is known of it.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// The labels of its samples.
    pub labels: &'a Labels,
    /// What it belongs to: a [`Frame::Root`], shown or hidden.
    pub root: Option<FrameId>,
    /// The frames that are shown, root first.
    pub frames: &'a [FrameId],
    /// Its weights.
    pub weights: &'a Weights,
}

impl StackTable {
    /// The number of a frame; a new frame gets a new number.
    pub fn intern(&mut self, frame: Frame) -> FrameId {
        if let Some(&id) = self.frame_ids.get(&frame) {
            return id;
        }
        let id = FrameId(u32::try_from(self.frames.len()).unwrap_or(u32::MAX));
        self.roots += usize::from(matches!(frame, Frame::Root { .. }));
        self.bytes += FRAME_SIZE + frame.text_size();
        self.frames.push(frame.clone());
        self.frame_ids.insert(frame, id);
        id
    }

    /// From now on shows the root of each stack, even if it is the only one.
    pub fn show_roots(&mut self) {
        self.shows_roots = true;
    }

    /// Whether the root of each stack is shown in any case.
    pub(super) fn shows_roots(&self) -> bool {
        self.shows_roots
    }

    /// The number of a stack without labels, root first; a new stack weighs nothing.
    pub fn stack(&mut self, frames: &[FrameId]) -> StackId {
        self.labelled(&Labels::default(), frames)
    }

    /// The number of a stack with labels, root first; a new stack weighs nothing.
    pub fn labelled(&mut self, labels: &Labels, frames: &[FrameId]) -> StackId {
        let labels = match self.label_ids.get(labels) {
            Some(&id) => id,
            None => {
                let id = u32::try_from(self.labels.len()).unwrap_or(u32::MAX);
                self.bytes += LABELS_SIZE;
                self.labels.push(labels.clone());
                self.label_ids.insert(labels.clone(), id);
                id
            }
        };
        self.scratch.clear();
        self.scratch.push(FrameId(labels));
        self.scratch.extend_from_slice(frames);
        if let Some(&id) = self.stack_ids.get(self.scratch.as_slice()) {
            return id;
        }
        let id = StackId(u32::try_from(self.stacks.len()).unwrap_or(u32::MAX));
        let key: Arc<[FrameId]> = self.scratch.as_slice().into();
        self.bytes += STACK_SIZE + size_of_val(&*key);
        self.stacks.push(Weighted { key: key.clone(), weights: Weights::default() });
        self.stack_ids.insert(key, id);
        id
    }

    /// Names the function of a stack that has none so far. If the table has this stack already, it gets the weights, and
    /// whatever is added to the one without a name from now on.
    pub fn name_function(&mut self, stack: StackId, name: &Arc<str>) {
        let Some(old) = self.stacks.get(stack.index()).map(|stack| stack.key.clone()) else { return };
        let mut key = old.to_vec();
        for id in key.iter_mut().skip(1) {
            let Some(Frame::Lua { name: None, chunk, first_line: first_line @ 1.., line, compiled }) = self.frame(*id)
            else {
                continue;
            };
            let (chunk, name) = (chunk.clone(), Some(name.clone()));
            *id = self.intern(Frame::Lua { name, chunk, first_line: *first_line, line: *line, compiled: *compiled });
        }
        if let Some(&named) = self.stack_ids.get(&*key) {
            if named != stack {
                self.join(stack, named);
            }
            return;
        }
        let key: Arc<[FrameId]> = key.into();
        self.stack_ids.remove(&old);
        self.stack_ids.insert(key.clone(), stack);
        self.stacks[stack.index()].key = key;
    }

    /// Makes `stack` mean the same as `other`.
    fn join(&mut self, stack: StackId, other: StackId) {
        let weights = std::mem::take(&mut self.stacks[stack.index()].weights);
        let key = self.stacks[other.index()].key.clone();
        let old = std::mem::replace(&mut self.stacks[stack.index()].key, key);
        self.stack_ids.remove(&old);
        self.joined.insert(stack, other);
        weights.into_iter().enumerate().for_each(|(index, weight)| self.add(other, index, weight));
    }

    /// The stacks that mean the same as another one, each with that one.
    pub(super) fn joined(&self) -> impl Iterator<Item = (StackId, StackId)> {
        self.joined.iter().map(|(stack, other)| (*stack, *other))
    }

    /// The stack that has the weights of this one.
    #[inline]
    fn weighed(&self, stack: StackId) -> StackId {
        if self.joined.is_empty() { stack } else { self.joined.get(&stack).copied().unwrap_or(stack) }
    }

    /// Adds to one weight of a stack.
    #[inline]
    pub fn add(&mut self, stack: StackId, index: usize, weight: u64) {
        let stack = self.weighed(stack);
        if let Some(stack) = self.stacks.get_mut(stack.index()) {
            stack.weights[index] = stack.weights[index].saturating_add(weight);
        }
    }

    /// Subtracts from one weight of a stack.
    #[inline]
    pub fn take(&mut self, stack: StackId, index: usize, weight: u64) {
        let stack = self.weighed(stack);
        if let Some(stack) = self.stacks.get_mut(stack.index()) {
            stack.weights[index] = stack.weights[index].saturating_sub(weight);
        }
    }

    /// The frame with this number, if the table has it.
    pub fn frame(&self, id: FrameId) -> Option<&Frame> {
        self.frames.get(id.index())
    }

    /// All frames that occur, in the order of their numbers.
    pub fn frames(&self) -> &[Frame] {
        &self.frames
    }

    /// The numbers of all frames, in order.
    pub fn frame_ids(&self) -> impl Iterator<Item = FrameId> + use<> {
        (0..self.frames.len() as u32).map(FrameId)
    }

    /// The stacks with a weight, in the order of first appearance.
    pub fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        self.stacks.iter().filter(|stack| stack.weights != Weights::default()).map(|stack| self.row_of(stack))
    }

    /// One stack.
    pub fn row(&self, stack: StackId) -> Option<Row<'_>> {
        self.stacks.get(stack.index()).map(|stack| self.row_of(stack))
    }

    fn row_of<'a>(&'a self, stack: &'a Weighted) -> Row<'a> {
        let (labels, frames) = stack.key.split_first().unwrap_or((&FrameId(0), &[]));
        let root = frames.first().copied().filter(|&id| matches!(self.frame(id), Some(Frame::Root { .. })));
        let hidden = usize::from(root.is_some() && self.roots == 1 && !self.shows_roots);
        Row { labels: &self.labels[labels.index()], root, frames: &frames[hidden..], weights: &stack.weights }
    }

    /// All stacks, also those without a weight, in the order of their numbers.
    pub fn numbered(&self) -> impl Iterator<Item = (StackId, Row<'_>)> {
        (0..).map(StackId).zip(self.stacks.iter().map(|stack| self.row_of(stack)))
    }

    /// The labels of a stack and all its frames, root first. These include a root that is hidden because it is the only
    /// one.
    pub fn all_frames(&self, stack: StackId) -> Option<(&Labels, &[FrameId])> {
        self.whole(stack).map(|(labels, frames, _)| (labels, frames))
    }

    /// The stacks that have some of weight `index`, root first, with that weight, in the order of first appearance.
    pub fn iter(&self, index: usize) -> impl Iterator<Item = (&[FrameId], u64)> {
        self.rows().filter(move |row| row.weights[index] > 0).map(move |row| (row.frames, row.weights[index]))
    }

    /// Roughly how much memory all stacks take, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A stack as it was added: its labels, all its frames, and its weights.
    pub(super) fn whole(&self, stack: StackId) -> Option<(&Labels, &[FrameId], &Weights)> {
        let Weighted { key, weights } = self.stacks.get(stack.index())?;
        let (labels, frames) = key.split_first()?;
        Some((self.labels.get(labels.index())?, frames, weights))
    }

    /// The keys of all stacks: the number of the labels, followed by the frames.
    pub(super) fn keys(&self) -> Vec<Arc<[FrameId]>> {
        self.stacks.iter().map(|stack| stack.key.clone()).collect()
    }

    /// The number of a frame, if the table has it.
    pub(super) fn id_of(&self, frame: &Frame) -> Option<FrameId> {
        self.frame_ids.get(frame).copied()
    }

    /// The threads that stacks belong to.
    pub(super) fn threads(&self) -> HashSet<ThreadLabel> {
        self.labels.iter().filter_map(|labels| labels.thread.clone()).collect()
    }

    /// The weights of all stacks together.
    pub fn totals(&self) -> Weights {
        let mut totals = Weights::default();
        for stack in &self.stacks {
            totals.iter_mut().zip(&stack.weights).for_each(|(total, weight)| *total = total.saturating_add(*weight));
        }
        totals
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_stacks_weigh_together_and_weightless_ones_are_not_shown() {
        let mut stacks = StackTable::default();
        let frames = ["a", "b"].map(|reason| stacks.intern(Frame::Unresolved { reason: reason.into() }));
        let [a, b] = frames.map(|frame| stacks.stack(&[frame]));
        assert_eq!(stacks.stack(&[frames[0]]), a);
        stacks.add(a, 1, 7);
        stacks.add(a, 1, 5);
        stacks.add(b, 0, 1);
        stacks.take(b, 0, 1);
        assert_eq!(stacks.iter(1).collect::<Vec<_>>(), [(&frames[..1], 12)]);
        assert_eq!(stacks.totals()[1], 12);
    }

    #[test]
    fn a_stack_that_gets_the_name_of_another_one_weighs_with_it() {
        let mut stacks = StackTable::default();
        let mut of = |name: Option<&str>| {
            let frame = stacks.intern(Frame::lua(name.map(Into::into), b"@a.lua", 5, None));
            stacks.stack(&[frame])
        };
        let (unnamed, named) = (of(None), of(Some("work")));
        stacks.add(unnamed, 1, 7);
        stacks.add(named, 1, 5);
        stacks.name_function(unnamed, &"work".into());
        stacks.add(unnamed, 1, 2);
        stacks.take(unnamed, 1, 1);
        let named = stacks.all_frames(named).unwrap().1.to_vec();
        assert_eq!(stacks.iter(1).collect::<Vec<_>>(), [(&named[..], 13)]);
        assert_eq!(stacks.all_frames(unnamed).unwrap().1, named);
        // Named once more, nothing changes, and without a name it is a new stack.
        stacks.name_function(unnamed, &"work".into());
        let frame = stacks.intern(Frame::lua(None, b"@a.lua", 5, None));
        let other = stacks.stack(&[frame]);
        stacks.add(other, 1, 1);
        assert_eq!(stacks.iter(1).map(|(_, weight)| weight).collect::<Vec<_>>(), [13, 1]);
    }

    #[test]
    fn roots_are_shown_once_there_are_several() {
        let mut stacks = StackTable::default();
        let code = stacks.intern(Frame::Unresolved { reason: "x".into() });
        let add = |stacks: &mut StackTable, index| {
            let root = stacks.intern(Frame::vm(index));
            let stack = stacks.stack(&[root, code]);
            stacks.add(stack, 1, 1);
            root
        };
        let first = add(&mut stacks, 0);
        assert_eq!(stacks.iter(1).collect::<Vec<_>>(), [(&[code][..], 1)]);
        let mut grouped = stacks.clone();
        grouped.show_roots();
        assert_eq!(grouped.iter(1).collect::<Vec<_>>(), [(&[first, code][..], 1)]);
        let second = add(&mut stacks, 1);
        assert_eq!(stacks.iter(1).collect::<Vec<_>>(), [(&[first, code][..], 1), (&[second, code][..], 1)]);
    }

    #[test]
    fn labels_tell_stacks_apart() {
        let mut stacks = StackTable::default();
        let frame = stacks.intern(Frame::Internal);
        let plain = stacks.stack(&[frame]);
        let labels = Labels { trace: Some(7), ..Labels::default() };
        let labelled = stacks.labelled(&labels, &[frame]);
        assert_ne!(plain, labelled);
        stacks.add(labelled, 0, 2);
        let rows: Vec<_> = stacks.rows().map(|row| (row.labels.trace, row.frames.len(), row.weights[0])).collect();
        assert_eq!(rows, [(Some(7), 1, 2)]);
    }
}
