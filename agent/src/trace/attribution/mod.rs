//! Which function each machine instruction of a trace belongs to.
//!
//! The snapshots say where the trace would be left, not whose code runs. So the way through the bytecode is
//! followed from snapshot to snapshot ([`super::path`]), the intermediate code is aligned with it, and the machine
//! code with the intermediate code. What may belong to several functions is said to be uncertain, and is given to
//! the innermost frame that all of them share.

mod code;
mod matching;
mod recorded;

use lj_trace_common::layout::VmLayout;
use lj_trace_common::memory::ReadMemory;

use super::body::Body;
use super::cast::{Callee, Cast};
use super::frames::{SnapshotFrame, snapshot_frames};
use super::ir::{BIAS, FIRST, Numbering, Op as Ir};
use super::path::{Aim, Surroundings};
use super::stacks::{NOWHERE, StackId, Stacks};

/// The frames within a trace, from the one in which it runs inward, and the position in each ([`NOWHERE`] if it is
/// not known).
pub type Chain = Vec<(Callee, u32)>;

/// What a stretch of machine code belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Offset of its first instruction.
    pub offset: u32,
    /// The frames.
    pub chain: Chain,
    /// Whether the innermost frame is certain. If not, another one may have been inlined into it.
    pub certain: bool,
}

/// The stretches of a trace's machine code, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attribution {
    spans: Vec<Span>,
}

/// What an instruction may belong to: a call stack and a bytecode in its innermost function.
type Candidate = (StackId, u32);

impl Attribution {
    /// The stretch at an offset.
    pub fn at(&self, offset: u32) -> Option<&Span> {
        self.spans[..self.spans.partition_point(|span| span.offset <= offset)].last()
    }

    /// All stretches.
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }
}

/// What is needed to attribute the code of a trace.
pub struct Attributor<'a, M, S> {
    /// The target's memory, for the bytecode.
    pub memory: &'a M,
    /// The VM's layout.
    pub layout: &'a VmLayout,
    /// The trace.
    pub body: &'a Body,
    /// The numbering of its intermediate code.
    pub numbering: Numbering,
    /// Its functions.
    pub cast: &'a Cast,
    /// What lies around it.
    pub surroundings: &'a S,
    /// The exit that the code at an address leaves by (its lowest byte), if it is an exit's.
    pub exit_at: &'a dyn Fn(u64) -> Option<u8>,
}

impl<M: ReadMemory, S: Surroundings> Attributor<'_, M, S> {
    /// Attributes all code of the trace.
    pub fn attribute(&self) -> Attribution {
        let mut stacks = Stacks::default();
        let frames: Vec<Option<Vec<SnapshotFrame>>> = (0..self.body.snapshots.len())
            .map(|index| snapshot_frames(self.memory, self.layout, self.body, self.cast, index).ok())
            .collect();
        let aims: Vec<Option<Aim>> = frames.iter().map(|frames| self.aim(&mut stacks, frames.as_deref()?)).collect();
        stacks.are_shown();
        let mut candidates = self.candidates(&mut stacks, &frames, &aims);
        // What is done where the trace and its loop begin belongs to the frame in which they do.
        for at in self.loop_at().into_iter().chain([BIAS]) {
            if let Some(aim) = aims.get(self.body.snapshot_of(at)).copied().flatten() {
                candidates.insert(at, vec![(aim.stack, aim.position)]);
            }
        }
        self.spans(&stacks, &aims, &candidates)
    }

    /// The reference of the instruction that separates a loop's first iteration from the others.
    fn loop_at(&self) -> Option<u16> {
        (FIRST..self.body.code.end()).find(|&at| self.op(at) == Some(Ir::LOOP))
    }

    fn op(&self, at: u16) -> Option<Ir> {
        self.numbering.opcode(self.body.code.ins(at).number()).map(|opcode| opcode.op)
    }

    fn aim(&self, stacks: &mut Stacks, frames: &[SnapshotFrame]) -> Option<Aim> {
        let mut stack = None;
        let mut call = NOWHERE;
        for (depth, frame) in frames.iter().enumerate().rev() {
            let callee = frame.callee.filter(|callee| callee.prototype().is_some() || depth != 0);
            let Some(callee) = callee else {
                // A library function that the trace calls by leaving it: the call itself is as far as it gets.
                return stack.filter(|_| depth == 0).map(|stack| Aim { stack, position: call });
            };
            stack = Some(stacks.intern(stack, callee, call));
            call = match callee.prototype() {
                // The PC of a caller is that of the instruction after its call.
                Some(prototype) => self.cast.position(self.cast.prototype(prototype)?, frame.pc)?.wrapping_sub(1),
                None => NOWHERE,
            };
        }
        Some(Aim { stack: stack?, position: call.wrapping_add(1) })
    }
}
