//! Attributes machine code by aligning it with the intermediate code in every possible way.

use std::collections::HashMap;

use lj_trace_common::memory::ReadMemory;

use super::assembly::{belong_together, can_come_from, is_assembled, is_its_own, is_single, is_visible};
use super::{Attribution, Attributor, Chain, CodeSpan};
use crate::arch::{self, MCODE_UNIT, Machine, MachineAction};
use crate::trace::functions::Callee;
use crate::trace::ir::{BIAS, FIRST, IrOp as Ir};
use crate::trace::reading::{Aim, CandidateReading, Candidates, VmQueries};
use crate::trace::stacks::{NOWHERE, StackIndex, Stacks};

/// The most cells for the alignment of a segment; larger segments are not aligned.
const MAX_CELLS: usize = 1 << 22;

impl<M: ReadMemory, S: VmQueries> Attributor<'_, M, S> {
    /// The ranges of machine code with the frames that they belong to.
    pub(super) fn spans(
        &self,
        stacks: &Stacks,
        aims: &[Option<Aim>],
        candidates: &Candidates,
        only: Option<StackIndex>,
    ) -> Attribution {
        let code = arch::decode(self.body.trace.mcode.start, &self.body.mcode);
        let mut attribution = Attribution::default();
        // Without these offsets it is not known on which frame the code runs.
        let Some(returns) = self.lower_frames.bounds() else { return attribution };
        let mut merged: HashMap<Vec<CandidateReading>, (Chain, bool)> = HashMap::new();
        let mut add = |offset: u32, mut possible: Vec<CandidateReading>| {
            possible.sort_unstable();
            possible.dedup();
            let (chain, certain) =
                merged.entry(possible).or_insert_with_key(|possible| self.merge(stacks, possible)).clone();
            let span = CodeSpan { offset, chain, certain };
            let same = |last: &CodeSpan| last.chain == span.chain && last.certain == span.certain;
            if !attribution.spans.last().is_some_and(same) {
                attribution.spans.push(span);
            }
        };
        // After the last snapshot, the trace can only leave, from the frames of this snapshot.
        let end: Option<CandidateReading> = aims.last().copied().flatten().map(|aim| (aim.stack, NOWHERE));
        for (machine, refs) in self.segments(&code, &returns) {
            let assembled: Vec<u16> = refs.into_iter().filter(|&at| self.is_assembled(at)).collect();
            let possible = self.possible(machine, &assembled);
            let is_last = machine.last() == code.last();
            let is_first = machine.first().is_some_and(|first| first.offset == 0);
            for (index, instruction) in machine.iter().enumerate() {
                let of: Option<Vec<&Vec<CandidateReading>>> =
                    possible[index].iter().map(|&place| candidates.get(&assembled[place])).collect();
                let mut all: Vec<CandidateReading> = of.into_iter().flatten().flatten().copied().collect();
                if assembled.is_empty() {
                    all.extend(end.filter(|_| is_last));
                    // Code from the trace's start may also be here, because nothing else was assembled before.
                    all.extend(
                        aims.first().copied().flatten().map(|aim| (aim.stack, aim.position)).filter(|_| is_first),
                    );
                }
                if all.is_empty() && self.lower_frames.is_empty() {
                    // In a trace of one function, all code belongs to this function, even if nothing else is known.
                    all.extend(only.map(|stack| (stack, NOWHERE)));
                }
                add(instruction.offset, all);
            }
        }
        attribution
    }

    /// For each machine instruction, the indices of the IR instructions from which it can come.
    fn possible(&self, machine: &[Machine], assembled: &[u16]) -> Vec<Vec<usize>> {
        let (items, places) = (machine.len(), assembled.len());
        if items == 0 || places == 0 || items.saturating_mul(places) > MAX_CELLS {
            return vec![(0..places).collect(); items];
        }
        let own = |item: usize, place: usize| {
            let ins = self.body.code.ins(assembled[place]);
            self.numbering.opcode(ins.number()).is_some_and(|opcode| is_its_own(&machine[item], opcode, ins))
        };
        let kind = |place: usize| {
            let ins = self.body.code.ins(assembled[place]);
            let opcode = self.numbering.opcode(ins.number());
            let is_of_lookup = matches!(self.op(assembled[place]), Some(Ir::EQ | Ir::NE))
                && self.op(assembled[place] - 1) == Some(Ir::HREF);
            opcode.map_or((false, false), |opcode| (is_visible(opcode, ins) && !is_of_lookup, is_single(opcode, ins)))
        };
        let kinds: Vec<(bool, bool)> = (0..places).map(kind).collect();
        let can: Vec<bool> =
            (0..items * places).map(|cell| self.can(&machine[cell / places], assembled[cell % places])).collect();
        let together: Vec<bool> = (1..items).map(|item| belong_together(&machine[item - 1], &machine[item])).collect();
        // For each item and place: whether it can be reached, with or without the IR instruction's own code seen before.
        let cell = |item: usize, place: usize, seen: bool| (item * places + place) * 2 + usize::from(seen);
        let mut forward = vec![false; items * places * 2];
        let put = |table: &mut Vec<bool>, item: usize, place: usize, seen: bool| {
            if can[item * places + place] {
                let is_own = own(item, place);
                // An IR instruction that is assembled to one operation has no second one.
                if !(seen && is_own && kinds[place].1) {
                    table[cell(item, place, seen || is_own)] = true;
                }
            }
        };
        // For each place, how many of the places before it must have machine code of their own: between places with equal
        // counts, all can be skipped.
        let mut required = vec![0_usize; places + 1];
        for place in 0..places {
            required[place + 1] = required[place] + usize::from(kinds[place].0);
        }
        for (place, &needed) in required.iter().enumerate().take(places) {
            if needed == 0 {
                put(&mut forward, 0, place, false);
            }
        }
        for item in 1..items {
            // The last complete place from which all places between can be skipped.
            let mut from: Option<usize> = None;
            for place in 0..places {
                for seen in [false, true] {
                    if forward[cell(item - 1, place, seen)] {
                        put(&mut forward, item, place, seen);
                    }
                }
                if !together[item - 1] && from.is_some_and(|from| required[place] == from) {
                    put(&mut forward, item, place, false);
                }
                let complete =
                    forward[cell(item - 1, place, true)] || !kinds[place].0 && forward[cell(item - 1, place, false)];
                if complete {
                    from = Some(required[place + 1]);
                }
            }
        }
        let mut backward = vec![false; items * places * 2];
        for place in 0..places {
            if required[places] == required[place + 1] {
                for seen in [false, true] {
                    let is_complete = seen || !kinds[place].0;
                    backward[cell(items - 1, place, seen)] = is_complete && forward[cell(items - 1, place, seen)];
                }
            }
        }
        for item in (0..items - 1).rev() {
            let mut to: Option<usize> = None;
            for place in (0..places).rev() {
                for seen in [false, true] {
                    if !forward[cell(item, place, seen)] {
                        continue;
                    }
                    // The next item of the same IR instruction.
                    let next_own = own(item + 1, place);
                    let is_allowed = !(seen && next_own && kinds[place].1);
                    let stays = is_allowed && backward[cell(item + 1, place, seen || next_own)];
                    let goes_on =
                        !together[item] && (seen || !kinds[place].0) && to.is_some_and(|to| required[place + 1] == to);
                    backward[cell(item, place, seen)] = stays || goes_on;
                }
                let begins = [false, true].into_iter().any(|seen| {
                    // A place begins with or without its own code.
                    backward[cell(item + 1, place, seen)] && seen == own(item + 1, place)
                });
                if begins {
                    to = Some(required[place]);
                }
            }
        }
        (0..items)
            .map(|item| {
                (0..places)
                    .filter(|&place| [false, true].into_iter().any(|seen| backward[cell(item, place, seen)]))
                    .collect()
            })
            .collect()
    }

    fn is_assembled(&self, at: u16) -> bool {
        let ins = self.body.code.ins(at);
        self.numbering.opcode(ins.number()).is_some_and(|opcode| is_assembled(opcode, ins))
    }

    fn can(&self, machine: &Machine, at: u16) -> bool {
        let ins = self.body.code.ins(at);
        let Some(opcode) = self.numbering.opcode(ins.number()) else { return true };
        if let MachineAction::Guard { target } = machine.action
            && let Some(exit) = (self.exit_at)(target)
            && at >= FIRST
            && self.body.snapshot_of(at) as u8 != exit
        {
            // A guard leaves by the exit of the snapshot before it.
            return false;
        }
        can_come_from(machine, opcode, ins)
    }

    /// Segments of machine code and intermediate code that belong together, in order. Snapshots separate them, if the
    /// VM stores where their code begins, and so do the returns to lower frames.
    fn segments<'b>(&self, code: &'b [Machine], returns: &[(u16, u32)]) -> Vec<(&'b [Machine], Vec<u16>)> {
        let end = self.body.code.end();
        let snapshots = self.body.snapshots.iter().skip(1);
        let by_snapshots: Option<Vec<_>> =
            snapshots.map(|snapshot| Some((snapshot.at.max(FIRST), u32::from(snapshot.mcode?) * MCODE_UNIT))).collect();
        let with_returns = |mut bounds: Vec<(u16, u32)>| {
            bounds.extend(returns);
            bounds.sort_unstable();
            bounds
        };
        let is_in_order = |bounds: &Vec<(u16, u32)>| bounds.is_sorted_by_key(|&(_, offset)| offset);
        let bounds = by_snapshots.map(with_returns).filter(is_in_order).unwrap_or_else(|| returns.to_vec());
        let mut segments = Vec::new();
        let (mut rest, mut from) = (code, BIAS);
        for (to, until) in bounds.into_iter().chain([(end, u32::MAX)]) {
            let (own, after) = rest.split_at(rest.partition_point(|machine| machine.offset < until));
            segments.push((own, (from..to).collect()));
            (rest, from) = (after, to);
        }
        segments
    }

    /// The frames that all candidates share, and whether the innermost one is certain.
    fn merge(&self, stacks: &Stacks, candidates: &[CandidateReading]) -> (Chain, bool) {
        let mut chains = candidates.iter().map(|&(stack, position)| stacks.frames(stack, position));
        let Some(mut shared) = chains.next() else { return (Chain::new(), false) };
        let mut certain = true;
        for chain in chains {
            let same = shared.iter().zip(&chain).take_while(|(a, b)| a.0.same_code(b.0)).count();
            certain &= same == shared.len() && same == chain.len();
            shared.truncate(same);
            for (depth, (frame, other)) in shared.iter_mut().zip(&chain).enumerate() {
                // Where a function is called, the position may name the callee: then being in the same line is not enough.
                let is_innermost = depth + 1 == same;
                if frame.1 != other.1 && !(is_innermost && self.is_same_line(frame.0, [frame.1, other.1])) {
                    frame.1 = NOWHERE;
                }
            }
        }
        (shared, certain)
    }

    /// Whether both positions in a function are known and in the same line.
    fn is_same_line(&self, callee: Callee, positions: [u32; 2]) -> bool {
        let prototype = callee.prototype().and_then(|prototype| self.functions.prototype(prototype));
        let [one, other] = positions.map(|position| prototype?.line_at(position));
        one.is_some() && one == other
    }
}
