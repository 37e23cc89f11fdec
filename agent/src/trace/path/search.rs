//! The search for ways: what has several ways is tried, the likeliest first.

use super::step::Next;
use super::{Aim, Place, Search, Step, Surroundings, Walker, Way};
use crate::trace::stacks::{StackId, Stacks};
use crate::vm::bytecode::Op;

/// Ways that are looked for.
const MAX_WAYS: usize = 4;

/// Steps that are taken, on all ways together.
const MAX_STEPS: usize = 6000;

/// Steps of one way: a trace has 4000 instructions at most by default (`maxrecord`, `lj_jit.h`).
const MAX_LENGTH: usize = 2000;

impl<S: Surroundings> Walker<'_, S> {
    /// The ways from `start` to an aim that least speaks against.
    pub fn ways(&self, stacks: &mut Stacks, start: &Place, search: Search<'_>) -> Vec<Way> {
        let Search { aim, not_empty, guards } = search;
        let mut begin = start.clone();
        (begin.used, begin.guesses) = (0, 0);
        let mut trails = Trails::default();
        let mut open = vec![(begin, Trail::EMPTY)];
        let mut ways: Vec<Way> = Vec::new();
        let mut budget = MAX_STEPS;
        let doubts = |place: &Place| place.guesses + (guards.len() as u32).saturating_sub(place.used.count_ones());
        // The way of which least speaks against is followed first, and of several the newest.
        let likeliest = |open: &[(Place, Trail)]| {
            let least = open.iter().map(|(place, _)| doubts(place)).min()?;
            open.iter().rposition(|(place, _)| doubts(place) == least)
        };
        while let Some(index) = likeliest(&open) {
            let (mut place, mut trail) = open.remove(index);
            let least = ways.iter().map(|way| way.doubts).min();
            loop {
                if budget == 0 || ways.len() >= MAX_WAYS {
                    return best(ways);
                }
                if least.is_some_and(|least| place.guesses > least) {
                    break;
                }
                budget -= 1;
                trail = trails.extended(trail, place.native.take());
                let here = place.stack() == Some(aim.stack) && place.position == aim.position && place.forced.is_none();
                if here && !(not_empty && trail.length == 0) {
                    // The snapshot may have been taken in the middle of a call.
                    if let Some(step) = self.step(stacks, &place).filter(|step| is_call(step.op)) {
                        trail = trails.extended(trail, [step, Step { is_native: true, ..step }]);
                    }
                    ways.push(Way { steps: trails.steps(trail), doubts: doubts(&place), end: place });
                    break;
                }
                let again = trail.length != 0
                    && self.begin
                        == Some(Aim { stack: place.stack().unwrap_or(StackId::MAX), position: place.position });
                if trail.length >= MAX_LENGTH || again {
                    break;
                }
                let Some(step) = self.step(stacks, &place) else { break };
                trail = trails.extended(trail, [step]);
                match self.next(stacks, &place, step, aim, guards) {
                    Next::One(next) => place = next,
                    Next::Either(mut places) => {
                        places.reverse();
                        open.extend(places.into_iter().map(|place| (place, trail)));
                        break;
                    }
                    Next::Aim(end) => {
                        // The other ways may still come by it later on.
                        ways.push(Way { steps: trails.steps(trail), doubts: doubts(&end), end });
                        break;
                    }
                    Next::Nothing => break,
                }
            }
        }
        best(ways)
    }
}

/// The steps of several ways: where they part, they share what comes before.
#[derive(Default)]
struct Trails {
    /// The steps, and for each the number of the one before.
    steps: Vec<(Step, usize)>,
}

/// The steps of one way so far.
#[derive(Clone, Copy)]
struct Trail {
    /// The number of the last one.
    last: usize,
    /// How many there are.
    length: usize,
}

impl Trail {
    const EMPTY: Self = Self { last: usize::MAX, length: 0 };
}

impl Trails {
    /// The way that goes on with these steps.
    fn extended(&mut self, mut trail: Trail, more: impl IntoIterator<Item = Step>) -> Trail {
        for step in more {
            self.steps.push((step, trail.last));
            trail = Trail { last: self.steps.len() - 1, length: trail.length + 1 };
        }
        trail
    }

    /// The steps of a way, in order.
    fn steps(&self, trail: Trail) -> Vec<Step> {
        let mut next = trail.last;
        let mut steps = Vec::with_capacity(trail.length);
        while let Some(&(step, before)) = self.steps.get(next) {
            steps.push(step);
            next = before;
        }
        steps.reverse();
        steps
    }
}

/// The ways that least speaks against.
fn best(mut ways: Vec<Way>) -> Vec<Way> {
    let least = ways.iter().map(|way| way.doubts).min().unwrap_or(0);
    ways.retain(|way| way.doubts == least);
    ways
}

/// Whether an instruction calls, so that a snapshot may be taken in its middle.
fn is_call(op: Op) -> bool {
    matches!(op, Op::CALL | Op::CALLM | Op::CALLT | Op::CALLMT | Op::ITERC | Op::ITERN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::made::ad;
    use crate::vm::bytecode::Instruction;

    #[test]
    fn ways_that_part_share_what_comes_before() {
        let step = |position: u32| Step {
            stack: 0,
            position,
            instruction: Instruction(ad(Op::KSHORT, 0, 0)),
            op: Op::KSHORT,
            operands: Default::default(),
            is_native: false,
        };
        let mut trails = Trails::default();
        let shared = trails.extended(Trail::EMPTY, [step(1), step(2)]);
        let (one, other) = (trails.extended(shared, [step(3)]), trails.extended(shared, [step(4), step(5)]));
        let positions = |trail: Trail| trails.steps(trail).iter().map(|step| step.position).collect::<Vec<_>>();
        assert_eq!((positions(one), positions(other)), (vec![1, 2, 3], vec![1, 2, 4, 5]));
        assert_eq!((one.length, other.length), (3, 4));
        assert!(positions(Trail::EMPTY).is_empty());
    }
}
