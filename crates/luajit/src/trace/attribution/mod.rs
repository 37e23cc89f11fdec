//! Tells which function each machine instruction of a trace belongs to.
//!
//! The snapshots say where the trace can be left, not whose code runs. So [`super::reading`] finds all paths through
//! the bytecode that the recorder can have taken, and `code` aligns the machine code with the intermediate code, again
//! in all possible ways. If an instruction belongs to the same function in all of them, that function is certain. Any
//! other instruction is attributed to the innermost frame that all of them share, and marked.
//!
//! LuaJIT's sources: [`lj_snap_replay`].
//!
//! [`lj_snap_replay`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_snap.c#L508-L689

mod assembly;
mod code;
mod lower_frames;

use std::cell::RefCell;
use std::collections::HashSet;
use std::ops::Range;

use lj_trace_common::layout::VmLayout;
use lj_trace_common::memory::ReadMemory;

use super::body::TraceBody;
use super::effort::Effort;
use super::frames::{SnapshotFrame, snapshot_frames};
use super::functions::{Callee, TraceFunctions};
use super::ir::{BIAS, FIRST, IrOp as Ir, Numbering};
use super::loop_copies::originals;
use super::reading::{Aim, CandidateReading, Candidates, Powers, Reader, ReadingBudget, VmQueries};
use super::stacks::{NOWHERE, StackIndex, Stacks};
use crate::InterpreterText;

pub(in crate::trace) use lower_frames::LowerFrames;

/// The frames within a trace, from the frame in which the trace starts inward, each with the position in it
/// ([`NOWHERE`] if it is not known).
pub type Chain = Vec<(Callee, u32)>;

/// A range of machine code and the frames that it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeSpan {
    /// Offset of its first instruction in the trace's machine code.
    pub offset: u32,
    /// The frames.
    pub chain: Chain,
    /// Whether the innermost frame is certain. If not, another function may have been inlined into it.
    pub certain: bool,
}

/// The attribution of all machine code of a trace, as ranges in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attribution {
    spans: Vec<CodeSpan>,
}

impl Attribution {
    /// The range that contains an offset.
    pub fn at(&self, offset: u32) -> Option<&CodeSpan> {
        self.spans[..self.spans.partition_point(|span| span.offset <= offset)].last()
    }

    /// Approximate memory use in bytes.
    pub fn size(&self) -> usize {
        self.spans.iter().map(|span| size_of::<CodeSpan>() + size_of_val(&*span.chain)).sum()
    }

    /// All ranges.
    pub fn spans(&self) -> &[CodeSpan] {
        &self.spans
    }
}

/// The inputs for the attribution of a trace's code.
pub struct Attributor<'a, M, S> {
    /// The target's memory, for the bytecode.
    pub memory: &'a M,
    /// The VM's layout.
    pub layout: &'a VmLayout,
    /// The trace.
    pub body: &'a TraceBody,
    /// The numbering of its intermediate code.
    pub numbering: Numbering,
    /// Its functions.
    pub functions: &'a TraceFunctions,
    /// Access to the objects around the trace.
    pub queries: &'a S,
    /// The exit that the code at an address leaves by (its lowest byte), if that code belongs to an exit.
    pub exit_at: &'a dyn Fn(u64) -> Option<u8>,
    /// Whether types of C data have metatables.
    pub metatypes: bool,
    /// The interpreter's machine code.
    pub text: &'a InterpreterText,
    /// The lower frames that the trace returns to.
    pub(in crate::trace) lower_frames: &'a LowerFrames,
}

