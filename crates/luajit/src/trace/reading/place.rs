//! The position of a reading, and what it knows there.
//!
//! LuaJIT's sources: [`lj_record_setup`].
//!
//! [`lj_record_setup`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_record.c#L2933-L2948

use std::rc::Rc;

use super::Aim;
use crate::trace::functions::Callee;
use crate::trace::stacks::{StackIndex, Stacks};

/// What a slot of the recorder holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SlotValue {
    /// Anything.
    #[default]
    Any,
    /// What it held when the trace began: what reads it must load it.
    Unloaded,
    /// The result of this instruction.
    Ref(u16),
    /// This function, a constant.
    Function(Callee),
    /// This number, a constant, as its bits.
    Number(u64),
    /// Another constant.
    Constant,
    /// What a lookup by the string at this address found without a load: what the trace has loaded or stored by it, or a
    /// constant.
    Field(u64),
    /// What this upvalue of one of a prototype's closures holds.
    Upvalue(u64, u16),
}

impl SlotValue {
    /// Whether it may be of any type and from anywhere.
    pub const fn is_open(self) -> bool {
        matches!(self, Self::Any | Self::Unloaded | Self::Field(_) | Self::Upvalue(..))
    }
}

/// A frame of the recorder.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RecorderFrame {
    /// The call stack of which it is the innermost frame.
    pub stack: StackIndex,
    /// What is known of its slots.
    pub slots: Vec<SlotValue>,
    /// What those hold that are not listed.
    pub rest: SlotValue,
}

impl RecorderFrame {
    /// A frame of which nothing is known.
    pub fn new(stack: StackIndex) -> Self {
        Self { stack, slots: Vec::new(), rest: SlotValue::Any }
    }

    /// What a slot holds.
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

    /// The same knowledge is always written the same way.
    fn shorten(&mut self) {
        while self.slots.last() == Some(&self.rest) {
            self.slots.pop();
        }
    }
}

/// What is being recorded of a bytecode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// What the start of a root trace needs, before any bytecode (`lj_record_setup`).
    Setup,
    /// The bytecode itself.
    Start,
    /// A comparison whose snapshot says where it does not go: it goes here.
    Forced(u32),
    /// A call of this function is set up.
    Calling(Callee),
    /// A call of this function as a metamethod is set up.
    Meta(Callee),
    /// A library function runs.
    Native(Callee),
}

/// Where a reading is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReadingPlace {
    /// The frames, the innermost last. Most places share all but the innermost one with others.
    pub frames: Vec<Rc<RecorderFrame>>,
    /// The bytecode that is recorded.
    pub position: u32,
    /// What of it.
    pub phase: Phase,
    /// How many returns to lower frames were passed.
    pub returns: usize,
}

/// A frame has no more slots.
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

    /// Enters a frame of which nothing is known.
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

    /// What a slot of the innermost frame holds.
    pub fn slot(&self, slot: usize) -> SlotValue {
        self.frames.last().map(|frame| frame.slot(slot)).unwrap_or_default()
    }

    /// Notes what a slot of the innermost frame holds.
    pub fn set_slot(&mut self, slot: usize, value: SlotValue) {
        let depth = self.frames.len().wrapping_sub(1);
        self.set_slot_of(depth, slot, value);
    }

    /// Notes what a slot of the frame `depth` holds, counted from the outermost.
    pub fn set_slot_of(&mut self, depth: usize, slot: usize, value: SlotValue) {
        if let Some(frame) = self.frames.get_mut(depth).filter(|frame| frame.slot(slot) != value) {
            Rc::make_mut(frame).set(slot, value);
        }
    }

    /// Forgets what the slots of the innermost frame hold, from one on.
    pub fn forget_from(&mut self, slot: usize) {
        if let Some(frame) = self.frames.last_mut().map(Rc::make_mut) {
            if frame.rest == SlotValue::Unloaded {
                // What a call leaves there was not there when the trace began.
                frame.slots.resize(slot.min(MAX_SLOTS), SlotValue::Unloaded);
            }
            frame.slots.truncate(slot);
            frame.rest = SlotValue::Any;
            frame.shorten();
        }
    }

    /// Forgets what all slots hold.
    pub fn forget_all(&mut self) {
        for frame in self.frames.iter_mut().map(Rc::make_mut) {
            frame.slots.clear();
            frame.rest = SlotValue::Any;
        }
    }
}
