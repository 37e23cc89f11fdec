//! What the intermediate code may belong to: it is aligned with the ways from snapshot to snapshot.

use std::collections::HashMap;

use lj_trace_common::memory::ReadMemory;

use super::{Attributor, Candidate};
use crate::trace::align::MARGIN;
use crate::trace::cast::{Callee, object};
use crate::trace::copies::originals;
use crate::trace::frames::SnapshotFrame;
use crate::trace::hidden::Hidden;
use crate::trace::ir::{BIAS, FIRST, Op as Ir};
use crate::trace::path::{Aim, Place, Search, Surroundings, Walker};
use crate::trace::stacks::Stacks;

impl<M: ReadMemory, S: Surroundings> Attributor<'_, M, S> {
    /// For each instruction of the intermediate code, what it may belong to, the likeliest first.
    pub(super) fn candidates(
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
    pub(super) fn guarded(&self, at: u16) -> Option<Callee> {
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
    pub(super) fn is_recorded(&self, at: u16) -> bool {
        !matches!(
            self.op(at),
            None | Some(
                Ir::NOP | Ir::BASE | Ir::LOOP | Ir::PHI | Ir::USE | Ir::RENAME | Ir::PROF | Ir::GCSTEP | Ir::PVAL
            )
        )
    }

    /// The frames that the trace returns to (`RETF`): a prototype and the address after the call.
    pub(in crate::trace) fn returns(&self) -> Vec<(Callee, u32)> {
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
    pub(super) fn know(&self, place: &mut Place, frames: &[SnapshotFrame], index: usize) {
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
}
