//! Explains why a place in Lua code runs in the interpreter.
//!
//! The search goes from the inside out: first the innermost loop around the place that is blacklisted, compiled, or was
//! aborted; then the function. A loop that is only counted is no reason: it is not hot, and the code around it explains more.
//!
//! Functions with variable arguments are never counted ([`BC_FUNCV`], `vm_x64.dasc`): they are compiled only as parts
//! of their callers. Main chunks are such functions.
//!
//! [`BC_FUNCV`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_x64.dasc#L4800-L4806

use std::collections::HashMap;

use lj_trace_common::layout::{BytecodeSet, VmLayout};
use lj_trace_common::memory::ReadMemory;
use lj_trace_process::Maps;
use serde::Serialize;

use super::about::Subjects;
use super::blacklist::{BlacklistKind, is_turned_off};
use super::loops::{CodePart, PartState, Unrecordable, parts, unrecordable};
use super::penalties::{Penalties, Penalty};
use super::reasons::{AbortReason, Reasons};
use crate::bytecode::Op;
use crate::object::field;
use crate::prototype::{Prototype, PrototypeKey};
use crate::{Jit, Trace, Vm, VmStatus, read_traces};

/// Why code is interpreted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Why {
    /// The loop or function is blacklisted.
    Blacklisted,
    /// Its recording was aborted, and will be tried again.
    Aborted,
    /// It is compiled, but the place is after an exit of its trace, and no other trace continues there.
    LeavesTrace,
    /// Compiling is turned off for the function (`jit.off(f)`).
    TurnedOff,
    /// Compiling is turned off for the whole VM.
    CompilerOff,
    /// A function with variable arguments, outside of loops: its calls are not counted.
    Vararg,
    /// A main chunk outside of loops.
    MainChunk,
    /// No reason is known: the code may not be hot yet, or was recorded since.
    Unknown,
}

/// What is known about the aborts at a place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KnownAbort {
    /// Number of aborts.
    pub aborts: u32,
    /// The last known reason.
    pub reason: AbortReason,
    /// The bytecode or function that the reason is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub about: Option<String>,
}

/// Why a place is interpreted, and which part of the code causes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explained {
    /// The reason.
    pub why: Why,
    /// The kind of code that has the reason.
    pub kind: BlacklistKind,
    /// Index of the first instruction of that code.
    pub start: u32,
    /// The aborts there.
    pub abort: Option<KnownAbort>,
    /// The number of the trace there.
    pub trace: Option<u16>,
    /// The bytecodes in it that cannot be recorded.
    pub unrecordable: Vec<Unrecordable>,
}

/// Facts that explain why places of a VM are interpreted.
#[derive(Clone, Debug)]
pub struct WhyInterpreted {
    set: BytecodeSet,
    layout: VmLayout,
    is_on: bool,
    aborts: HashMap<u64, KnownAbort>,
    /// Root traces by the address at which they start: their numbers, and the instructions that they have replaced.
    traces: HashMap<u64, (u16, u32)>,
}

impl WhyInterpreted {
    /// The facts for `vm`: whether its compiler is on, its traces, and its aborts by the address at which recording began.
    pub fn new(vm: &Vm, is_on: bool, traces: &[Trace], aborts: impl Iterator<Item = (u64, KnownAbort)>) -> Self {
        Self {
            set: vm.bytecode_set(),
            layout: vm.layout,
            is_on,
            aborts: aborts.collect(),
            traces: traces
                .iter()
                .filter(|trace| trace.root == 0)
                .map(|trace| (trace.startpc, (trace.number, trace.startins)))
                .collect(),
        }
    }

    /// The current facts in memory, without a search for functions. `maps` must be recent.
    pub fn read<M: ReadMemory>(memory: &M, maps: &Maps, vm: &Vm) -> Self {
        let reasons = Reasons::of(vm);
        let subjects = Subjects::default();
        let penalties = Penalties::read(memory, vm).ok();
        let known = |found: &Penalties, penalty: &Penalty| {
            let reason = reasons.get(penalty.reason);
            let about = found.about(penalty).and_then(|about| subjects.name(memory, vm, reason, about));
            (penalty.pc, KnownAbort { aborts: penalty.aborts(), reason, about })
        };
        let aborts = penalties.iter().flat_map(|found| found.in_use().map(|penalty| known(found, penalty)));
        let is_on = VmStatus::read(memory, vm).is_ok_and(|status| status.jit == Jit::On);
        Self::new(vm, is_on, &read_traces(memory, maps, vm), aborts)
    }

    /// All loops of a function, and the function itself, the innermost first.
    pub fn parts(&self, prototype: &Prototype) -> Vec<CodePart> {
        let original = |start| self.traces.get(&self.address(&prototype.key, start)).map(|(_, replaced)| *replaced);
        parts(prototype, self.set, original)
    }

    /// Why an instruction of `prototype` with these `parts` is interpreted. If the position is not known, it is the
    /// reason of the function.
    pub fn at(&self, prototype: &Prototype, parts: &[CodePart], position: Option<u32>) -> Explained {
        let function = |why| Explained {
            why,
            kind: BlacklistKind::Function,
            start: 0,
            abort: None,
            trace: None,
            unrecordable: Vec::new(),
        };
        if !self.is_on {
            return function(Why::CompilerOff);
        }
        if is_turned_off(prototype) {
            return function(Why::TurnedOff);
        }
        let around = parts.iter().filter(|part| match position {
            Some(position) => part.within.contains(&position),
            None => part.kind == BlacklistKind::Function,
        });
        if let Some(explained) = around.filter_map(|part| self.explain(prototype, part)).next() {
            return explained;
        }
        let header = prototype.instruction(0).and_then(|header| header.opcode(self.set));
        // The function has no part of its own, so all of these parts are loops.
        let may_be_in_loop = parts.iter().any(|part| position.is_none_or(|position| part.within.contains(&position)));
        match header.map(|header| header.op) {
            Some(Op::FUNCV | Op::IFUNCV) if !may_be_in_loop => {
                function(if prototype.key.firstline == 0 { Why::MainChunk } else { Why::Vararg })
            }
            _ => function(Why::Unknown),
        }
    }