impl<M: ReadMemory, S: VmQueries> Attributor<'_, M, S> {
    /// Attributes all code of the trace with limited effort. The second result tells whether the effort was enough.
    pub fn attribute(&self, effort: Effort) -> (Attribution, bool) {
        let mut budget = ReadingBudget::new(effort);
        let attribution = self.attribute_within(&mut budget);
        (attribution, !budget.was_short)
    }

    fn attribute_within(&self, budget: &mut ReadingBudget) -> Attribution {
        let mut stacks = Stacks::default();
        let frames: Vec<Option<Vec<SnapshotFrame>>> = (0..self.body.snapshots.len())
            .map(|index| snapshot_frames(self.memory, self.layout, self.body, self.functions, index).ok())
            .collect();
        let aims: Vec<Option<Aim>> = frames.iter().map(|frames| self.aim(&mut stacks, frames.as_deref()?)).collect();
        let (mut candidates, floating) = self.recorded(&mut stacks, &frames, &aims, budget);
        // Code at the start of the trace or of its loop belongs to the frame in which the trace or the loop begins.
        let beginning = self.beginning();
        for at in self.loop_at().into_iter().chain(beginning) {
            if let Some(aim) = aims.get(self.body.snapshot_of(at)).copied().flatten() {
                candidates.insert(at, vec![(aim.stack, aim.position)]);
            }
        }
        let only = self.only_function(&stacks, &aims, &floating);
        self.spans(&stacks, &aims, &candidates, only)
    }

    /// The only frame of the trace, if the trace can have entered no other: the only Lua function that it could call is
    /// its own, and that function is neither a value in the trace nor guarded as one.
    fn only_function(&self, stacks: &Stacks, aims: &[Option<Aim>], floating: &HashSet<u64>) -> Option<StackIndex> {
        let first = aims.first().copied().flatten()?.stack;
        let own = stacks.get(first).callee;
        let is_own = |callee: &Callee| {
            callee.same_code(own) && callee.prototype().is_some_and(|prototype| !floating.contains(&prototype))
        };
        let is_called = |at: u16| {
            let ins = self.body.code.ins(at);
            let guarded = self.functions.guard(ins.op1(), ins.op2()).filter(|_| self.op(at) == Some(Ir::EQ));
            guarded.is_some_and(|guarded| guarded.same_code(own))
                && self.op(ins.op1().max(ins.op2())) != Some(Ir::SLOAD)
        };
        let is_alone = stacks.get(first).caller.is_none()
            && aims.iter().all(|aim| aim.is_some_and(|aim| aim.stack == first))
            && self.functions.callable().iter().all(|callee| callee.prototype().is_none() || is_own(callee))
            && !(FIRST..self.body.code.end()).any(is_called);
        is_alone.then_some(first)
    }

    /// For each IR instruction, what it may belong to; and the functions that are constants as values.
    fn recorded(
        &self,
        stacks: &mut Stacks,
        frames: &[Option<Vec<SnapshotFrame>>],
        aims: &[Option<Aim>],
        budget: &mut ReadingBudget,
    ) -> (Candidates, HashSet<u64>) {
        let loop_at = self.loop_at();
        let snapshots = &self.body.snapshots;
        let recorded = loop_at.map_or(snapshots.len(), |at| snapshots.partition_point(|snapshot| snapshot.at <= at));
        let returns = self.lower_frames.targets();
        let mut reader = Reader {
            body: self.body,
            numbering: self.numbering,
            functions: self.functions,
            queries: self.queries,
            set: crate::bytecode_set(self.layout),
            fr2: self.layout.is_gc64(),
            returns: &returns,
            aims,
            frames,
            recorded,
            powers: Powers::read(
                self.memory,
                self.layout,
                self.body,
                self.functions,
                self.numbering,
                self.metatypes,
                self.text,
            ),
            floating: HashSet::new(),
            numbers: HashSet::new(),
            unknown_closures: HashSet::new(),
            callees: RefCell::default(),
        };
        reader.floating = reader.find_floating();
        reader.numbers = reader.find_numbers();
        reader.unknown_closures = reader.find_unknown_closures();
        let mut candidates = reader.candidates(stacks, budget);
        if let Some(loop_at) = loop_at {
            let slots = self.body.snapshot_words(recorded.saturating_sub(1)).map_or(&[][..], |(slots, _)| slots);
            for (copy, of) in originals(&self.body.code, self.numbering, loop_at, slots) {
                let known = of.iter().map(|at| candidates.get(at)).collect::<Option<Vec<_>>>();
                let mut all: Vec<CandidateReading> = known.into_iter().flatten().flatten().copied().collect();
                all.sort_unstable();
                all.dedup();
                if !all.is_empty() {
                    candidates.insert(copy, all);
                }
            }
        }
        (candidates, reader.floating)
    }

    /// The references at the beginning of the trace: in a side trace, the values that it takes over from its parent
    /// (`lj_snap_replay`, `lj_snap.c`).
    fn beginning(&self) -> Range<u16> {
        BIAS..self.body.snapshots.first().map_or(FIRST, |snapshot| snapshot.at).max(FIRST)
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
                // A library function that the trace leaves to call: the call itself is the last position on the trace.
                return stack.filter(|_| depth == 0).map(|stack| Aim { stack, position: call });
            };
            stack = Some(stacks.intern(stack, callee, call));
            call = match callee.prototype() {
                // The PC of a caller points to the instruction after its call.
                Some(prototype) => {
                    self.functions.position(self.functions.prototype(prototype)?, frame.pc)?.wrapping_sub(1)
                }
                None => NOWHERE,
            };
        }
        Some(Aim { stack: stack?, position: call.wrapping_add(1) })
    }
}
