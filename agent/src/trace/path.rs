//! The way through the bytecode that was recorded between two snapshots of a trace.
//!
//! The recorder follows the interpreter, so where the bytecode itself says how it goes on, the way is known. Where
//! it does not (comparisons, calls of functions that are not constant, metamethods) the next snapshot tells: the
//! way has to come by its function and PC. What has several ways is tried, within bounds.

use lj_trace_common::layout::BytecodeSet;

use super::cast::{Callee, Cast};
use super::stacks::{NOWHERE, StackId, Stacks};
use crate::vm::Prototype;
use crate::vm::bytecode::{Instruction, Metamethod, Op, OperandA};

/// What the walk must know of the VM beyond the trace.
pub trait Surroundings {
    /// The function in an upvalue of a closure.
    fn upvalue(&self, closure: u64, index: u16) -> Option<Callee>;
    /// Address of the constant string `index` of a prototype.
    fn string(&self, prototype: &Prototype, index: u16) -> Option<u64>;
    /// The constant number `index` of a prototype.
    fn number(&self, prototype: &Prototype, index: u16) -> Option<f64>;
    /// The instruction that a trace's start has replaced.
    fn start_instruction(&self, trace: u16) -> Option<Instruction>;
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Origin {
    /// Not known.
    #[default]
    Unknown,
    /// A bytecode has made it: its call stack and position.
    Made(StackId, u32),
    /// It is a constant number.
    Number(f64),
}

/// What is known of a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Slot {
    /// The function that it holds.
    pub callee: Option<Callee>,
    /// Where its value comes from.
    pub origin: Origin,
}

/// One bytecode of the way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// The call stack that executes it.
    pub stack: StackId,
    /// Its index in the innermost function.
    pub position: u32,
    /// What it is.
    pub instruction: Instruction,
    /// Its opcode.
    pub op: Op,
    /// Where its operands come from.
    pub operands: [Origin; 2],
    /// Whether it stands for a library function that it calls: what that was compiled to is not known.
    pub is_native: bool,
}

/// Where the walk is.
#[derive(Clone, Debug)]
pub struct Place {
    /// The frames, the innermost last, with what is known of the functions in their slots.
    frames: Vec<(StackId, Vec<Slot>)>,
    /// The bytecode that comes next.
    position: u32,
    /// Where a comparison that comes next goes on.
    forced: Option<u32>,
    /// How many returns to lower frames were passed.
    returns: usize,
    /// The library function that was called on the way here.
    native: Option<Step>,
    /// Guards that were passed by calling what they ask for, a bit for each.
    used: u64,
    /// Calls that nothing tells of.
    guesses: u32,
}

/// A snapshot, as the aim of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aim {
    /// Its call stack.
    pub stack: StackId,
    /// The bytecode at which the trace would be left.
    pub position: u32,
}

/// A way from one snapshot to the next.
#[derive(Clone, Debug)]
pub struct Way {
    /// What is executed.
    pub steps: Vec<Step>,
    /// Where it leads.
    pub end: Place,
    /// How much speaks against it: calls that nothing tells of, and guards that it does not explain.
    pub doubts: u32,
}

/// Ways that are looked for.
const MAX_WAYS: usize = 4;

/// Steps that are taken, on all ways together.
const MAX_STEPS: usize = 6000;

/// Steps of one way: a trace has 4000 instructions at most by default (`maxrecord`, `lj_jit.h`).
const MAX_LENGTH: usize = 2000;

/// Frames in a trace: more than the slots that a snapshot has room for.
const MAX_DEPTH: usize = 120;

/// Finds ways through the bytecode of one trace.
pub struct Walker<'a, S> {
    /// The functions of the trace.
    pub cast: &'a Cast,
    /// What lies around the trace.
    pub surroundings: &'a S,
    /// The numbering of bytecodes.
    pub set: BytecodeSet,
    /// Whether frames take two slots.
    pub fr2: bool,
    /// The frames that the trace returns to, in order: the function, and the position after the call.
    pub returns: &'a [(Callee, u32)],
    /// Where the trace begins: it ends where it comes back to.
    pub begin: Option<Aim>,
}

/// What is sought.
#[derive(Clone, Copy, Debug)]
pub struct Search<'a> {
    /// The snapshot to come to.
    pub aim: Aim,
    /// Whether there must be a step in between.
    pub not_empty: bool,
    /// Functions that guards in between ask for: they are called on the way.
    pub guards: &'a [Callee],
}

