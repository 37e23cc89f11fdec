//! All readings of a trace: every path through the bytecode that the recorder can have taken.
//!
//! The recorder (`lj_record.c`) follows the interpreter, bytecode by bytecode, and appends intermediate code. It leaves
//! behind that code, in order, and some snapshots, which say where the recorder was. A reading is a path through the
//! bytecode together with a division of the intermediate code into the part of each bytecode. This module keeps all
//! readings that satisfy the following rules, and prefers none:
//!
//! - a bytecode emits only certain instructions (`emits`), with certain operands (`operands`);
//! - a called function must be a constant of the trace, since each call makes its function a constant
//!   ([`rec_call_specialize`]). If a guard compares the called value with functions, it must be one of these functions;
//! - a snapshot was taken at its PC, in its frames, with its values in their slots;
//! - the path is connected, from the first snapshot to the last one that was recorded.
//!
//! If an instruction belongs to the same bytecode and call stack in all readings, that is certain.
//!
//! LuaJIT's sources: [`lj_record_ins`], [`SNAP_FRAME`].
//!
//! [`lj_record_ins`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_record.c#L2227-L2793
//! [`rec_call_specialize`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_record.c#L796-L828
//! [`SNAP_FRAME`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_jit.h#L195-L196

mod branches;
mod calls;
mod emits;
mod graph;
mod kinds;
mod musts;
mod natives;
mod operands;
mod order;
mod place;
mod powers;
mod search;
mod step;
mod tables;
mod upvalues;

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

use lj_trace_common::layout::BytecodeSet;

pub use self::place::{Phase, ReadingPlace, SlotValue};
pub use self::powers::Powers;
pub use self::search::{Candidates, ReadingBudget};
use super::body::TraceBody;
use super::frames::SnapshotFrame;
use super::functions::{Callee, TraceFunctions};
use super::ir::{FIRST, IrOp as Ir, Numbering};
use super::stacks::StackIndex;
use crate::Prototype;
use crate::bytecode::{Instruction, Op};

/// What an instruction may belong to: a call stack, and a bytecode in its innermost function.
pub type CandidateReading = (StackIndex, u32);

/// Facts about the VM beyond the trace that a reading needs.
pub trait VmQueries {
    /// The constant value of a closure's upvalue, if the upvalue never changes: then it is a constant of the trace.
    fn upvalue(&self, closure: u64, index: u16) -> Option<Constant>;
    /// Address of an upvalue of a closure. Several closures may share it.
    fn upvalue_address(&self, closure: u64, index: u16) -> Option<u64>;
    /// Address of the constant string `index` of a prototype.
    fn string(&self, prototype: &Prototype, index: u16) -> Option<u64>;
    /// The constant number `index` of a prototype.
    fn number(&self, prototype: &Prototype, index: u16) -> Option<f64>;
    /// The original instruction of a prototype that the start of `trace` has replaced.
    fn start_instruction(&self, prototype: &Prototype, position: u32, trace: u16) -> Option<Instruction>;
}

/// A value that never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Constant {
    /// A function.
    Function(Callee),
    /// A number, as its bits.
    Number(u64),
    /// Anything else.
    Other,
}

/// One bytecode of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BytecodeStep {
    /// The call stack that executes it.
    pub stack: StackIndex,
    /// Its index in the innermost function.
    pub position: u32,
    /// The instruction.
    pub instruction: Instruction,
    /// Its opcode.
    pub op: Op,
}

/// The place of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aim {
    /// Its call stack.
    pub stack: StackIndex,
    /// The bytecode at which the trace would be left.
    pub position: u32,
}

/// A trace and everything that is needed to find its readings.
pub struct Reader<'a, S> {
    /// The trace.
    pub body: &'a TraceBody,
    /// The numbering of its intermediate code.
    pub numbering: Numbering,
    /// The functions of the trace.
    pub functions: &'a TraceFunctions,
    /// Access to the objects around the trace.
    pub queries: &'a S,
    /// The numbering of bytecodes.
    pub set: BytecodeSet,
    /// Whether frames take two slots.
    pub fr2: bool,
    /// The frames that the trace returns to, in order: the function, and the position after its call.
    pub returns: &'a [(Callee, u32)],
    /// Where each snapshot was taken; [`None`] if that is not known.
    pub aims: &'a [Option<Aim>],
    /// The frames of each snapshot.
    pub frames: &'a [Option<Vec<SnapshotFrame>>],
    /// How many snapshots were recorded; the others are copies made for the loop.
    pub recorded: usize,
    /// What the trace is able to do at all.
    pub powers: Powers,
    /// Functions that are constants as values, so that they may be called without a guard ([`Callee::code`]).
    pub floating: HashSet<u64>,
    /// Numbers that are constants of the trace, as their bits.
    pub numbers: HashSet<u64>,
    /// Prototypes that may have a running closure that is no constant ([`Self::find_unknown_closures`]).
    pub unknown_closures: HashSet<u64>,
    /// The callable values that fields and upvalues may hold, as far as they were asked for; [`None`] if they are not known.
    pub callees: RefCell<HashMap<SlotValue, Option<Vec<Callee>>>>,
}

impl<S: VmQueries> Reader<'_, S> {
    /// Finds the functions that are constants as values: in upvalues that never change, in stores, or in the slots of a
    /// snapshot.
    pub fn find_floating(&self) -> HashSet<u64> {
        let mut floating = HashSet::new();
        let callable = self.functions.callable();
        for prototype in callable.iter().filter_map(|callee| callee.prototype()) {
            let Some(read) = self.functions.prototype(prototype) else { continue };
            let closures = self.functions.closures(prototype);
            for instruction in (0..read.key.sizebc).filter_map(|position| read.instruction(position)) {
                if instruction.opcode(self.set).is_none_or(|opcode| opcode.op != Op::UGET) {
                    continue;
                }
                floating.extend(closures.iter().filter_map(|&closure| {
                    match self.queries.upvalue(closure, instruction.d()) {
                        Some(Constant::Function(callee)) => Some(callee.code()),
                        _ => None,
                    }
                }));
            }
        }
        let code = &self.body.code;
        let stored = (FIRST..code.end())
            .filter(|&at| matches!(self.op(at), Some(Ir::ASTORE | Ir::HSTORE | Ir::USTORE | Ir::CARG)))
            .flat_map(|at| [code.ins(at).op1(), code.ins(at).op2()]);
        /// `SNAP_FRAME` (`lj_jit.h`).
        const FRAME: u32 = 0x1_0000;
        for index in 0..self.body.snapshots.len() {
            let (Some(frames), Some((entries, _))) =
                (self.frames.get(index).and_then(Option::as_ref), self.body.snapshot_words(index))
            else {
                continue;
            };
            let first = if self.fr2 { 2 } else { 1 };
            let is_function = |slot: usize| frames.iter().any(|frame| frame.base == slot + first);
            let values = entries.iter().filter(|entry| **entry & FRAME == 0 && !is_function((**entry >> 24) as usize));
            floating.extend(values.filter_map(|entry| self.functions.function(*entry as u16).map(Callee::code)));
        }
        floating.extend(stored.filter_map(|at| self.functions.function(at).map(Callee::code)));
        floating
    }
}
