//! Call stacks within a trace, each kept once.

use std::collections::HashMap;

use super::functions::Callee;

/// Number of a call stack.
pub type StackIndex = u32;

/// Stands for an unknown position.
pub const NOWHERE: u32 = u32::MAX;

/// One call stack: its innermost function, and the stack that called it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Activation {
    /// The caller; [`None`] for the frame in which the trace runs.
    pub caller: Option<StackIndex>,
    /// The function.
    pub callee: Callee,
    /// The position of the call in the caller's bytecode; [`NOWHERE`] in a fast function.
    pub call: u32,
}

/// All call stacks of a trace.
#[derive(Clone, Debug, Default)]
pub struct Stacks {
    activations: Vec<Activation>,
    known: HashMap<(Option<StackIndex>, u64, u32), StackIndex>,
    /// How many of the stacks come from snapshots, and so are certain to occur.
    shown: usize,
}

impl Stacks {
    /// The number of a stack. Two stacks are equal if they run the same code, called from the same places.
    pub fn intern(&mut self, caller: Option<StackIndex>, callee: Callee, call: u32) -> StackIndex {
        let code = match callee {
            Callee::Lua { prototype, .. } => prototype,
            Callee::Native { function, .. } => function,
        };
        let next = self.activations.len() as StackIndex;
        let id = *self.known.entry((caller, code, call)).or_insert(next);
        if id == next {
            self.activations.push(Activation { caller, callee, call });
        } else if let (Callee::Lua { function: known @ None, .. }, Callee::Lua { function, .. }) =
            (&mut self.activations[id as usize].callee, callee)
        {
            *known = function;
        }
        id
    }

    /// The stack with this number.
    ///
    /// # Panics
    /// If the number is not one of these stacks.
    pub fn get(&self, id: StackIndex) -> Activation {
        self.activations[id as usize]
    }

    /// Notes that all stacks so far come from snapshots, and that later ones are only possible.
    pub fn are_shown(&mut self) {
        self.shown = self.activations.len();
    }

    /// The stacks that snapshots show as called from `caller` at `call`.
    pub fn called_from(&self, caller: Option<StackIndex>, call: u32) -> impl Iterator<Item = (StackIndex, Callee)> {
        let is_called =
            move |(_, activation): &(usize, &Activation)| activation.caller == caller && activation.call == call;
        self.activations[..self.shown]
            .iter()
            .enumerate()
            .filter(is_called)
            .map(|(id, known)| (id as StackIndex, known.callee))
    }

    /// The functions of a stack and the position in each, from the frame in which the trace runs inward.
    pub fn frames(&self, id: StackIndex, position: u32) -> Vec<(Callee, u32)> {
        let mut frames = Vec::new();
        let (mut next, mut position) = (Some(id), position);
        while let Some(id) = next {
            let activation = self.get(id);
            frames.push((activation.callee, position));
            position = activation.call;
            next = activation.caller;
        }
        frames.reverse();
        frames
    }
}
