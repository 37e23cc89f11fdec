//! What the machine code belongs to: it is aligned with the intermediate code.

use std::collections::HashMap;

use lj_trace_common::memory::ReadMemory;

use super::{Attribution, Attributor, Candidate, Chain, Span};
use crate::trace::align::{TWICE, align};
use crate::trace::ir::{BIAS, FIRST};
use crate::trace::machine::{self, Action, Machine};
use crate::trace::path::{Aim, Surroundings};
use crate::trace::stacks::{NOWHERE, StackId, Stacks};

impl<M: ReadMemory, S: Surroundings> Attributor<'_, M, S> {
    /// The stretches of machine code with what they belong to.
    pub(super) fn spans(
        &self,
        stacks: &Stacks,
        aims: &[Option<Aim>],
        candidates: &HashMap<u16, Vec<Candidate>>,
    ) -> Attribution {
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
            // Two of a kind in a row come from two instructions.
            let stay = |item: usize, _: usize| {
                let (own, ahead): (&Machine, &Machine) = (&machine[item], &machine[item - 1]);
                if own.mnemonic == ahead.mnemonic && own.is_arithmetic() { TWICE } else { 0.0 }
            };
            let (fits, _) = align(machine.len(), assembled.len(), score, skip, stay);
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

    pub(super) fn is_assembled(&self, at: u16) -> bool {
        let ins = self.body.code.ins(at);
        self.numbering.opcode(ins.number()).is_some_and(|opcode| machine::is_assembled(opcode, ins))
    }

    pub(super) fn fit(&self, machine: &Machine, at: u16) -> f32 {
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
    pub(super) fn segments<'b>(&self, code: &'b [Machine]) -> Vec<(&'b [Machine], Vec<u16>)> {
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
