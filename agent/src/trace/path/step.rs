//! One bytecode: what it reads, what it leaves, and where it goes on.

use super::{Aim, Origin, Place, Slot, Step, Surroundings, Walker};
use crate::trace::cast::Callee;
use crate::trace::stacks::Stacks;
use crate::vm::Prototype;
use crate::vm::bytecode::{Instruction, Op, OperandA};

/// What a step leads to.
pub(super) enum Next {
    /// One place.
    One(Place),
    /// One of several, the likeliest first.
    Either(Vec<Place>),
    /// The aim, before the instruction was executed to its end.
    Aim(Place),
    /// Nowhere.
    Nothing,
}

impl<S: Surroundings> Walker<'_, S> {
    pub(super) fn prototype(&self, stacks: &Stacks, place: &Place) -> Option<&Prototype> {
        let callee = stacks.get(place.stack()?).callee;
        self.cast.prototype(callee.prototype()?).map(|prototype| &**prototype)
    }

    /// The step that comes next.
    pub(super) fn step(&self, stacks: &Stacks, place: &Place) -> Option<Step> {
        let prototype = self.prototype(stacks, place)?;
        let mut instruction = prototype.instruction(place.position)?;
        let mut op = instruction.opcode(self.set)?.op;
        // The start of a trace: what it has replaced counts, but for loops, which say enough themselves.
        if op == Op::JLOOP
            && let Some(original) = self.surroundings.start_instruction(prototype, place.position, instruction.d())
        {
            let original_op = original.opcode(self.set)?.op;
            if original_op != Op::LOOP {
                (instruction, op) = (original, original_op);
            }
        }
        let operands = self.operands(prototype, place, instruction);
        Some(Step { stack: place.stack()?, position: place.position, instruction, op, operands, is_native: false })
    }

    /// Where the operands of an instruction come from: its second and third, or its first and second.
    pub(super) fn operands(&self, prototype: &Prototype, place: &Place, ins: Instruction) -> [Origin; 2] {
        let slot = |slot: u8| place.slot(usize::from(slot)).origin;
        let number = |index: u16| self.surroundings.number(prototype, index).map_or(Origin::Unknown, Origin::Number);
        let Some(opcode) = ins.opcode(self.set) else { return Default::default() };
        match opcode.op {
            Op::ADDVN
            | Op::SUBVN
            | Op::MULVN
            | Op::DIVVN
            | Op::MODVN
            | Op::ADDNV
            | Op::SUBNV
            | Op::MULNV
            | Op::DIVNV
            | Op::MODNV => [slot(ins.b()), number(u16::from(ins.c()))],
            Op::ADDVV | Op::SUBVV | Op::MULVV | Op::DIVVV | Op::MODVV | Op::POW | Op::TGETV | Op::TSETV | Op::CAT => {
                [slot(ins.b()), slot(ins.c())]
            }
            Op::TGETS | Op::TGETB | Op::TSETS | Op::TSETB => [slot(ins.b()), slot(ins.a())],
            Op::ISLT | Op::ISGE | Op::ISLE | Op::ISGT | Op::ISEQV | Op::ISNEV => [slot(ins.a()), slot(ins.d() as u8)],
            Op::ISEQN | Op::ISNEN => [slot(ins.a()), number(ins.d())],
            Op::UNM | Op::LEN | Op::USETV => [slot(ins.d() as u8), Origin::Unknown],
            _ => Default::default(),
        }
    }

    pub(super) fn next(&self, stacks: &mut Stacks, place: &Place, step: Step, aim: Aim, guards: &[Callee]) -> Next {
        let ins = step.instruction;
        let a = usize::from(ins.a());
        let jump = |from: u32| from.wrapping_add(1).wrapping_add(u32::from(ins.d())).wrapping_sub(0x8000);
        let go = |position: u32| {
            let mut next = place.clone();
            next.position = position;
            next.forced = None;
            next
        };
        let after = step.position + 1;
        match step.op {
            Op::JMP | Op::ISNEXT => Next::One(go(jump(step.position))),
            Op::LOOP | Op::ILOOP | Op::JLOOP => Next::One(go(after)),
            Op::FUNCF | Op::IFUNCF | Op::JFUNCF | Op::FUNCV | Op::IFUNCV | Op::JFUNCV => Next::One(go(after)),
            Op::IST | Op::ISF | Op::ISTC | Op::ISFC => match self.targets(stacks, place) {
                Some((taken, other)) => {
                    let mut places = vec![go(other), go(taken)];
                    if matches!(step.op, Op::ISTC | Op::ISFC) {
                        for place in &mut places {
                            let value = place.slot(usize::from(ins.d()));
                            place.set_slot(a, value);
                        }
                    }
                    Next::Either(places)
                }
                None => Next::Nothing,
            },
            Op::ISLT
            | Op::ISGE
            | Op::ISLE
            | Op::ISGT
            | Op::ISEQV
            | Op::ISNEV
            | Op::ISEQS
            | Op::ISNES
            | Op::ISEQN
            | Op::ISNEN
            | Op::ISEQP
            | Op::ISNEP => {
                let Some(targets) = self.targets(stacks, place) else { return Next::Nothing };
                let metamethods = self.metamethod_calls(stacks, place, step, guards);
                self.branch(place, targets, aim, metamethods)
            }
            Op::FORI | Op::JFORI => self.branch(place, (jump(step.position), after), aim, Vec::new()),
            Op::FORL | Op::IFORL | Op::JFORL => {
                let Some(body) = self.loop_body(stacks, place) else { return Next::Nothing };
                let mut place = place.clone();
                let counter = Slot { callee: None, origin: Origin::Made(step.stack, step.position) };
                [a, a + 3].into_iter().for_each(|slot| place.set_slot(slot, counter));
                self.branch(&place, (after, body), aim, Vec::new())
            }
            Op::ITERL | Op::IITERL | Op::JITERL => match self.iterator_body(stacks, place) {
                Some(body) => Next::Either(vec![go(body), go(after)]),
                None => Next::Nothing,
            },
            Op::ITERN => {
                let mut at_loop = place.clone();
                at_loop.position = after;
                match self.iterator_body(stacks, &at_loop) {
                    Some(body) => self.branch(place, (after + 1, body), aim, Vec::new()),
                    None => Next::Nothing,
                }
            }
            Op::CALL | Op::CALLM => self.call(stacks, place, step, place.slot(a).callee, guards),
            Op::ITERC => self.call(stacks, place, step, place.slot(a.wrapping_sub(3)).callee, guards),
            Op::CALLT | Op::CALLMT => self.tail_call(stacks, place, step, guards),
            Op::RET | Op::RETM | Op::RET0 | Op::RET1 => {
                let one = step.op == Op::RET1 || step.op == Op::RET && ins.d() == 2;
                self.leave(stacks, place, if one { place.slot(a) } else { Slot::default() })
            }
            _ => self.plain(stacks, place, step, guards),
        }
    }

    /// An instruction that goes on with the next one, unless a metamethod is called.
    pub(super) fn plain(&self, stacks: &mut Stacks, place: &Place, step: Step, guards: &[Callee]) -> Next {
        let ins = step.instruction;
        let a = usize::from(ins.a());
        let mut next = place.clone();
        next.position = step.position + 1;
        next.forced = None;
        let Some(opcode) = ins.opcode(self.set) else { return Next::Nothing };
        match opcode.a {
            OperandA::Destination => {
                let value = self.value(stacks, place, step);
                next.set_slot(a, value);
            }
            OperandA::Base if step.op == Op::KNIL => {
                (a..=usize::from(ins.d())).for_each(|slot| next.set_slot(slot, Slot::default()));
            }
            OperandA::Base if step.op != Op::TSETM => next.forget_from(a),
            _ => {}
        }
        let calls = self.metamethod_calls(stacks, place, step, guards);
        if calls.is_empty() { Next::One(next) } else { Next::Either([vec![next], calls].concat()) }
    }

    /// What an instruction puts into its destination.
    pub(super) fn value(&self, stacks: &Stacks, place: &Place, step: Step) -> Slot {
        let ins = step.instruction;
        let origin = match step.op {
            Op::MOV => return place.slot(usize::from(ins.d())),
            Op::KSHORT => Origin::Number(f64::from(ins.d() as i16)),
            Op::KNUM => self
                .prototype(stacks, place)
                .and_then(|prototype| self.surroundings.number(prototype, ins.d()))
                .map_or(Origin::Unknown, Origin::Number),
            Op::KSTR | Op::KPRI | Op::KCDATA => Origin::Unknown,
            _ => Origin::Made(step.stack, step.position),
        };
        Slot { callee: self.function(stacks, place, step), origin }
    }

    /// The function that an instruction puts into its destination.
    pub(super) fn function(&self, stacks: &Stacks, place: &Place, step: Step) -> Option<Callee> {
        let ins = step.instruction;
        match step.op {
            Op::UGET => match stacks.get(step.stack).callee {
                Callee::Lua { function: Some(closure), .. } => self.surroundings.upvalue(closure, ins.d()),
                _ => None,
            },
            Op::GGET | Op::TGETS => {
                let index = if step.op == Op::GGET { ins.d() } else { u16::from(ins.c()) };
                let prototype = self.prototype(stacks, place)?;
                self.cast.by_key(self.surroundings.string(prototype, index)?)
            }
            _ => None,
        }
    }
}
