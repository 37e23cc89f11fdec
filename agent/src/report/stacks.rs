//! Stacks and what each weighs: what every profile is made of.

use std::collections::HashMap;
use std::sync::Arc;

use super::Frame;
use crate::stream::hash::AddrMap;

/// A frame of a [`Stacks`], by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrameId(u32);

/// A stack of a [`Stacks`], by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StackId(u32);

/// Stacks, root first, and the weight of each. Equal frames and equal stacks are held once.
///
/// A stack may begin with a [`Frame::Root`]. While all of them begin with the same one it says nothing, and is not shown.
#[derive(Clone, Debug, Default)]
pub struct Stacks {
    /// How many different [`Frame::Root`]s there are.
    roots: usize,
    frames: Vec<Frame>,
    frame_ids: HashMap<Frame, FrameId>,
    stacks: Vec<Weighted>,
    stack_ids: AddrMap<Arc<[FrameId]>, StackId>,
}

#[derive(Clone, Debug)]
struct Weighted {
    frames: Arc<[FrameId]>,
    weight: u64,
}

impl Stacks {
    /// The number of a frame, which is a new one if the frame is.
    pub fn intern(&mut self, frame: Frame) -> FrameId {
        if let Some(&id) = self.frame_ids.get(&frame) {
            return id;
        }
        let id = FrameId(u32::try_from(self.frames.len()).unwrap_or(u32::MAX));
        self.roots += usize::from(matches!(frame, Frame::Root { .. }));
        self.frames.push(frame.clone());
        self.frame_ids.insert(frame, id);
        id
    }

    /// The number of a stack, root first; a new one weighs nothing.
    pub fn stack(&mut self, frames: &[FrameId]) -> StackId {
        if let Some(&id) = self.stack_ids.get(frames) {
            return id;
        }
        let id = StackId(u32::try_from(self.stacks.len()).unwrap_or(u32::MAX));
        let frames: Arc<[FrameId]> = frames.into();
        self.stacks.push(Weighted { frames: frames.clone(), weight: 0 });
        self.stack_ids.insert(frames, id);
        id
    }

    /// Makes a stack heavier.
    #[inline]
    pub fn add(&mut self, stack: StackId, weight: u64) {
        if let Some(stack) = self.stacks.get_mut(stack.0 as usize) {
            stack.weight = stack.weight.saturating_add(weight);
        }
    }

    /// Makes a stack lighter.
    #[inline]
    pub fn take(&mut self, stack: StackId, weight: u64) {
        if let Some(stack) = self.stacks.get_mut(stack.0 as usize) {
            stack.weight = stack.weight.saturating_sub(weight);
        }
    }

    /// The frames of a stack, root first, as far as it is shown.
    pub fn frames_of(&self, stack: StackId) -> &[FrameId] {
        self.stacks.get(stack.0 as usize).map_or(&[], |stack| self.shown(&stack.frames))
    }

    /// The frame of this number, if it is one of these.
    pub fn frame(&self, id: FrameId) -> Option<&Frame> {
        self.frames.get(id.0 as usize)
    }

    /// All frames that occur, in the order of their numbers.
    pub fn frames(&self) -> &[Frame] {
        &self.frames
    }

    /// The numbers of all frames, in order.
    pub fn frame_ids(&self) -> impl Iterator<Item = FrameId> + use<> {
        (0..self.frames.len() as u32).map(FrameId)
    }

    /// The stacks that weigh something, root first, and what they weigh, in the order in which they were first seen.
    pub fn iter(&self) -> impl Iterator<Item = (&[FrameId], u64)> {
        let weighty = self.stacks.iter().filter(|stack| stack.weight > 0);
        weighty.map(|stack| (self.shown(&stack.frames), stack.weight))
    }

    /// What is shown of a stack.
    fn shown<'a>(&self, stack: &'a [FrameId]) -> &'a [FrameId] {
        match stack {
            [first, rest @ ..] if self.roots == 1 && matches!(self.frame(*first), Some(Frame::Root { .. })) => rest,
            all => all,
        }
    }

    /// What all stacks weigh together.
    pub fn total(&self) -> u64 {
        self.stacks.iter().fold(0, |total, stack| total.saturating_add(stack.weight))
    }
}

/// A profile that can be folded or drawn: stacks, and what their weights mean.
pub trait Profile {
    /// The stacks and their weights.
    fn weighted(&self) -> &Stacks;

    /// What was measured, and of which program.
    fn title(&self) -> String;

    /// What the total is, what is missing from it, and what the colours mean.
    fn subtitle(&self) -> String;

    /// What the weights count: `samples`, `bytes`.
    fn unit(&self) -> &'static str;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_stacks_weigh_together_and_weightless_ones_are_not_shown() {
        let mut stacks = Stacks::default();
        let frames = ["a", "b"].map(|reason| stacks.intern(Frame::Unresolved { reason: reason.into() }));
        let [a, b] = frames.map(|frame| stacks.stack(&[frame]));
        assert_eq!(stacks.stack(&[frames[0]]), a);
        stacks.add(a, 7);
        stacks.add(a, 5);
        stacks.add(b, 1);
        stacks.take(b, 1);
        assert_eq!(stacks.iter().collect::<Vec<_>>(), [(&frames[..1], 12)]);
        assert_eq!(stacks.total(), 12);
    }

    #[test]
    fn roots_are_shown_once_there_are_several() {
        let mut stacks = Stacks::default();
        let code = stacks.intern(Frame::Unresolved { reason: "x".into() });
        let add = |stacks: &mut Stacks, index| {
            let root = stacks.intern(Frame::vm(index));
            let stack = stacks.stack(&[root, code]);
            stacks.add(stack, 1);
            root
        };
        let first = add(&mut stacks, 0);
        assert_eq!(stacks.iter().collect::<Vec<_>>(), [(&[code][..], 1)]);
        let second = add(&mut stacks, 1);
        assert_eq!(stacks.iter().collect::<Vec<_>>(), [(&[first, code][..], 1), (&[second, code][..], 1)]);
    }
}
