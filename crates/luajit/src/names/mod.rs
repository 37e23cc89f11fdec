//! What Lua functions are called: one name for each, whoever calls it.
//!
//! The name is that of the definition (`definition`): the variable or field that the function is stored in where it
//! is made. The function that makes it tells that; which one that is takes a `search`. If it is gone, or stores the function
//! nowhere, what uses the function names it: the upvalue that another function has it in (`used`), or the field of a loaded
//! module.

mod definition;
mod list;
mod parents;
mod path;
mod search;
mod used;
mod variables;

use std::collections::HashMap;
use std::sync::Arc;

use lj_trace_common::memory::ReadMemory;

use search::{FoundParent, ParentSearch};
use used::{UsedNames, used_names};

use crate::prototype::{Prototype, PrototypeKey};
use crate::{FunctionNames, Vm};

/// Names that are kept. A program that makes functions all the time has those of the last ones.
const MAX_NAMES: usize = 1 << 15;

/// Objects of a heap that may be looked at for a name: as many as some GiB have.
const MOST_OBJECTS: u64 = 32 << 20;

/// Objects that may be looked at once more for each batch of samples.
const OBJECTS_PER_BATCH: u64 = 1 << 15;

/// Objects among which functions are searched that use others.
const OBJECTS_OF_USERS: u64 = 4 << 20;

/// Batches after which these are searched once more, for what was loaded since.
const BATCHES_BETWEEN: u32 = 64;

/// How often a search is begun anew for a function whose parent was not where it was said to be.
const ATTEMPTS: u32 = 4;

/// Names the Lua functions of a VM.
///
/// Nothing is read before a name is asked for. A name that was given stays, so that a function has the same one in all of a
/// recording.
#[derive(Debug)]
pub struct FunctionNamer {
    search: ParentSearch,
    /// By address.
    names: HashMap<u64, (PrototypeKey, Option<Arc<str>>)>,
    /// The last parent that was read: its other functions come next.
    parent: Option<Arc<Prototype>>,
    /// What functions are called without their definitions, once that was needed.
    remaining: Option<Remaining>,
    /// Batches since that was read.
    batches: u32,
    /// Objects that may be looked at.
    allowance: u64,
    unsearched: u64,
}

impl Default for FunctionNamer {
    fn default() -> Self {
        Self::within(MOST_OBJECTS)
    }
}

impl FunctionNamer {
    /// One that looks at no more objects of the heap.
    pub fn within(objects: u64) -> Self {
        Self {
            search: ParentSearch::default(),
            names: HashMap::new(),
            parent: None,
            remaining: None,
            batches: 0,
            allowance: objects,
            unsearched: 0,
        }
    }

    /// Notes that time has passed: some more objects may be looked at.
    pub fn begin_batch(&mut self) {
        self.batches = self.batches.saturating_add(1);
        self.allowance = self.allowance.saturating_add(OBJECTS_PER_BATCH).min(MOST_OBJECTS);
    }

    /// How many functions may have a name that would have taken too much work to find.
    pub fn unsearched(&self) -> u64 {
        self.unsearched
    }

    /// The same number, which counts elsewhere from now on.
    pub fn take_unsearched(&mut self) -> u64 {
        std::mem::take(&mut self.unsearched)
    }

    /// Takes in what a prototype makes, where that is at hand.
    pub fn add_children(&mut self, parent: &Prototype) {
        self.search.add_children(parent);
    }

    /// The name of a function; [`None`] if it has none.
    pub fn name<M: ReadMemory>(&mut self, memory: &M, vm: &Vm, key: &PrototypeKey) -> Option<Arc<str>> {
        if let Some((_, known)) = self.names.get(&key.address).filter(|(known, _)| known == key) {
            return known.clone();
        }
        let name: Option<Arc<str>> = self.find(memory, vm, key).map(Into::into);
        // Another look may find it.
        if name.is_none() && self.may_look_again() {
            return None;
        }
        if self.names.len() >= MAX_NAMES {
            self.names.clear();
        }
        self.names.insert(key.address, (*key, name.clone()));
        name
    }

    /// Forgets the function of a prototype that was freed: another one may come to lie there and look the same.
    pub fn forget(&mut self, address: u64) {
        self.names.remove(&address);
        self.search.forget(address);
    }