impl Place {
    /// The place at a snapshot.
    pub fn at(stacks: &Stacks, aim: Aim, returns: usize) -> Self {
        let mut frames = Vec::new();
        let mut next = Some(aim.stack);
        while let Some(stack) = next {
            frames.push((stack, Vec::new()));
            next = stacks.get(stack).caller;
        }
        frames.reverse();
        Self { frames, position: aim.position, forced: None, returns, native: None, used: 0, guesses: 0 }
    }

    /// The call stack.
    pub fn stack(&self) -> Option<StackId> {
        self.frames.last().map(|(stack, _)| *stack)
    }

    /// How many returns to lower frames were passed.
    pub fn returns(&self) -> usize {
        self.returns
    }

    /// Notes what is known of a slot of the frame `depth`, counted from the outermost.
    pub fn know(&mut self, depth: usize, slot: usize, callee: Callee) {
        if let Some((_, slots)) = self.frames.get_mut(depth) {
            let origin = slots.get(slot).copied().unwrap_or_default().origin;
            set(slots, slot, Slot { callee: Some(callee), origin });
        }
    }

    /// What is known of a slot of the frame `depth`, counted from the outermost.
    pub fn slot_of(&self, depth: usize, slot: usize) -> Slot {
        self.frames.get(depth).and_then(|(_, slots)| slots.get(slot)).copied().unwrap_or_default()
    }

    fn slot(&self, slot: usize) -> Slot {
        self.slot_of(self.frames.len().wrapping_sub(1), slot)
    }

    fn set_slot(&mut self, slot: usize, value: Slot) {
        if let Some((_, slots)) = self.frames.last_mut() {
            set(slots, slot, value);
        }
    }

    fn forget_from(&mut self, slot: usize) {
        if let Some((_, slots)) = self.frames.last_mut() {
            slots.truncate(slot);
        }
    }
}

fn set(slots: &mut Vec<Slot>, slot: usize, value: Slot) {
    /// A frame has no more slots.
    const MAX_SLOTS: usize = 256;
    if slot >= slots.len() {
        if value == Slot::default() || slot >= MAX_SLOTS {
            return;
        }
        slots.resize(slot + 1, Slot::default());
    }
    slots[slot] = value;
}

/// What a step leads to.
enum Next {
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
    /// The ways from `start` to an aim that least speaks against.
    pub fn ways(&self, stacks: &mut Stacks, start: &Place, search: Search<'_>) -> Vec<Way> {
        let Search { aim, not_empty, guards } = search;
        let mut begin = start.clone();
        (begin.used, begin.guesses) = (0, 0);
        let mut open = vec![(begin, Vec::new())];
        let mut ways: Vec<Way> = Vec::new();
        let mut budget = MAX_STEPS;
        let doubts = |place: &Place| place.guesses + (guards.len() as u32).saturating_sub(place.used.count_ones());
        // The way of which least speaks against is followed first, and of several the newest.
        let likeliest = |open: &[(Place, Vec<Step>)]| {
            let least = open.iter().map(|(place, _)| doubts(place)).min()?;
            open.iter().rposition(|(place, _)| doubts(place) == least)
        };
        while let Some(index) = likeliest(&open) {
            let (mut place, mut steps) = open.remove(index);
            let least = ways.iter().map(|way| way.doubts).min();
            loop {
                if budget == 0 || ways.len() >= MAX_WAYS {
                    return best(ways);
                }
                if least.is_some_and(|least| place.guesses > least) {
                    break;
                }
                budget -= 1;
                steps.extend(place.native.take());
                let here = place.stack() == Some(aim.stack) && place.position == aim.position && place.forced.is_none();
                if here && !(not_empty && steps.is_empty()) {
                    // The snapshot may have been taken in the middle of a call.
                    if let Some(step) = self.step(stacks, &place).filter(|step| is_call(step.op)) {
                        steps.extend([step, Step { is_native: true, ..step }]);
                    }
                    ways.push(Way { steps, doubts: doubts(&place), end: place });
                    break;
                }
                let again = !steps.is_empty()
                    && self.begin
                        == Some(Aim { stack: place.stack().unwrap_or(StackId::MAX), position: place.position });
                if steps.len() >= MAX_LENGTH || again {
                    break;
                }
                let Some(step) = self.step(stacks, &place) else { break };
                steps.push(step);
                match self.next(stacks, &place, step, aim, guards) {
                    Next::One(next) => place = next,
                    Next::Either(mut places) => {
                        places.reverse();
                        open.extend(places.into_iter().map(|place| (place, steps.clone())));
                        break;
                    }
                    Next::Aim(end) => {
                        // The other ways may still come by it later on.
                        ways.push(Way { steps, doubts: doubts(&end), end });
                        break;
                    }
                    Next::Nothing => break,
                }
            }
        }
        best(ways)
    }

