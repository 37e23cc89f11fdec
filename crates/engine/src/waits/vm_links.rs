//! Joins the stack of a coroutine to the stack of the coroutine that waits for it, if that is known: the function in which
//! that one waits has the coroutine as an argument.

use std::collections::HashMap;

use lj_trace_profile::model::StackId;

use super::vm_found::Looking;
use super::vm_look::CoroutineLooks;

/// The longest chain of coroutines that wait for each other.
const MAX_CHAIN: u32 = 8;

impl CoroutineLooks {
    /// Gives each coroutine that another one waits for the joined stack of both. If no coroutine waits for it any more,
    /// gives it its own stack again.
    pub(super) fn join(&mut self, looking: &mut Looking<'_>) {
        if self.links.is_empty() && self.joined.is_empty() {
            return;
        }
        let waiting = self.known.iter().enumerate().filter(|(_, known)| known.own.is_some());
        let indices: HashMap<u64, usize> = waiting.map(|(index, known)| (known.address, index)).collect();
        self.links.retain(|_, parent| indices.contains_key(parent));
        for child in self.joined.drain(..) {
            if let Some(&index) = indices.get(&child) {
                self.known[index].waits = self.known[index].waits.and(self.known[index].own);
            }
        }
        let mut stacks = Vec::new();
        for &child in self.links.keys() {
            if let Some(&index) = indices.get(&child)
                && self.known[index].waits.is_some()
                && let Some(stack) = self.joined_stack(looking, &indices, child, MAX_CHAIN)
            {
                stacks.push((child, index, stack));
            }
        }
        for (child, index, stack) in stacks {
            self.known[index].waits = Some(stack);
            self.joined.push(child);
        }
    }

    fn joined_stack(
        &self,
        looking: &mut Looking<'_>,
        indices: &HashMap<u64, usize>,
        address: u64,
        left: u32,
    ) -> Option<StackId> {
        let own = self.known[*indices.get(&address)?].own?;
        let parent = self.links.get(&address).filter(|_| left > 0);
        let Some(outer) = parent.and_then(|parent| self.joined_stack(looking, indices, *parent, left - 1)) else {
            return Some(own);
        };
        Some(looking.names.join(looking.profile, outer, own))
    }
}
