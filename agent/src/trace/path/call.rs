//! Calls and returns: which functions they lead into, and where they come back to.

use super::step::Next;
use super::{Place, Slot, Step, Surroundings, Walker};
use crate::trace::cast::Callee;
use crate::trace::stacks::{NOWHERE, StackId, Stacks};
use crate::vm::bytecode::Metamethod;

/// Frames in a trace: more than the slots that a snapshot has room for.
const MAX_DEPTH: usize = 120;

impl<S: Surroundings> Walker<'_, S> {
    /// Places in the metamethods that the instruction may call.
    pub(super) fn metamethod_calls(
        &self,
        stacks: &mut Stacks,
        place: &Place,
        step: Step,
        guards: &[Callee],
    ) -> Vec<Place> {
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
    pub(super) fn enter(
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
    pub(super) fn arguments(&self, step: Step) -> usize {
        usize::from(step.instruction.a()) + if self.fr2 { 2 } else { 1 }
    }

    pub(super) fn call(
        &self,
        stacks: &mut Stacks,
        place: &Place,
        step: Step,
        known: Option<Callee>,
        guards: &[Callee],
    ) -> Next {
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
    pub(super) fn candidates(&self, stacks: &Stacks, caller: Option<StackId>, call: u32) -> Vec<(Callee, bool)> {
        let mut callees: Vec<(Callee, bool)> = Vec::new();
        let shown = stacks.called_from(caller, call).map(|(_, callee)| (callee, false));
        for (callee, is_guess) in shown.chain(self.cast.functions().into_iter().map(|callee| (callee, true))) {
            if callee.prototype().is_some() && !callees.iter().any(|(known, _)| known.same_code(callee)) {
                callees.push((callee, is_guess));
            }
        }
        callees
    }

    pub(super) fn tail_call(&self, stacks: &mut Stacks, place: &Place, step: Step, guards: &[Callee]) -> Next {
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
    pub(super) fn leave(&self, stacks: &mut Stacks, place: &Place, value: Slot) -> Next {
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

/// The bit of the first guard that asks for `callee` and was not passed yet.
fn guard(place: &Place, callee: Callee, guards: &[Callee]) -> Option<u64> {
    let bits = (0..64).map(|index| 1_u64 << index);
    let mut asking = guards.iter().zip(bits).filter(|(guard, bit)| place.used & bit == 0 && guard.same_code(callee));
    asking.next().map(|(_, bit)| bit)
}
