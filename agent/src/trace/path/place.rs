//! Where a walk through the bytecode is, and what it knows there.

use super::{Aim, Slot, Step};
use crate::trace::cast::Callee;
use crate::trace::stacks::{StackId, Stacks};

/// Where the walk is.
#[derive(Clone, Debug)]
pub struct Place {
    /// The frames, the innermost last, with what is known of the functions in their slots.
    pub(super) frames: Vec<(StackId, Vec<Slot>)>,
    /// The bytecode that comes next.
    pub(super) position: u32,
    /// Where a comparison that comes next goes on.
    pub(super) forced: Option<u32>,
    /// How many returns to lower frames were passed.
    pub(super) returns: usize,
    /// The library function that was called on the way here.
    pub(super) native: Option<Step>,
    /// Guards that were passed by calling what they ask for, a bit for each.
    pub(super) used: u64,
    /// Calls that nothing tells of.
    pub(super) guesses: u32,
}

impl Place {
    /// The place at a snapshot.
    pub fn at(stacks: &Stacks, aim: Aim, returns: usize) -> Self {
        let mut frames = Vec::new();
        let mut next = Some(aim.stack);
        while let Some(stack) = next {
            frames.push((stack, Vec::new()));
            next = stacks.get(stack).caller;
        }
        frames.reverse();
        Self { frames, position: aim.position, forced: None, returns, native: None, used: 0, guesses: 0 }
    }

    /// The call stack.
    pub fn stack(&self) -> Option<StackId> {
        self.frames.last().map(|(stack, _)| *stack)
    }

    /// How many returns to lower frames were passed.
    pub fn returns(&self) -> usize {
        self.returns
    }

    /// Notes what is known of a slot of the frame `depth`, counted from the outermost.
    pub fn know(&mut self, depth: usize, slot: usize, callee: Callee) {
        if let Some((_, slots)) = self.frames.get_mut(depth) {
            let origin = slots.get(slot).copied().unwrap_or_default().origin;
            set(slots, slot, Slot { callee: Some(callee), origin });
        }
    }

    /// What is known of a slot of the frame `depth`, counted from the outermost.
    pub fn slot_of(&self, depth: usize, slot: usize) -> Slot {
        self.frames.get(depth).and_then(|(_, slots)| slots.get(slot)).copied().unwrap_or_default()
    }

    pub(super) fn slot(&self, slot: usize) -> Slot {
        self.slot_of(self.frames.len().wrapping_sub(1), slot)
    }

    pub(super) fn set_slot(&mut self, slot: usize, value: Slot) {
        if let Some((_, slots)) = self.frames.last_mut() {
            set(slots, slot, value);
        }
    }

    pub(super) fn forget_from(&mut self, slot: usize) {
        if let Some((_, slots)) = self.frames.last_mut() {
            slots.truncate(slot);
        }
    }
}

fn set(slots: &mut Vec<Slot>, slot: usize, value: Slot) {
    /// A frame has no more slots.
    const MAX_SLOTS: usize = 256;
    if slot >= slots.len() {
        if value == Slot::default() || slot >= MAX_SLOTS {
            return;
        }
        slots.resize(slot + 1, Slot::default());
    }
    slots[slot] = value;
}
