//! How well the intermediate code fits a way through the bytecode.

use std::collections::HashMap;

use lj_trace_common::memory::ReadMemory;

use super::{Attributor, Candidate};
use crate::trace::affinity;
use crate::trace::align::{Fit, TWICE, align};
use crate::trace::frames::SnapshotFrame;
use crate::trace::ir::{BIAS, Ins, Op as Ir, Opcode, Operand};
use crate::trace::path::{Origin, Place, Step, Surroundings, Way};
use crate::trace::stacks::Stacks;

impl<M: ReadMemory, S: Surroundings> Attributor<'_, M, S> {
    /// Aligns recorded instructions with a way that leads to snapshot `next`.
    pub(super) fn align_with(
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
        // Two of a kind in a row come from two bytecodes.
        let stay = |item: usize, place: usize| {
            let op = |item: usize| self.op(recorded[item]);
            let is_twice = op(item).is_some() && op(item) == op(item - 1);
            if is_twice && affinity::is_made_once(steps[place].op, op(item)) { TWICE } else { 0.0 }
        };
        // What an operand belongs to tells what its user belongs to: so first without, then with that.
        let mut likely = HashMap::new();
        let score = |item: usize, place: usize| fit(recorded[item], &steps[place], &likely);
        let (first, _) = align(recorded.len(), steps.len(), score, absent, stay);
        for (&at, fit) in recorded.iter().zip(&first) {
            likely.insert(at, (steps[fit.best].stack, steps[fit.best].position));
        }
        let score = |item: usize, place: usize| fit(recorded[item], &steps[place], &likely);
        align(recorded.len(), steps.len(), score, absent, stay)
    }

    /// What a snapshot's slots say: the instruction whose result is in a slot belongs to the bytecode that wrote it.
    pub(super) fn made(&self, end: &Place, frames: &[SnapshotFrame], index: usize) -> HashMap<u16, Candidate> {
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
    pub(super) fn operands(
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
    pub(super) fn number(&self, at: u16) -> Option<f64> {
        match self.op(at).filter(|_| at < BIAS)? {
            Ir::KNUM => Some(f64::from_bits(self.body.code.word(at + 1))),
            Ir::KINT => Some(f64::from(self.body.code.ins(at).literal() as i32)),
            _ => None,
        }
    }
}