    fn explain(&self, prototype: &Prototype, part: &CodePart) -> Option<Explained> {
        let pc = self.address(&prototype.key, part.start);
        // A loop over next() that fell back to a general iterator loop was recorded from the instruction before.
        let before = || self.aborts.get(&pc.wrapping_sub(4)).filter(|_| part.kind == BlacklistKind::IteratorFor);
        let abort = self.aborts.get(&pc).or_else(before).cloned();
        let why = match part.state {
            PartState::Blacklisted => Why::Blacklisted,
            PartState::Compiled => Why::LeavesTrace,
            PartState::Counted if abort.is_some() => Why::Aborted,
            PartState::Counted => return None,
        };
        let unrecordable = match why {
            Why::LeavesTrace => Vec::new(),
            _ => unrecordable(prototype, part.start, self.set),
        };
        let trace = self.traces.get(&pc).map(|(number, _)| *number).filter(|_| why == Why::LeavesTrace);
        Some(Explained { why, kind: part.kind, start: part.start, abort, trace, unrecordable })
    }

    fn address(&self, key: &PrototypeKey, position: u32) -> u64 {
        field(key.address, self.layout.sizeof_pt).wrapping_add(4 * u64::from(position))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytecode::opcodes;
    use crate::prototype::tests::prototype;
    use crate::testing::x64_layout;

    const SET: BytecodeSet = BytecodeSet::V21;

    fn code(op: Op, d: i32) -> u32 {
        let number = opcodes(SET).position(|opcode| opcode.op == op).unwrap() as u32;
        number | ((d + 0x8000) as u32) << 16
    }

    /// A function with this header and two nested loops with these ends: `for ... do for ... do end end`.
    fn nested(header: Op, inner: Op, outer: Op) -> Prototype {
        let ops = [(header, 0), (Op::FORI, 4), (Op::FORI, 2), (Op::FNEW, 0), (inner, -2), (outer, -4), (Op::RET0, 0)];
        prototype(ops.map(|(op, d)| code(op, d)).to_vec(), &[], &[], &[])
    }

    fn why(is_on: bool) -> WhyInterpreted {
        let layout = x64_layout("2.1b3", "x64gc64");
        WhyInterpreted { set: SET, layout, is_on, aborts: HashMap::new(), traces: HashMap::new() }
    }

    fn at(why: &WhyInterpreted, prototype: &Prototype, position: Option<u32>) -> (Why, u32) {
        let explained = why.at(prototype, &why.parts(prototype), position);
        (explained.why, explained.start)
    }

    #[test]
    fn the_innermost_reason_counts() {
        let mut known = why(true);
        let blacklisted = nested(Op::FUNCF, Op::IFORL, Op::IFORL);
        let inner = [3, 5, 6].map(|position| at(&known, &blacklisted, Some(position)));
        assert_eq!(inner, [(Why::Blacklisted, 4), (Why::Blacklisted, 5), (Why::Unknown, 0)]);
        // A loop that is only counted has no reason of its own.
        let outer = nested(Op::IFUNCF, Op::FORL, Op::IFORL);
        assert_eq!(at(&known, &outer, Some(3)), (Why::Blacklisted, 5));
        assert_eq!([Some(6), None].map(|position| at(&known, &outer, position)), [(Why::Blacklisted, 0); 2]);
        // But an aborted loop has a reason.
        let reason = AbortReason { number: 7, name: Some("NYIBC") };
        let abort = KnownAbort { aborts: 3, reason, about: None };
        known.aborts.insert(known.address(&outer.key, 4), abort.clone());
        let explained = known.at(&outer, &known.parts(&outer), Some(3));
        assert_eq!((explained.why, explained.start, explained.abort), (Why::Aborted, 4, Some(abort)));
        assert_eq!(explained.unrecordable.len(), 1);
        // A trace counts only if it starts right there.
        let compiled = nested(Op::FUNCF, Op::JFORL, Op::FORL);
        assert_eq!(at(&why(true), &compiled, Some(3)), (Why::Unknown, 0), "flushed meanwhile");
        known.traces.insert(known.address(&compiled.key, 4), (9, code(Op::FORL, -2)));
        let explained = known.at(&compiled, &known.parts(&compiled), Some(3));
        assert_eq!((explained.why, explained.start, explained.trace), (Why::LeavesTrace, 4, Some(9)));
    }

    #[test]
    fn functions_have_reasons_too() {
        let vararg = nested(Op::FUNCV, Op::FORL, Op::FORL);
        assert_eq!(at(&why(true), &vararg, Some(6)), (Why::Vararg, 0));
        assert_eq!(at(&why(true), &vararg, Some(3)), (Why::Unknown, 0), "a loop in it is counted");
        assert_eq!(at(&why(true), &vararg, None), (Why::Unknown, 0), "it may be in a loop");
        let mut main = vararg.clone();
        main.key.firstline = 0;
        assert_eq!(at(&why(true), &main, Some(6)), (Why::MainChunk, 0));
        assert_eq!(at(&why(false), &main, Some(6)), (Why::CompilerOff, 0));
        main.flags = 0x08;
        assert_eq!(at(&why(true), &main, Some(3)), (Why::TurnedOff, 0));
    }
}