    fn prototype(&self, stacks: &Stacks, place: &Place) -> Option<&Prototype> {
        let callee = stacks.get(place.stack()?).callee;
        self.cast.prototype(callee.prototype()?).map(|prototype| &**prototype)
    }

    /// The step that comes next.
    fn step(&self, stacks: &Stacks, place: &Place) -> Option<Step> {
        let prototype = self.prototype(stacks, place)?;
        let mut instruction = prototype.instruction(place.position)?;
        let mut op = instruction.opcode(self.set)?.op;
        // The start of a trace: what it has replaced counts, but for loops, which say enough themselves.
        if op == Op::JLOOP
            && let Some(original) = self.surroundings.start_instruction(instruction.d())
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
    fn operands(&self, prototype: &Prototype, place: &Place, ins: Instruction) -> [Origin; 2] {
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

    fn next(&self, stacks: &mut Stacks, place: &Place, step: Step, aim: Aim, guards: &[Callee]) -> Next {
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
    fn plain(&self, stacks: &mut Stacks, place: &Place, step: Step, guards: &[Callee]) -> Next {
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
    fn value(&self, stacks: &Stacks, place: &Place, step: Step) -> Slot {
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
    fn function(&self, stacks: &Stacks, place: &Place, step: Step) -> Option<Callee> {
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

    /// A comparison: `targets` are where it goes if it holds and if it does not. A snapshot at one of them was taken
    /// before the comparison, which went the other way.
    fn branch(&self, place: &Place, targets: (u32, u32), aim: Aim, more: Vec<Place>) -> Next {
        let go = |position: u32| {
            let mut next = place.clone();
            next.position = position;
            next.forced = None;
            next
        };
        if let Some(forced) = place.forced {
            return Next::One(go(forced));
        }
        if place.stack() == Some(aim.stack) {
            let forced = match aim.position {
                position if position == targets.0 => Some(targets.1),
                position if position == targets.1 => Some(targets.0),
                _ => None,
            };
            if let Some(forced) = forced {
                let mut end = place.clone();
                end.forced = Some(forced);
                return Next::Aim(end);
            }
        }
        Next::Either([vec![go(targets.1), go(targets.0)], more].concat())
    }

    /// Where the comparison at `place` goes if it holds, and if not: a jump follows it.
    fn targets(&self, stacks: &Stacks, place: &Place) -> Option<(u32, u32)> {
        let after = place.position + 1;
        let jump = self.prototype(stacks, place)?.instruction(after)?;
        let target = after.wrapping_add(1).wrapping_add(u32::from(jump.d())).wrapping_sub(0x8000);
        Some((target, after + 1))
    }

    /// First instruction of the numeric loop that ends at `place`. The loop's own jump may be replaced by a trace's
    /// number, but not that of its beginning, which leads behind it.
    fn loop_body(&self, stacks: &Stacks, place: &Place) -> Option<u32> {
        let prototype = self.prototype(stacks, place)?;
        let begins = |at: &u32| {
            let Some(ins) = prototype.instruction(*at) else { return false };
            let leads = at.wrapping_add(1).wrapping_add(u32::from(ins.d())).wrapping_sub(0x8000);
            matches!(ins.opcode(self.set).map(|opcode| opcode.op), Some(Op::FORI | Op::JFORI))
                && leads == place.position + 1
        };
        (0..place.position).rev().find(begins).map(|at| at + 1)
    }

    /// First instruction of the generic loop that ends at `place`: its beginning jumps to the iterator's call.
    fn iterator_body(&self, stacks: &Stacks, place: &Place) -> Option<u32> {
        let prototype = self.prototype(stacks, place)?;
        let begins = |at: &u32| {
            let Some(ins) = prototype.instruction(*at) else { return false };
            let leads = at.wrapping_add(1).wrapping_add(u32::from(ins.d())).wrapping_sub(0x8000);
            matches!(ins.opcode(self.set).map(|opcode| opcode.op), Some(Op::JMP | Op::ISNEXT))
                && leads == place.position.wrapping_sub(1)
        };
        (0..place.position).rev().find(begins).map(|at| at + 1)
    }

    /// Places in the metamethods that the instruction may call.
    fn metamethod_calls(&self, stacks: &mut Stacks, place: &Place, step: Step, guards: &[Callee]) -> Vec<Place> {
        let Some(Metamethod::Named(name)) = step.instruction.opcode(self.set).map(|opcode| opcode.metamethod) else {
            return Vec::new();
        };
        let mut callees: Vec<Callee> =
            stacks.called_from(Some(step.stack), step.position).map(|(_, callee)| callee).collect();
        let shown = callees.len();
        // `a <= b` may call `__lt`.
        let other = if name == "__le" { self.cast.metamethods("__lt") } else { &[] };
        callees.extend(self.cast.metamethods(name).iter().chain(other));
        let mut places = Vec::new();
        for (index, callee) in callees.iter().enumerate() {
            if !callees[..index].iter().any(|other| other.same_code(*callee)) {
                places.extend(self.enter(stacks, place, step, *callee, None, (index >= shown, guards)));
            }
        }
        places
    }

    /// The place at the beginning of `callee`, called from `place`; none if it is not Lua. The call may be a guess,
    /// unless a guard asks for it.
    fn enter(
        &self,
        stacks: &mut Stacks,
        place: &Place,
        step: Step,
        callee: Callee,
        arguments: Option<usize>,
        (is_guess, guards): (bool, &[Callee]),
    ) -> Option<Place> {
        let prototype = callee.prototype()?;
        if self.cast.prototype(prototype).is_none() || place.frames.len() >= MAX_DEPTH {
            return None;
        }
        let guard = guard(place, callee, guards);
        let is_running = |(stack, _): &(StackId, Vec<Slot>)| stacks.get(*stack).callee.same_code(callee);
        if is_guess && guard.is_none() && place.frames.iter().any(is_running) {
            return None;
        }
        let stack = stacks.intern(Some(step.stack), callee, step.position);
        let mut next = place.clone();
        let passed = arguments.and_then(|from| next.frames.last()?.1.get(from..).map(<[_]>::to_vec));
        next.frames.push((stack, passed.unwrap_or_default()));
        next.position = 0;
        next.forced = None;
        next.used |= guard.unwrap_or(0);
        next.guesses += u32::from(is_guess && guard.is_none());
        Some(next)
    }

    /// The first slot of a call's arguments.
    fn arguments(&self, step: Step) -> usize {
        usize::from(step.instruction.a()) + if self.fr2 { 2 } else { 1 }
    }

    fn call(&self, stacks: &mut Stacks, place: &Place, step: Step, known: Option<Callee>, guards: &[Callee]) -> Next {
        let arguments = self.arguments(step);
        let mut passed = place.clone();
        passed.position = step.position + 1;
        passed.forced = None;
        passed.native = Some(Step { is_native: true, ..step });
        passed.forget_from(usize::from(step.instruction.a()));
        // A protected call that has a snapshot inside.
        let protected: Vec<(StackId, Callee)> = stacks
            .called_from(Some(step.stack), step.position)
            .filter(|(_, callee)| matches!(callee, Callee::Native { .. }))
            .collect();
        let is_possible = |callee: Callee| known.is_none_or(|known| known.same_code(callee));
        for (stack, callee) in protected {
            if !is_possible(callee) {
                continue;
            }
            let inside: Vec<Callee> = stacks.called_from(Some(stack), NOWHERE).map(|(_, callee)| callee).collect();
            let mut places = Vec::new();
            for callee in inside {
                let Some(prototype) = callee.prototype() else { continue };
                if self.cast.prototype(prototype).is_some() {
                    let inner = stacks.intern(Some(stack), callee, NOWHERE);
                    let mut next = place.clone();
                    next.frames.push((stack, Vec::new()));
                    next.frames.push((inner, Vec::new()));
                    next.position = 0;
                    next.forced = None;
                    next.used |= guard(place, callee, guards).unwrap_or(0);
                    places.push(next);
                }
            }
            if !places.is_empty() {
                return Next::Either(places);
            }
        }
        match known {
            Some(callee @ Callee::Lua { .. }) => {
                match self.enter(stacks, place, step, callee, Some(arguments), (false, guards)) {
                    Some(next) => Next::One(next),
                    None => Next::Nothing,
                }
            }
            Some(Callee::Native { .. }) => Next::One(passed),
            None => {
                let mut places = Vec::new();
                for (callee, is_guess) in self.candidates(stacks, Some(step.stack), step.position) {
                    places.extend(self.enter(stacks, place, step, callee, Some(arguments), (is_guess, guards)));
                }
                places.sort_by_key(|place| place.guesses);
                places.push(passed);
                Next::Either(places)
            }
        }
    }

    /// What a call of something unknown may call: functions that a snapshot shows there, then all others.
    /// With each, whether that is a guess.
    fn candidates(&self, stacks: &Stacks, caller: Option<StackId>, call: u32) -> Vec<(Callee, bool)> {
        let mut callees: Vec<(Callee, bool)> = Vec::new();
        let shown = stacks.called_from(caller, call).map(|(_, callee)| (callee, false));
        for (callee, is_guess) in shown.chain(self.cast.functions().into_iter().map(|callee| (callee, true))) {
            if callee.prototype().is_some() && !callees.iter().any(|(known, _)| known.same_code(callee)) {
                callees.push((callee, is_guess));
            }
        }
        callees
    }

    fn tail_call(&self, stacks: &mut Stacks, place: &Place, step: Step, guards: &[Callee]) -> Next {
        let known = place.slot(usize::from(step.instruction.a())).callee;
        let arguments = self.arguments(step);
        let current = stacks.get(step.stack);
        let callees = match known {
            Some(callee @ Callee::Lua { .. }) => vec![(callee, false)],
            Some(Callee::Native { .. }) => Vec::new(),
            None => self.candidates(stacks, current.caller, current.call),
        };
        let mut places = Vec::new();
        for (callee, is_guess) in callees {
            let Some(prototype) = callee.prototype() else { continue };
            let guard = guard(place, callee, guards);
            if self.cast.prototype(prototype).is_none()
                || is_guess && guard.is_none() && current.callee.same_code(callee)
            {
                continue;
            }
            let stack = stacks.intern(current.caller, callee, current.call);
            let mut next = place.clone();
            let passed = next.frames.pop().and_then(|(_, slots)| slots.get(arguments..).map(<[_]>::to_vec));
            next.frames.push((stack, passed.unwrap_or_default()));
            next.position = 0;
            next.forced = None;
            next.used |= guard.unwrap_or(0);
            next.guesses += u32::from(is_guess && guard.is_none());
            places.push(next);
        }
        if !matches!(known, Some(Callee::Lua { .. })) {
            let left = match self.leave(stacks, place, Slot::default()) {
                Next::One(next) => vec![next],
                Next::Either(places) => places,
                Next::Aim(_) | Next::Nothing => Vec::new(),
            };
            // The library function has taken this frame's place.
            places.extend(left.into_iter().map(|mut next| {
                let caller = Step { stack: current.caller.unwrap_or(step.stack), position: current.call, ..step };
                next.native = Some(Step { is_native: true, ..caller });
                next
            }));
        }
        Next::Either(places)
    }

    /// A return.
    fn leave(&self, stacks: &mut Stacks, place: &Place, value: Slot) -> Next {
        let mut next = place.clone();
        next.forced = None;
        let Some((stack, _)) = next.frames.pop() else { return Next::Nothing };
        let mut call = stacks.get(stack).call;
        // Out of a protected call as well.
        while let Some(&(outer, _)) = next.frames.last()
            && matches!(stacks.get(outer).callee, Callee::Native { .. })
        {
            call = stacks.get(outer).call;
            next.frames.pop();
        }
        if next.frames.is_empty() {
            // To the frame below the one in which the trace ran.
            let Some(&(callee, position)) = self.returns.get(place.returns) else { return Next::Nothing };
            let stack = stacks.intern(None, callee, NOWHERE);
            next.frames.push((stack, Vec::new()));
            next.position = position;
            next.returns += 1;
            return Next::One(next);
        }
        next.position = call;
        let Some(step) = self.step(stacks, &next) else { return Next::Nothing };
        let go = |position: u32| {
            let mut next = next.clone();
            next.position = position;
            next
        };
        match step.instruction.opcode(self.set).map(|opcode| opcode.metamethod) {
            Some(Metamethod::Named("__lt" | "__le" | "__eq")) => match self.targets(stacks, &next) {
                Some((taken, other)) => Next::Either(vec![go(other), go(taken)]),
                None => Next::Nothing,
            },
            Some(Metamethod::Call) => {
                let mut next = go(call + 1);
                let a = usize::from(step.instruction.a());
                next.forget_from(a);
                if step.instruction.b() == 2 {
                    next.set_slot(a, value);
                }
                Next::One(next)
            }
            _ => {
                let mut next = go(call + 1);
                next.set_slot(usize::from(step.instruction.a()), value);
                Next::One(next)
            }
        }
    }
}

/// The ways that least speaks against.
fn best(mut ways: Vec<Way>) -> Vec<Way> {
    let least = ways.iter().map(|way| way.doubts).min().unwrap_or(0);
    ways.retain(|way| way.doubts == least);
    ways
}

/// The bit of the first guard that asks for `callee` and was not passed yet.
fn guard(place: &Place, callee: Callee, guards: &[Callee]) -> Option<u64> {
    let bits = (0..64).map(|index| 1_u64 << index);
    let mut asking = guards.iter().zip(bits).filter(|(guard, bit)| place.used & bit == 0 && guard.same_code(callee));
    asking.next().map(|(_, bit)| bit)
}

/// Whether an instruction calls, so that a snapshot may be taken in its middle.
fn is_call(op: Op) -> bool {
    matches!(op, Op::CALL | Op::CALLM | Op::CALLT | Op::CALLMT | Op::ITERC | Op::ITERN)
}

#[cfg(test)]
mod tests {
    use super::super::made::{SET, abc, ad, cast, constant, lua, native};
    use super::*;

    /// Upvalue `n` of any closure is function `n`, but the library function is upvalue 9.
    struct Upvalues;

    impl Surroundings for Upvalues {
        fn upvalue(&self, _: u64, index: u16) -> Option<Callee> {
            match index {
                8 => None,
                9 => Some(native()),
                _ => Some(lua(u64::from(index))),
            }
        }
        fn string(&self, _: &Prototype, _: u16) -> Option<u64> {
            None
        }
        fn number(&self, _: &Prototype, _: u16) -> Option<f64> {
            None
        }
        fn start_instruction(&self, _: u16) -> Option<Instruction> {
            None
        }
    }

    /// A function that calls the one in upvalue `callee`.
    fn caller(callee: u16) -> Vec<u32> {
        vec![
            ad(Op::FUNCF, 6, 0),
            ad(Op::UGET, 1, callee),
            ad(Op::KSHORT, 3, 5),
            abc(Op::CALL, 1, 2, 2),
            ad(Op::KSHORT, 2, 6),
            ad(Op::RET0, 0, 1),
        ]
    }

    /// A function that returns 7.
    fn seven() -> Vec<u32> {
        vec![ad(Op::FUNCF, 2, 0), ad(Op::KSHORT, 0, 7), ad(Op::RET1, 0, 2)]
    }

    /// The one way from a snapshot to another: the functions and positions, and where it is native.
    fn way(functions: &[Vec<u32>], stacks: &mut Stacks, from: Aim, to: Aim) -> (Vec<(u64, u32, bool)>, Way) {
        let constants: Vec<(u16, Callee)> =
            (0..functions.len()).map(|index| (constant(index), lua(index as u64))).collect();
        let cast = cast(functions, &constants);
        let walker = Walker { cast: &cast, surroundings: &Upvalues, set: SET, fr2: true, returns: &[], begin: None };
        let start = Place::at(stacks, from, 0);
        let mut ways = walker.ways(stacks, &start, Search { aim: to, not_empty: true, guards: &[] });
        assert_eq!(ways.len(), 1, "{ways:?}");
        let way = ways.remove(0);
        let index = |stack| match stacks.get(stack).callee {
            Callee::Lua { prototype, .. } => (prototype - super::super::made::START) / 0x1000,
            Callee::Native { .. } => u64::MAX,
        };
        (way.steps.iter().map(|step| (index(step.stack), step.position, step.is_native)).collect(), way)
    }

    fn outermost(stacks: &mut Stacks) -> StackId {
        stacks.intern(None, lua(0), NOWHERE)
    }

    #[test]
    fn a_call_of_a_known_function_goes_through_it() {
        let mut stacks = Stacks::default();
        let stack = outermost(&mut stacks);
        stacks.are_shown();
        let at = |position| Aim { stack, position };
        let (steps, way) = way(&[caller(1), seven()], &mut stacks, at(1), at(4));
        let called = [(1, 0, false), (1, 1, false), (1, 2, false)];
        assert_eq!(steps, [&[(0, 1, false), (0, 2, false), (0, 3, false)][..], &called].concat());
        assert_eq!(way.end.slot_of(0, 1).origin, Origin::Number(7.0), "the result is in the call's slot");
    }

    #[test]
    fn a_tail_call_takes_the_place_of_its_caller() {
        let mut stacks = Stacks::default();
        let stack = outermost(&mut stacks);
        stacks.are_shown();
        let at = |position| Aim { stack, position };
        let tail = vec![ad(Op::FUNCF, 4, 0), ad(Op::UGET, 0, 2), ad(Op::CALLT, 0, 1)];
        let (steps, way) = way(&[caller(1), tail, seven()], &mut stacks, at(1), at(4));
        assert_eq!(steps.iter().map(|step| step.0).collect::<Vec<_>>(), [0, 0, 0, 1, 1, 1, 2, 2, 2]);
        let inner = stacks.get(way.steps[8].stack);
        assert_eq!((inner.callee, inner.caller, inner.call), (lua(2), Some(stack), 3));
    }

    #[test]
    fn varargs_are_not_known_to_the_function() {
        let mut stacks = Stacks::default();
        let stack = outermost(&mut stacks);
        stacks.are_shown();
        let at = |position| Aim { stack, position };
        let vararg = vec![ad(Op::FUNCV, 4, 0), abc(Op::VARG, 0, 0, 0), ad(Op::RETM, 0, 0)];
        let (steps, way) = way(&[caller(1), vararg], &mut stacks, at(1), at(4));
        assert_eq!(steps[3..], [(1, 0, false), (1, 1, false), (1, 2, false)]);
        assert_eq!(way.end.slot_of(0, 1), Slot::default(), "what it returns is not known");
    }

    #[test]
    fn what_is_called_under_protection_is_what_a_snapshot_shows_there() {
        let mut stacks = Stacks::default();
        let stack = outermost(&mut stacks);
        let protected = stacks.intern(Some(stack), native(), 3);
        let inside = stacks.intern(Some(protected), lua(1), NOWHERE);
        stacks.are_shown();
        let functions = [caller(9), seven()];
        let (steps, _) = way(&functions, &mut stacks, Aim { stack, position: 1 }, Aim { stack: inside, position: 1 });
        assert_eq!(steps, [(0, 1, false), (0, 2, false), (0, 3, false), (1, 0, false)]);
        let (steps, way) = way(&functions, &mut stacks, Aim { stack: inside, position: 1 }, Aim { stack, position: 4 });
        assert_eq!(steps, [(1, 1, false), (1, 2, false)]);
        assert_eq!(way.end.stack(), Some(stack), "out of the protected call as well");
    }

    #[test]
    fn a_metamethod_returns_into_the_slot_of_its_operation() {
        let mut stacks = Stacks::default();
        let stack = outermost(&mut stacks);
        let inside = stacks.intern(Some(stack), lua(1), 1);
        stacks.are_shown();
        let add = vec![ad(Op::FUNCF, 6, 0), abc(Op::ADDVV, 4, 2, 3), ad(Op::RET0, 0, 1)];
        let (steps, way) =
            way(&[add, seven()], &mut stacks, Aim { stack: inside, position: 1 }, Aim { stack, position: 2 });
        assert_eq!(steps, [(1, 1, false), (1, 2, false)]);
        assert_eq!(way.end.slot_of(0, 4).origin, Origin::Number(7.0));
    }

    #[test]
    fn a_library_function_is_a_native_step_of_its_caller() {
        let mut stacks = Stacks::default();
        let stack = outermost(&mut stacks);
        stacks.are_shown();
        let at = |position| Aim { stack, position };
        let (steps, way) = way(&[caller(9), seven()], &mut stacks, at(1), at(5));
        assert_eq!(steps[2..], [(0, 3, false), (0, 3, true), (0, 4, false)]);
        assert_eq!(way.doubts, 0);
    }
}
