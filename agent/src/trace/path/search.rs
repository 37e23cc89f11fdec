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
