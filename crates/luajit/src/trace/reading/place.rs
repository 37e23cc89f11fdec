//! The position of a reading, and what is known there.
//!
//! LuaJIT's sources: [`lj_record_setup`].
//!
//! [`lj_record_setup`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_record.c#L2933-L2948

use std::rc::Rc;

use super::Aim;
use crate::trace::functions::Callee;
use crate::trace::stacks::{StackIndex, Stacks};

/// The contents of a recorder slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SlotValue {
    /// Anything.
    #[default]
    Any,
    /// The value from before the trace, not loaded yet: the first reader must load it.
    Unloaded,
    /// The result of the instruction with this reference.
    Ref(u16),
    /// A constant: this function.
    Function(Callee),
    /// A constant: this number, as its bits.
    Number(u64),
    /// Another constant.
    Constant,
    /// The result of a lookup by the string at this address that needed no load: a value that the trace has loaded or
    /// stored under it, or a constant.
    Field(u64),
    /// The value of an upvalue of a prototype's closures, by the prototype's address and the upvalue's index.
    Upvalue(u64, u16),
}

impl SlotValue {
    /// Whether it may have any type and come from anywhere.
    pub const fn is_open(self) -> bool {
        matches!(self, Self::Any | Self::Unloaded | Self::Field(_) | Self::Upvalue(..))
    }
}

/// A frame of the recorder.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RecorderFrame {
    /// The call stack with this frame as the innermost one.
    pub stack: StackIndex,
    /// The known contents of its slots.
    pub slots: Vec<SlotValue>,
    /// The contents of the slots that are not listed.
    pub rest: SlotValue,
}

impl RecorderFrame {
    /// A frame about which nothing is known.
    pub fn new(stack: StackIndex) -> Self {
        Self { stack, slots: Vec::new(), rest: SlotValue::Any }
    }

    /// The contents of a slot.
    pub fn slot(&self, slot: usize) -> SlotValue {
        self.slots.get(slot).copied().unwrap_or(self.rest)
    }

    fn set(&mut self, slot: usize, value: SlotValue) {
        if slot >= self.slots.len() {
            if value == self.rest || slot >= MAX_SLOTS {
                return;
            }
            self.slots.resize(slot + 1, self.rest);
        }
        self.slots[slot] = value;
        self.shorten();
    }

    /// Makes equal knowledge compare as equal.
    fn shorten(&mut self) {
        while self.slots.last() == Some(&self.rest) {
            self.slots.pop();
        }
    }
}

/// The part of a bytecode that is being recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// The setup at the start of a root trace, before any bytecode (`lj_record_setup`).
    Setup,
    /// The bytecode itself.
    Start,
    /// A comparison whose snapshot has the target that it does not go to; it goes to this one.
    Forced(u32),
    /// The setup of a call of this function.
    Calling(Callee),
    /// The setup of a call of this function as a metamethod.
    Meta(Callee),
    /// A library function is running.
    Native(Callee),
}

/// The position of a reading.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReadingPlace {
    /// The frames, the innermost last. Most places share all frames but the innermost one with others.
    pub frames: Vec<Rc<RecorderFrame>>,
    /// Index of the bytecode that is being recorded.
    pub position: u32,
    /// The part of this bytecode.
    pub phase: Phase,
    /// Number of returns to lower frames so far.
    pub returns: usize,
}

/// The most slots of a frame.
const MAX_SLOTS: usize = 256;

impl ReadingPlace {
    /// The place at a snapshot.
    pub fn at(stacks: &Stacks, aim: Aim, returns: usize) -> Self {
        let mut frames = Vec::new();
        let mut next = Some(aim.stack);
        while let Some(stack) = next {
            frames.push(Rc::new(RecorderFrame::new(stack)));
            next = stacks.get(stack).caller;
        }
        frames.reverse();
        Self { frames, position: aim.position, phase: Phase::Start, returns }
    }

    /// The call stack.
    pub fn stack(&self) -> Option<StackIndex> {
        self.frames.last().map(|frame| frame.stack)
    }

    /// Enters a frame about which nothing is known.
    pub fn push(&mut self, stack: StackIndex) {
        self.frames.push(Rc::new(RecorderFrame::new(stack)));
    }

    /// This place, at another bytecode of the same frame.
    pub fn go(&self, position: u32) -> Self {
        Self { position, phase: Phase::Start, ..self.clone() }
    }

    /// This place, in another phase.
    pub fn with(&self, phase: Phase) -> Self {
        Self { phase, ..self.clone() }
    }

    /// The contents of a slot of the innermost frame.
    pub fn slot(&self, slot: usize) -> SlotValue {
        self.frames.last().map(|frame| frame.slot(slot)).unwrap_or_default()
    }

    /// Sets the contents of a slot of the innermost frame.
    pub fn set_slot(&mut self, slot: usize, value: SlotValue) {
        let depth = self.frames.len().wrapping_sub(1);
        self.set_slot_of(depth, slot, value);
    }

    /// Sets the contents of a slot of frame `depth`, counted from the outermost.
    pub fn set_slot_of(&mut self, depth: usize, slot: usize, value: SlotValue) {
        if let Some(frame) = self.frames.get_mut(depth).filter(|frame| frame.slot(slot) != value) {
            Rc::make_mut(frame).set(slot, value);
        }
    }

    /// Forgets the contents of the innermost frame's slots, from `slot` on.
    pub fn forget_from(&mut self, slot: usize) {
        if let Some(frame) = self.frames.last_mut().map(Rc::make_mut) {
            if frame.rest == SlotValue::Unloaded {
                // Values that a call has left there are not from before the trace.
                frame.slots.resize(slot.min(MAX_SLOTS), SlotValue::Unloaded);
            }
            frame.slots.truncate(slot);
            frame.rest = SlotValue::Any;
            frame.shorten();
        }
    }

    /// Forgets the contents of all slots.
    pub fn forget_all(&mut self) {
        for frame in self.frames.iter_mut().map(Rc::make_mut) {
            frame.slots.clear();
            frame.rest = SlotValue::Any;
        }
    }
}
