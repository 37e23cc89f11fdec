//! Searches for all readings: forward through everything possible, then backward from each end, so that only states of
//! a complete reading count.
//!
//! LuaJIT's sources: [`lj_record_ins`], [`rec_for_loop`], [`lj_record_setup`], [`SNAP_FRAME`], [`sload`],
//! [`lj_record_idx`], [`rec_upvalue`], [`rec_loop_interp`].
//!
//! [`lj_record_ins`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_record.c#L2283-L2289
//! [`rec_for_loop`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_record.c#L480-L518
//! [`lj_record_setup`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_record.c#L2904-L2943
//! [`SNAP_FRAME`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_jit.h#L195-L196
//! [`sload`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_record.c#L201-L209
//! [`lj_record_idx`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_record.c#L1613
//! [`rec_upvalue`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_record.c#L1850-L1854
//! [`rec_loop_interp`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_record.c#L630-L658

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::rc::Rc;

use super::emits::is_transparent;
use super::graph::{Arrival, Graph, SearchState};
use super::kinds::is_comparison;
use super::{Aim, BytecodeStep, CandidateReading, Phase, Reader, ReadingPlace, SlotValue, VmQueries};
use crate::bytecode::{Instruction, Op};
use crate::trace::effort::Effort;
use crate::trace::functions::Callee;
use crate::trace::ir::{BIAS, FIRST, IrOp as Ir, irt};
use crate::trace::stacks::{Activation, NOWHERE, Stacks};

/// In a function with more instructions, it takes too long to find where a reading may start.
const MAX_START: u32 = 1 << 17;

/// What each instruction may belong to, by reference. An instruction that is not listed may belong to anything.
pub type Candidates = HashMap<u16, Vec<CandidateReading>>;

/// The limit of the work. Each unit is one place at one instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadingBudget {
    /// Units that are left.
    left: usize,
    /// The most units for one part between two snapshots.
    stretch: usize,
    /// Whether the budget was too small.
    pub was_short: bool,
}

impl ReadingBudget {
    /// The budget for a trace with this effort.
    pub fn new(effort: Effort) -> Self {
        Self { left: effort.trace, stretch: effort.stretch, was_short: false }
    }
}