    fn find<M: ReadMemory>(&mut self, memory: &M, vm: &Vm, key: &PrototypeKey) -> Option<String> {
        if !can_have_name(key) {
            return None;
        }
        for _ in 0..ATTEMPTS {
            match self.search.parent(memory, vm, key, &mut self.allowance) {
                FoundParent::Parent(parent) => match self.defined_by(memory, vm, parent, key) {
                    Ok(Some(name)) => return Some(name),
                    // An argument, or a result: a variable may have it all the same.
                    Ok(None) => break,
                    // Something else is there by now.
                    Err(WrongParent) => self.search.forget(key.address),
                },
                FoundParent::None => break,
                FoundParent::Unknown => {
                    self.unsearched += 1;
                    return None;
                }
            }
        }
        self.remaining_name(memory, vm, key)
    }

    /// What the prototype at `parent` calls a function that it makes.
    fn defined_by<M: ReadMemory>(
        &mut self,
        memory: &M,
        vm: &Vm,
        parent: u64,
        key: &PrototypeKey,
    ) -> Result<Option<String>, WrongParent> {
        let parent = Prototype::key_at(memory, &vm.layout, parent).map_err(|_| WrongParent)?;
        let known = self.parent.take().filter(|known| known.key == parent);
        let known = match known {
            Some(known) => known,
            None => Arc::new(Prototype::read(memory, &vm.layout, parent).map_err(|_| WrongParent)?),
        };
        let makes_it = known.children().any(|child| child == key.address) && parent.chunkname == key.chunkname;
        let definition = known.definition_of(key.address, vm.bytecode_set(), vm.layout.is_gc64());
        self.parent = Some(known);
        if !makes_it {
            return Err(WrongParent);
        }
        let Some(definition) = definition else { return Ok(None) };
        // As long as the parent is there, so is what it makes.
        let function = Prototype::read(memory, &vm.layout, *key).map_err(|_| WrongParent)?;
        Ok(Some(definition.name(function.takes_self())))
    }

    /// Whether the last look at what uses functions was in vain, and one more is allowed before long.
    fn may_look_again(&self) -> bool {
        self.allowance > OBJECTS_OF_USERS && self.remaining.as_ref().is_some_and(|remaining| remaining.used.is_torn)
    }

    fn remaining_name<M: ReadMemory>(&mut self, memory: &M, vm: &Vm, key: &PrototypeKey) -> Option<String> {
        let known = self.remaining.as_ref().and_then(|remaining| remaining.name(key.address));
        if known.is_some() {
            return known;
        }
        // What was loaded since the last time may have one, and what the program hid from the last look.
        let wait = if self.may_look_again() { 1 } else { BATCHES_BETWEEN };
        if self.remaining.is_some() && self.batches < wait {
            return None;
        }
        self.batches = 0;
        let remaining = self.remaining.insert(Remaining::read(memory, vm, &mut self.allowance));
        remaining.name(key.address)
    }
}

/// Main chunks have no name, and library functions another one.
fn can_have_name(key: &PrototypeKey) -> bool {
    !matches!(key.firstline, 0 | u32::MAX)
}

/// A prototype does not make the function that it was said to.
struct WrongParent;

/// What functions are called whose definition is gone.
#[derive(Debug)]
struct Remaining {
    used: UsedNames,
    fields: FunctionNames,
}

impl Remaining {
    fn read<M: ReadMemory>(memory: &M, vm: &Vm, allowance: &mut u64) -> Self {
        let all = OBJECTS_OF_USERS.min(*allowance);
        let mut left = all;
        let used = used_names(memory, vm, &mut left);
        *allowance -= all - left;
        Self { used, fields: FunctionNames::read(memory, vm) }
    }

    fn name(&self, prototype: u64) -> Option<String> {
        let used = self.used.names.get(&prototype);
        let own = used.filter(|used| !used.is_foreign).map(|used| used.name.as_str());
        let field = || self.fields.lua_function(prototype);
        own.or_else(field).or(used.map(|used| used.name.as_str())).map(str::to_owned)
    }
}

#[cfg(test)]
mod tests;
