//! Which function each machine instruction of a trace belongs to.
//!
//! The snapshots say where the trace would be left, not whose code runs. So the way through the bytecode is
//! followed from snapshot to snapshot ([`super::path`]), the intermediate code is aligned with it, and the machine
//! code with the intermediate code. What may belong to several functions is said to be uncertain, and is given to
//! the innermost frame that all of them share.

use std::collections::HashMap;

use lj_trace_common::layout::VmLayout;
use lj_trace_common::memory::ReadMemory;

use super::affinity;
use super::align::{Fit, MARGIN, align};
use super::body::Body;
use super::cast::{Callee, Cast, object};
use super::copies::originals;
use super::frames::{SnapshotFrame, snapshot_frames};
use super::hidden::Hidden;
use super::ir::{BIAS, FIRST, Ins, Numbering, Op as Ir, Opcode, Operand};
use super::machine::{self, Action, Machine};
use super::path::{Aim, Origin, Place, Search, Step, Surroundings, Walker, Way};
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

    /// For each instruction of the intermediate code, what it may belong to, the likeliest first.
    fn candidates(
        &self,
        stacks: &mut Stacks,
        frames: &[Option<Vec<SnapshotFrame>>],
        aims: &[Option<Aim>],
    ) -> HashMap<u16, Vec<Candidate>> {
        let loop_at = self.loop_at();
        let snapshots = &self.body.snapshots;
        let recorded = loop_at.map_or(snapshots.len(), |at| snapshots.partition_point(|snapshot| snapshot.at <= at));
        let returns = self.returns();
        let walker = Walker {
            cast: self.cast,
            surroundings: self.surroundings,
            set: crate::vm::bytecode_set(self.layout),
            fr2: self.layout.is_gc64(),
            returns: &returns,
            begin: aims.first().copied().flatten(),
        };
        let mut candidates = HashMap::new();
        let entries = (0..snapshots.len()).filter_map(|index| Some(self.body.snapshot_words(index)?.0)).flatten();
        let mut hidden = Hidden::new(frames, entries.filter_map(|entry| self.cast.function(*entry as u16)));
        let mut place: Option<Place> = None;
        let mut returned = 0;
        for index in 0..recorded.saturating_sub(1) {
            let (Some(aim), Some(next)) = (aims[index], aims[index + 1]) else {
                place = None;
                continue;
            };
            let mut start = place.take().unwrap_or_else(|| Place::at(stacks, aim, returned));
            if let Some(frames) = &frames[index] {
                self.know(&mut start, frames, index);
            }
            let range = snapshots[index].at.max(FIRST)..snapshots[index + 1].at;
            let recorded: Vec<u16> =
                range.clone().filter(|&at| self.is_recorded(at) || candidates.contains_key(&at)).collect();
            let guards: Vec<Callee> = recorded.iter().filter_map(|&at| self.guarded(at)).take(64).collect();
            let search = Search { aim: next, not_empty: !recorded.is_empty(), guards: &guards };
            let ways = walker.ways(stacks, &start, search);
            let mut scored: Vec<_> = ways
                .into_iter()
                .map(|way| {
                    let (fits, score) =
                        self.align_with(&recorded, &way, stacks, &candidates, frames[index + 1].as_deref(), index + 1);
                    (way, fits, if recorded.is_empty() { 0.0 } else { score })
                })
                .collect();
            scored.sort_by(|a, b| b.2.total_cmp(&a.2));
            if let Some(&(_, _, best)) = scored.first() {
                scored.retain(|(_, _, score)| *score >= best - MARGIN);
            }
            let steps = scored.iter().flat_map(|(way, _, _)| &way.steps);
            hidden.pass(stacks, &recorded, steps, |step| {
                step.instruction.opcode(walker.set).map(|opcode| opcode.metamethod)
            });
            for (way, fits, _) in &scored {
                for (&at, fit) in recorded.iter().zip(fits) {
                    let of_step = |step: usize| (way.steps[step].stack, way.steps[step].position);
                    let entry: &mut Vec<Candidate> = candidates.entry(at).or_default();
                    for candidate in [fit.best].iter().chain(&fit.possible).map(|&step| of_step(step)) {
                        if !entry.contains(&candidate) {
                            entry.push(candidate);
                        }
                    }
                }
            }
            if let Some((way, _, _)) = scored.into_iter().next() {
                returned = way.end.returns();
                place = Some(way.end);
            }
        }
        for (at, candidate) in hidden.possible(stacks, &self.cast.functions()) {
            candidates.entry(at).or_default().push(candidate);
        }
        if let Some(loop_at) = loop_at {
            let slots = self.body.snapshot_words(recorded.saturating_sub(1)).map_or(&[][..], |(slots, _)| slots);
            for (copy, of) in originals(&self.body.code, self.numbering, loop_at, slots) {
                let mut all: Vec<Candidate> = Vec::new();
                for candidate in of.iter().filter_map(|at| candidates.get(at)).flatten() {
                    if !all.contains(candidate) {
                        all.push(*candidate);
                    }
                }
                if !all.is_empty() {
                    candidates.insert(copy, all);
                }
            }
        }
        candidates
    }

    /// The Lua function that a guard asks for, if it does, other than the one that runs.
    fn guarded(&self, at: u16) -> Option<Callee> {
        let ins = self.body.code.ins(at);
        if self.op(at) != Some(Ir::EQ) || !ins.is_guard() {
            return None;
        }
        [ins.op1(), ins.op2()].into_iter().find_map(|value| {
            let load = self.body.code.ins(value);
            // `FLOAD func.pc` where the prototype is asked for.
            let value = if self.op(value) == Some(Ir::FLOAD) { load.op1() } else { value };
            let is_own = self.op(value) == Some(Ir::SLOAD) && self.body.code.ins(value).op1() == 0;
            self.cast.specialized(value).filter(|callee| callee.prototype().is_some() && value >= BIAS && !is_own)
        })
    }

    /// Whether an instruction comes from a bytecode.
    fn is_recorded(&self, at: u16) -> bool {
        !matches!(
            self.op(at),
            None | Some(
                Ir::NOP | Ir::BASE | Ir::LOOP | Ir::PHI | Ir::USE | Ir::RENAME | Ir::PROF | Ir::GCSTEP | Ir::PVAL
            )
        )
    }

    /// The frames that the trace returns to (`RETF`): a prototype and the address after the call.
    fn returns(&self) -> Vec<(Callee, u32)> {
        let returns = (FIRST..self.body.code.end()).filter(|&at| self.op(at) == Some(Ir::RETF));
        let target = |at: u16| {
            let ins = self.body.code.ins(at);
            let prototype = self.cast.function(ins.op1())?.prototype()?;
            let pc = object(self.layout, self.body, ins.op2());
            let position = self.cast.position(self.cast.prototype(prototype)?, pc)?;
            Some((self.cast.owner(pc).unwrap_or(Callee::Lua { prototype, function: None }), position))
        };
        returns.map_while(target).collect()
    }

    /// Notes which functions the slots of a snapshot hold.
    fn know(&self, place: &mut Place, frames: &[SnapshotFrame], index: usize) {
        let known = |at: u16| if at < BIAS { self.cast.function(at) } else { self.cast.specialized(at) };
        let mut note = |slot: usize, callee: Callee| {
            // The frame whose slots begin at or below it.
            let depth = frames.iter().rev().rposition(|frame| frame.base <= slot);
            if let Some(depth) = depth {
                place.know(depth, slot - frames[frames.len() - 1 - depth].base, callee);
            }
        };
        let returned = |at: u16| (FIRST..at).filter(|&at| self.op(at) == Some(Ir::RETF)).count();
        let begin = self.body.snapshots[index].at;
        if index == 0 || returned(begin) != returned(self.body.snapshots[index - 1].at) {
            // What the trace finds in the slots of its frame, and guards, until it returns to another one.
            let until = (begin..self.body.code.end()).find(|&at| at >= FIRST && self.op(at) == Some(Ir::RETF));
            for at in begin.max(FIRST)..until.unwrap_or(self.body.code.end()) {
                if self.op(at) == Some(Ir::SLOAD)
                    && let Some(callee) = self.cast.specialized(at)
                {
                    note(usize::from(self.body.code.ins(at).op1()), callee);
                }
            }
        }
        if let Some((entries, _)) = self.body.snapshot_words(index) {
            for entry in entries {
                if let Some(callee) = known(*entry as u16) {
                    note((entry >> 24) as usize, callee);
                }
            }
        }
    }

    /// Aligns recorded instructions with a way that leads to snapshot `next`.
    fn align_with(
        &self,
        recorded: &[u16],
        way: &Way,
        stacks: &Stacks,
        candidates: &HashMap<u16, Vec<Candidate>>,
        frames: Option<&[SnapshotFrame]>,
        next: usize,
    ) -> (Vec<Fit>, f32) {
        let steps = &way.steps;
        let made = frames.map(|frames| self.made(&way.end, frames, next)).unwrap_or_default();
        let fit = |at: u16, step: &Step, likely: &HashMap<u16, Candidate>| {
            let ins = self.body.code.ins(at);
            let Some(opcode) = self.numbering.opcode(ins.number()) else { return 0.0 };
            let mut score = affinity::affinity(step.op, step.is_native, opcode.op, ins);
            if opcode.op == Ir::SLOAD && stacks.get(step.stack).caller.is_some() {
                // Only the trace's own frame is on the stack.
                score -= 2.0;
            }
            if made.get(&at) == Some(&(step.stack, step.position)) {
                score += 3.0;
            }
            score + self.operands(opcode, ins, step, candidates, likely)
        };
        let absent = |place: usize| if steps[place].is_native { 0.0 } else { affinity::absence(steps[place].op) };
        // What an operand belongs to tells what its user belongs to: so first without, then with that.
        let mut likely = HashMap::new();
        let score = |item: usize, place: usize| fit(recorded[item], &steps[place], &likely);
        let (first, _) = align(recorded.len(), steps.len(), score, absent);
        for (&at, fit) in recorded.iter().zip(&first) {
            likely.insert(at, (steps[fit.best].stack, steps[fit.best].position));
        }
        let score = |item: usize, place: usize| fit(recorded[item], &steps[place], &likely);
        align(recorded.len(), steps.len(), score, absent)
    }

    /// What a snapshot's slots say: the instruction whose result is in a slot belongs to the bytecode that wrote it.
    fn made(&self, end: &Place, frames: &[SnapshotFrame], index: usize) -> HashMap<u16, Candidate> {
        let mut made = HashMap::new();
        let entries = self.body.snapshot_words(index).map_or(&[][..], |(entries, _)| entries);
        for entry in entries.iter().filter(|entry| **entry as u16 >= BIAS) {
            let slot = (entry >> 24) as usize;
            // The innermost frame whose slots begin at or below it.
            let Some(frame) = frames.iter().position(|frame| frame.base <= slot) else { continue };
            let depth = frames.len() - 1 - frame;
            if let Origin::Made(stack, position) = end.slot_of(depth, slot - frames[frame].base).origin {
                made.insert(*entry as u16, (stack, position));
            }
        }
        made
    }

    /// How well the operands of an instruction fit those of a bytecode.
    fn operands(
        &self,
        opcode: &Opcode,
        ins: Ins,
        step: &Step,
        candidates: &HashMap<u16, Vec<Candidate>>,
        likely: &HashMap<u16, Candidate>,
    ) -> f32 {
        let mut score = 0.0;
        for (kind, at) in [(opcode.operands.0, ins.op1()), (opcode.operands.1, ins.op2())] {
            if kind != Operand::Ref {
                continue;
            }
            if let Some(number) = self.number(at) {
                let mut numbers = step.operands.iter().filter_map(|origin| match origin {
                    Origin::Number(number) => Some(*number),
                    _ => None,
                });
                if let Some(first) = numbers.next() {
                    score += if first == number || numbers.any(|other| other == number) { 1.5 } else { -1.0 };
                }
                continue;
            }
            let mut origins = step.operands.iter().filter_map(|origin| match origin {
                Origin::Made(stack, position) => Some((*stack, *position)),
                _ => None,
            });
            let made_by = |maker: Candidate| {
                likely.get(&at).is_some_and(|likely| *likely == maker)
                    || candidates.get(&at).is_some_and(|candidates| candidates.contains(&maker))
            };
            let is_known = likely.contains_key(&at) || candidates.contains_key(&at);
            if is_known && !made_by((step.stack, step.position)) && step.operands != [Origin::Unknown; 2] {
                score += if origins.any(made_by) { 1.0 } else { -0.5 };
            }
        }
        score
    }

    /// The number that a constant is.
    fn number(&self, at: u16) -> Option<f64> {
        match self.op(at).filter(|_| at < BIAS)? {
            Ir::KNUM => Some(f64::from_bits(self.body.code.word(at + 1))),
            Ir::KINT => Some(f64::from(self.body.code.ins(at).literal() as i32)),
            _ => None,
        }
    }

    /// The stretches of machine code with what they belong to.
    fn spans(&self, stacks: &Stacks, aims: &[Option<Aim>], candidates: &HashMap<u16, Vec<Candidate>>) -> Attribution {
        let code = machine::decode(self.body.trace.mcode.start, &self.body.mcode);
        let mut attribution = Attribution::default();
        let mut merged: HashMap<Vec<Candidate>, (Chain, bool)> = HashMap::new();
        let mut add = |offset: u32, mut possible: Vec<Candidate>| {
            possible.sort_unstable();
            possible.dedup();
            let (chain, certain) =
                merged.entry(possible).or_insert_with_key(|possible| merge(stacks, possible)).clone();
            let span = Span { offset, chain, certain };
            let same = |last: &Span| last.chain == span.chain && last.certain == span.certain;
            if !attribution.spans.last().is_some_and(same) {
                attribution.spans.push(span);
            }
        };
        let base: Vec<Candidate> =
            aims.iter().flatten().map(|aim| (outermost(stacks, aim.stack), NOWHERE)).take(1).collect();
        for (machine, refs) in self.segments(&code) {
            let assembled: Vec<u16> = refs.into_iter().filter(|&at| self.is_assembled(at)).collect();
            let score = |item: usize, place: usize| self.fit(&machine[item], assembled[place]);
            let skip = |place: usize| {
                let ins = self.body.code.ins(assembled[place]);
                self.numbering.opcode(ins.number()).map_or(0.0, |opcode| machine::absence(opcode, ins))
            };
            let (fits, _) = align(machine.len(), assembled.len(), score, skip);
            for (index, instruction) in machine.iter().enumerate() {
                let possible = fits.get(index).map(|fit| {
                    fit.possible.iter().map(|&place| assembled[place]).filter(|&at| self.is_recorded(at)).collect()
                });
                let possible: Vec<u16> = possible.unwrap_or_default();
                let mut all: Vec<Candidate> = Vec::new();
                let known = !possible.is_empty() && possible.iter().all(|at| candidates.contains_key(at));
                if known {
                    all.extend(possible.iter().filter_map(|at| candidates.get(at)).flatten());
                } else {
                    all.extend(&base);
                }
                add(instruction.offset, all);
            }
        }
        attribution
    }

    fn is_assembled(&self, at: u16) -> bool {
        let ins = self.body.code.ins(at);
        self.numbering.opcode(ins.number()).is_some_and(|opcode| machine::is_assembled(opcode, ins))
    }

    fn fit(&self, machine: &Machine, at: u16) -> f32 {
        let ins = self.body.code.ins(at);
        let Some(opcode) = self.numbering.opcode(ins.number()) else { return 0.0 };
        let mut score = machine::affinity(machine, opcode, ins);
        if let Action::Guard { target } = machine.action
            && let Some(exit) = (self.exit_at)(target)
        {
            // Guards leave by the exit of the snapshot before them.
            score += if self.body.snapshot_of(at) as u8 == exit { 2.0 } else { -6.0 };
        }
        score
    }

    /// Pairs of machine code and intermediate code that belong together, in order.
    fn segments<'b>(&self, code: &'b [Machine]) -> Vec<(&'b [Machine], Vec<u16>)> {
        let snapshots = &self.body.snapshots;
        let end = self.body.code.end();
        let offsets: Option<Vec<u16>> = snapshots.iter().map(|snapshot| snapshot.mcode).collect();
        let Some(offsets) = offsets.filter(|offsets| offsets.is_sorted()) else {
            return vec![(code, (BIAS..end).collect())];
        };
        let mut segments = Vec::new();
        let mut rest = code;
        for (index, snapshot) in snapshots.iter().enumerate() {
            let (until, to) = match snapshots.get(index + 1) {
                Some(next) => (offsets[index + 1], next.at),
                None => (u16::MAX, end),
            };
            let (own, after) = rest.split_at(rest.partition_point(|machine| machine.offset < u32::from(until)));
            rest = after;
            let from = if index == 0 { BIAS } else { snapshot.at.max(FIRST) };
            segments.push((own, (from..to).collect()));
        }
        segments
    }
}

fn outermost(stacks: &Stacks, mut stack: StackId) -> StackId {
    while let Some(caller) = stacks.get(stack).caller {
        stack = caller;
    }
    stack
}

/// What all candidates share.
fn merge(stacks: &Stacks, candidates: &[Candidate]) -> (Chain, bool) {
    let mut chains = candidates.iter().map(|&(stack, position)| stacks.frames(stack, position));
    let Some(mut shared) = chains.next() else { return (Chain::new(), false) };
    let mut certain = candidates != [(candidates[0].0, NOWHERE)];
    for chain in chains {
        let same = shared.iter().zip(&chain).take_while(|(a, b)| a.0.same_code(b.0)).count();
        certain &= same == shared.len() && same == chain.len();
        for (frame, other) in shared.iter_mut().zip(&chain) {
            if frame.1 != other.1 {
                frame.1 = NOWHERE;
            }
        }
        shared.truncate(same);
    }
    (shared, certain)
}