impl<S: VmQueries> Reader<'_, S> {
    /// What each recorded instruction may belong to.
    pub fn candidates(&self, stacks: &mut Stacks, budget: &mut ReadingBudget) -> Candidates {
        let mut candidates = Candidates::new();
        let mut first = 0;
        while first < self.recorded {
            let Some(aim) = self.aims[first] else {
                first += 1;
                continue;
            };
            let unknown = (first..self.recorded).find(|&index| self.aims[index].is_none());
            let last = unknown.unwrap_or(self.recorded) - 1;
            let reached = self.read_from(stacks, aim, first..=last, budget, &mut candidates);
            // Instructions after the last reached snapshot belong to no reading: the next reading starts after it.
            first = reached + 1;
        }
        candidates
    }

    /// Reads from one snapshot on, up to the last of `snapshots` if it can be reached. Returns the snapshot that was reached.
    fn read_from(
        &self,
        stacks: &mut Stacks,
        aim: Aim,
        snapshots: std::ops::RangeInclusive<usize>,
        budget: &mut ReadingBudget,
        candidates: &mut Candidates,
    ) -> usize {
        let (first, last) = snapshots.into_inner();
        if first == last {
            return last;
        }
        let mut graph = Graph::new();
        let start = self.past_transparent(self.body.snapshots[first].at.max(FIRST));
        let begin = ReadingPlace::at(stacks, aim, self.returned_before(first));
        if self.prototype(stacks, &begin).is_some_and(|prototype| prototype.key.sizebc > MAX_START) {
            budget.was_short = true;
            return first;
        }
        for mut place in self.starts(stacks, begin, aim, first) {
            if first == 0 {
                place.frames.iter_mut().for_each(|frame| Rc::make_mut(frame).rest = SlotValue::Unloaded);
                if let Some(counter) = self.counter(stacks) {
                    // The loop's own counter is in this slot, too, as the variable of the loop (`FORL_EXT`).
                    place.set_slot(counter + 3, SlotValue::Any);
                }
            }
            self.know(&mut place, first);
            let number = graph.place(place);
            graph.reach(SearchState { place: number, at: start, begin: start, snapshot: first as u16 + 1 }, None);
        }
        let mut reached: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
        let mut segment = 0;
        let mut spent = 0;
        let mut is_cut_short = false;
        while let Some(number) = graph.take() {
            let state = graph.states[number as usize];
            let index = usize::from(state.snapshot);
            if index > last {
                continue;
            }
            if index != segment {
                (segment, spent) = (index, 0);
            }
            if budget.left == 0 || spent >= budget.stretch {
                // States that were not examined may belong to a reading, too: so nothing is known up to the next snapshot.
                reached.retain(|&known, _| known < index);
                (is_cut_short, budget.was_short) = (true, true);
                break;
            }
            budget.left -= 1;
            spent += 1;
            self.expand(stacks, &mut graph, number, state, &mut reached);
        }
        let Some((&furthest, ends)) = reached.last_key_value() else { return first };
        if furthest < last && !is_cut_short {
            // No reading is complete, so some rule is wrong here. It is not known where it has refused the right
            // reading, and the readings that came further show nothing.
            return furthest;
        }
        // Backward: mark the states that lead to an end.
        let mut leads = vec![false; graph.states.len()];
        let mut open = ends.clone();
        while let Some(number) = open.pop() {
            if std::mem::replace(&mut leads[number as usize], true) {
                continue;
            }
            open.extend(graph.arrivals[number as usize].iter().map(|arrival| arrival.from));
        }
        for (_, arrivals) in graph.arrivals.iter().enumerate().filter(|(number, _)| leads[*number]) {
            for arrival in arrivals.iter().filter(|arrival| leads[arrival.from as usize]) {
                let Some(at) = arrival.made else { continue };
                let place = &graph.places[graph.states[arrival.from as usize].place as usize];
                for candidate in self.belongs_to(stacks, place) {
                    let known = candidates.entry(at).or_default();
                    if !known.contains(&candidate) {
                        known.push(candidate);
                    }
                }
            }
        }
        furthest
    }

    /// What an instruction recorded at a place belongs to. A library function in a tail call has replaced the frame of
    /// its caller; if that is the trace's own frame, both are possible.
    fn belongs_to(&self, stacks: &mut Stacks, place: &ReadingPlace) -> Vec<CandidateReading> {
        let Some(stack) = place.stack() else { return Vec::new() };
        let own = (stack, place.position);
        let step = self.step(stacks, place);
        if let (Phase::Native(native), Some(step)) = (place.phase, step)
            && matches!(step.op, Op::CALLT | Op::CALLMT)
        {
            let Activation { caller, call, .. } = stacks.get(stack);
            let instead = (stacks.intern(caller, native, call), NOWHERE);
            return if caller.is_some() { vec![instead] } else { vec![own, instead] };
        }
        vec![own]
    }

    /// The places where a reading may be at its first snapshot. The snapshot of a comparison has the target that it
    /// does not go to.
    fn starts(&self, stacks: &Stacks, begin: ReadingPlace, aim: Aim, first: usize) -> Vec<ReadingPlace> {
        if first == 0 {
            // A side trace may become a loop of its own, with a setup like that of a root trace.
            return vec![begin.with(Phase::Setup)];
        }
        let mut starts = vec![begin.clone()];
        let size = self.prototype(stacks, &begin).map_or(0, |prototype| prototype.key.sizebc);
        for position in 0..size {
            let place = begin.go(position);
            let Some(step) = self.step(stacks, &place) else { continue };
            match self.ways(stacks, &place, step) {
                Some((taken, other)) if taken == aim.position => starts.push(place.with(Phase::Forced(other))),
                Some((taken, other)) if other == aim.position => starts.push(place.with(Phase::Forced(taken))),
                _ => {}
            }
        }
        // A call may have been in progress.
        for callee in self.functions.callable() {
            starts.push(begin.with(Phase::Native(callee)));
        }
        starts.retain(|place| self.step(stacks, place).is_some());
        starts
    }

    fn expand(
        &self,
        stacks: &mut Stacks,
        graph: &mut Graph,
        number: u32,
        state: SearchState,
        reached: &mut BTreeMap<usize, Vec<u32>>,
    ) {
        let place = graph.places[state.place as usize].clone();
        let index = usize::from(state.snapshot);
        let next_snapshot = self.past_transparent(self.body.snapshots[index].at);
        let is_due = state.at >= next_snapshot;
        if is_due && let Some(aim) = self.aims[index] {
            for mut taken in self.taken(stacks, &place, aim, state.begin..state.at) {
                self.know(&mut taken, index);
                let taken = graph.place(taken);
                let next = SearchState { place: taken, snapshot: state.snapshot + 1, ..state };
                graph.reach(next, Some(Arrival { from: number, made: None }));
                if let Some(&end) = graph.known.get(&next) {
                    let ends = reached.entry(index).or_default();
                    if ends.last() != Some(&end) {
                        ends.push(end);
                    }
                }
            }
        }
        let Some(step) = self.step(stacks, &place) else { return };
        if place.phase == Phase::Start && !self.has_constants(stacks, &place, step) {
            return;
        }
        if !is_due && self.can_make(stacks, &place, step, state.at, state.begin) {
            let at = self.past_transparent(state.at + 1);
            let mut same = place.clone();
            self.note_load(stacks, &mut same, state.at);
            let same = if same == place { state.place } else { graph.place(same) };
            let begin = if self.forgets_what_it_made(&place) { at } else { state.begin };
            let next = SearchState { place: same, at, begin, ..state };
            graph.reach(next, Some(Arrival { from: number, made: Some(state.at) }));
        }
        let made = state.begin..state.at;
        let nexts = if self.ends_own_loop(stacks, &place, step) && state.at < self.end_of_recording() {
            return;
        } else if self.is_complete(stacks, &place, step, made.clone()) {
            self.next(stacks, &place, step, made)
        } else if place.phase == Phase::Start {
            // A metamethod may do what the bytecode has not done itself.
            self.metamethods_called(stacks, &place, step)
        } else {
            return;
        };
        for next in nexts {
            let next = graph.place(next);
            // The next bytecode has emitted nothing yet.
            let next = SearchState { place: next, begin: state.at, ..state };
            graph.reach(next, Some(Arrival { from: number, made: None }));
        }
    }

    /// Whether a bytecode is the end of the root trace's own loop, in its own frame: recording stops there (`rec_loop_interp`).
    fn ends_own_loop(&self, stacks: &Stacks, place: &ReadingPlace, step: BytecodeStep) -> bool {
        let Some(begin) = self.aims.first().copied().flatten() else { return false };
        let start = Instruction(self.body.trace.startins).opcode(self.set).map(|opcode| opcode.op);
        let is_own = self.body.trace.root == 0 && place.frames.len() == 1 && place.stack() == Some(begin.stack);
        is_own
            && match (start, step.op) {
                (Some(Op::FORL | Op::JFORL | Op::IFORL), Op::FORL | Op::JFORL | Op::IFORL) => {
                    self.loop_body(stacks, place) == Some(begin.position)
                }
                (Some(Op::LOOP | Op::JLOOP | Op::ILOOP), Op::LOOP | Op::JLOOP | Op::ILOOP) => {
                    place.position + 1 == begin.position
                }
                _ => false,
            }
    }

    /// The reference up to which everything was emitted before the recorder's last snapshot.
    fn end_of_recording(&self) -> u16 {
        let last = self.body.snapshots.get(self.recorded.saturating_sub(1));
        last.map_or(FIRST, |snapshot| self.past_transparent(snapshot.at))
    }

    /// Whether nothing depends on the instructions emitted at a place so far: then readings that differ only in them
    /// are the same.
    fn forgets_what_it_made(&self, place: &ReadingPlace) -> bool {
        let Phase::Native(Callee::Native { ffid, .. }) = place.phase else { return false };
        !matches!(self.functions.library(ffid), Some("bit" | "math"))
    }

    /// The places after a snapshot was taken at this place, if that is possible.
    fn taken(&self, stacks: &Stacks, place: &ReadingPlace, aim: Aim, made: Range<u16>) -> Vec<ReadingPlace> {
        let is_begun = made.is_empty();
        let mut places = Vec::new();
        let is_tail_native = matches!(place.phase, Phase::Native(_));
        if place.stack() == Some(aim.stack) && place.position == aim.position {
            // It is taken before the bytecode is recorded (`lj_record_ins`), except for bytecodes that take their own.
            let own = |op: Op| {
                is_comparison(op)
                    || matches!(
                        op,
                        Op::RET
                            | Op::RETM
                            | Op::RET0
                            | Op::RET1
                            | Op::ITERN
                            | Op::CALL
                            | Op::CALLM
                            | Op::CALLT
                            | Op::CALLMT
                            | Op::ITERC
                            | Op::LOOP
                            | Op::JLOOP
                            | Op::FUNCF
                            | Op::JFUNCF
                    )
            };
            let is_late = place.phase == Phase::Start && !is_begun;
            let may_be = !is_late || self.step(stacks, place).is_none_or(|step| own(step.op));
            if may_be && !matches!(place.phase, Phase::Forced(_)) {
                places.push(place.clone());
            }
        } else if is_tail_native
            && let Some(stack) = place.stack()
            && (stacks.get(stack).caller, stacks.get(stack).call) == (Some(aim.stack), aim.position)
        {
            // A library function that has replaced its caller's frame.
            places.push(place.clone());
        }
        if place.stack() == Some(aim.stack)
            && matches!(place.phase, Phase::Start)
            && let Some(step) = self.step(stacks, place)
            && let Some((taken, other)) = self.ways(stacks, place, step)
            // By then, a loop has counted.
            && (!matches!(step.op, Op::FORL | Op::IFORL | Op::JFORL) || self.is_complete(stacks, place, step, made))
        {
            if aim.position == taken {
                places.push(place.with(Phase::Forced(other)));
            }
            if aim.position == other {
                places.push(place.with(Phase::Forced(taken)));
            }
        }
        places
    }

    /// The first instruction at or after a reference that was emitted by some bytecode.
    fn past_transparent(&self, mut at: u16) -> u16 {
        while at < self.body.code.end() && is_transparent(self.op(at)) {
            at += 1;
        }
        at
    }

    /// Number of returns to lower frames that were recorded before a snapshot.
    fn returned_before(&self, index: usize) -> usize {
        let until = self.body.snapshots[index].at;
        (FIRST..until).filter(|&at| self.op(at) == Some(Ir::RETF)).count()
    }

    /// Notes what a load of a slot shows.
    fn note_load(&self, stacks: &Stacks, place: &mut ReadingPlace, at: u16) {
        if self.op(at) != Some(Ir::SLOAD) {
            return;
        }
        if let Some((depth, slot)) = self.loaded(place, self.body.code.ins(at).op1()) {
            place.set_slot_of(depth, slot, self.loaded_value(at));
            if place.phase == Phase::Setup && self.counter(stacks) == Some(slot) {
                place.set_slot_of(depth, slot + 3, SlotValue::Ref(at));
            }
        }
    }

    /// The slot of the counter, if the trace belongs to a numeric loop (`rec_for_loop`, `lj_record.c`): a root trace that
    /// starts at the loop's end, or a side trace that starts after the loop's beginning and may become a loop of its own.
    fn counter(&self, stacks: &Stacks) -> Option<usize> {
        if self.body.trace.root == 0 {
            let start = Instruction(self.body.trace.startins);
            let op = start.opcode(self.set)?.op;
            return matches!(op, Op::FORL | Op::JFORL | Op::IFORL).then_some(usize::from(start.a()));
        }
        let aim = self.aims.first().copied().flatten()?;
        let prototype = self.functions.prototype(stacks.get(aim.stack).callee.prototype()?)?;
        let before = prototype.instruction(aim.position.checked_sub(1)?)?;
        (before.opcode(self.set)?.op == Op::JFORI).then_some(usize::from(before.a()))
    }

    /// Notes what a snapshot shows about slots.
    fn know(&self, place: &mut ReadingPlace, index: usize) {
        let (Some(frames), Some((entries, _))) = (&self.frames[index], self.body.snapshot_words(index)) else { return };
        if frames.len() != place.frames.len() {
            return;
        }
        /// `SNAP_FRAME` and `SNAP_CONT` (`lj_jit.h`): entries with links, not values.
        const LINKS: u32 = 0x3_0000;
        for &entry in entries.iter().filter(|entry| **entry & LINKS == 0) {
            let slot = (entry >> 24) as usize;
            // The innermost frame whose slots begin at or below this slot.
            let Some(frame) = frames.iter().position(|frame| frame.base <= slot) else { continue };
            let depth = frames.len() - 1 - frame;
            place.set_slot_of(depth, slot - frames[frame].base, self.value(entry as u16));
        }
    }

    /// The result of a load: nil, false and true are constants from then on (`sload`, `lj_record_idx`, `rec_upvalue`,
    /// `lj_record.c`).
    pub(super) fn loaded_value(&self, load: u16) -> SlotValue {
        if self.body.code.ins(load).kind_of_result() <= irt::TRUE { SlotValue::Constant } else { SlotValue::Ref(load) }
    }

    /// The value of a reference.
    pub(super) fn value(&self, at: u16) -> SlotValue {
        if at >= BIAS {
            return SlotValue::Ref(at);
        }
        match (self.functions.function(at), self.number(at)) {
            (Some(callee @ Callee::Lua { function: Some(_), .. } | callee @ Callee::Native { .. }), _) => {
                SlotValue::Function(callee)
            }
            (_, Some(number)) => SlotValue::Number(number.to_bits()),
            _ => SlotValue::Constant,
        }
    }
}
