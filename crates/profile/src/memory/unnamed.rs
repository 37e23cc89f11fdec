//! Stacks whose function had no name when they were first seen. A name that is found later is theirs, too.

use std::collections::HashMap;

use crate::model::StackId;

/// Unnamed stacks by the prototypes of their functions. Functions that begin in the same line of a chunk have equal stacks without their
/// names: the name of one of them is not the name of such a stack.
#[derive(Debug, Default)]
pub struct UnnamedStacks {
    /// The prototype of each stack; [`None`] if several have it, or if it is gone.
    owners: HashMap<StackId, Option<u64>>,
    stacks: HashMap<u64, Vec<StackId>>,
}

impl UnnamedStacks {
    /// Notes a stack of a function.
    pub fn add(&mut self, prototype: u64, stack: StackId) {
        match self.owners.get_mut(&stack) {
            Some(known) if *known == Some(prototype) => {}
            Some(known) => *known = None,
            None => {
                self.owners.insert(stack, Some(prototype));
                self.stacks.entry(prototype).or_default().push(stack);
            }
        }
    }

    /// The stacks of a function that is named now.
    pub fn take(&mut self, prototype: u64) -> Vec<StackId> {
        let mut stacks = self.stacks.remove(&prototype).unwrap_or_default();
        stacks.retain(|stack| {
            let is_only = self.owners.get(stack) == Some(&Some(prototype));
            is_only && self.owners.remove(stack).is_some()
        });
        stacks
    }

    /// Notes that a function is gone: its stacks will have no name.
    pub fn forget(&mut self, prototype: u64) {
        for stack in self.stacks.remove(&prototype).unwrap_or_default() {
            self.owners.insert(stack, None);
        }
    }

    /// Takes the new number of each stack, indexed by its old number.
    pub fn renumber(&mut self, moved: &[StackId]) {
        for (stack, owner) in std::mem::take(self).owners {
            let Some(&stack) = moved.get(stack.index()) else { continue };
            match owner {
                Some(prototype) => self.add(prototype, stack),
                None => {
                    self.owners.insert(stack, None);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Frame;
    use crate::model::StackTable;

    #[test]
    fn a_stack_of_two_functions_has_no_name() {
        let mut table = StackTable::default();
        let [a, b, c] = ["a", "b", "c"].map(|reason| {
            let frame = table.intern(Frame::Unresolved { reason: reason.into() });
            table.stack(&[frame])
        });
        let (one, other) = (1, 2);
        let mut unnamed = UnnamedStacks::default();
        for (function, stack) in [(one, a), (one, b), (one, a), (other, b), (other, c)] {
            unnamed.add(function, stack);
        }
        assert_eq!(unnamed.take(one), [a]);
        assert_eq!(unnamed.take(one), []);
        // What is gone leaves its stacks without a name, also if another function takes them over.
        unnamed.forget(other);
        unnamed.add(one, c);
        assert_eq!((unnamed.take(other), unnamed.take(one)), (vec![], vec![]));
    }

    #[test]
    fn stacks_that_are_one_after_a_fold_are_of_two_functions() {
        let mut table = StackTable::default();
        let [a, b, c] = ["a", "b", "c"].map(|reason| {
            let frame = table.intern(Frame::Unresolved { reason: reason.into() });
            table.stack(&[frame])
        });
        let (one, other) = (1, 2);
        let mut unnamed = UnnamedStacks::default();
        unnamed.add(one, a);
        unnamed.add(one, c);
        unnamed.add(other, b);
        unnamed.renumber(&[c, c, a]);
        assert_eq!((unnamed.take(one), unnamed.take(other)), (vec![a], vec![]));
    }
}
