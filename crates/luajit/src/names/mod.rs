//! Names of Lua functions: one name for each function, whoever calls it.
//!
//! The name comes from the definition (`definition`): the variable or field in which the code that creates the function
//! stores it. That code is another Lua function, the parent; a `search` finds it. If the parent was collected, or
//! stores the function nowhere, the users of the function name it: the upvalue of another function that holds it
//! (`used`), or the field of a loaded module.

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

/// The most names that are kept. A program that creates functions all the time keeps the names of the latest ones.
const MAX_NAMES: usize = 1 << 15;

/// The most heap objects that are read to find names: as many as a heap of some GiB has.
const MOST_OBJECTS: u64 = 32 << 20;

/// How many more heap objects may be read for each batch of samples.
const OBJECTS_PER_BATCH: u64 = 1 << 15;

/// The most heap objects that one search for users of functions reads.
const OBJECTS_OF_USERS: u64 = 4 << 20;

/// Batches between two such searches: functions may have been loaded since.
const BATCHES_BETWEEN: u32 = 64;

/// How often the search for a function's parent starts again if the parent was not where it was expected.
const ATTEMPTS: u32 = 4;

/// Names the Lua functions of a VM.
///
/// It reads nothing before the first request for a name, or [`look_ahead`](Self::look_ahead). Once given, a name stays, so a function has the same name in
/// the whole recording.
#[derive(Debug)]
pub struct FunctionNamer {
    search: ParentSearch,
    /// Names by the address of the prototype.
    names: HashMap<u64, (PrototypeKey, Option<Arc<str>>)>,
    /// The parent that was read last: often the next function has the same parent.
    parent: Option<Arc<Prototype>>,
    /// Names that do not come from definitions, read when they are first needed.
    remaining: Option<Remaining>,
    /// Batches since `remaining` was read.
    batches: u32,
    /// How many more heap objects may be read.
    allowance: u64,
    unsearched: u64,
}

impl Default for FunctionNamer {
    fn default() -> Self {
        Self::within(MOST_OBJECTS)
    }
}

impl FunctionNamer {
    /// A namer that reads at most `objects` heap objects.
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

    /// Finds the parents of all functions of the VM. Else the first request for a name does that.
    pub fn look_ahead<M: ReadMemory>(&mut self, memory: &M, vm: &Vm) {
        self.search.look_ahead(memory, vm, &mut self.allowance);
    }

    /// Notes that a new batch of samples begins: some more objects may be read.
    pub fn begin_batch(&mut self) {
        self.batches = self.batches.saturating_add(1);
        self.allowance = self.allowance.saturating_add(OBJECTS_PER_BATCH).min(MOST_OBJECTS);
    }

    /// How many functions may have a name that would have taken too much work to find.
    pub fn unsearched(&self) -> u64 {
        self.unsearched
    }

    /// Returns the same number and resets it, for a caller that adds it up elsewhere.
    pub fn take_unsearched(&mut self) -> u64 {
        std::mem::take(&mut self.unsearched)
    }

    /// Adds the child functions of a prototype that was read anyway.
    pub fn add_children(&mut self, parent: &Prototype) {
        self.search.add_children(parent);
    }

    /// The name of a function; [`None`] if it has none.
    pub fn name<M: ReadMemory>(&mut self, memory: &M, vm: &Vm, key: &PrototypeKey) -> Option<Arc<str>> {
        if let Some((_, known)) = self.names.get(&key.address).filter(|(known, _)| known == key) {
            return known.clone();
        }
        let name: Option<Arc<str>> = self.find(memory, vm, key).map(Into::into);
        // Another search may find the name.
        if name.is_none() && self.may_look_again() {
            return None;
        }
        if self.names.len() >= MAX_NAMES {
            self.names.clear();
        }
        self.names.insert(key.address, (*key, name.clone()));
        name
    }

    /// Whether the last answer for a function stays: else the heap changed too fast, and a later search may find a name.
    pub fn is_settled(&self, key: &PrototypeKey) -> bool {
        self.names.get(&key.address).is_some_and(|(known, _)| known == key)
    }

    /// Forgets the function of a prototype that was freed: a new prototype at the same address may look the same.
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
                    // The function is an argument or a result there; a variable may still hold it.
                    Ok(None) => break,
                    // Another object has taken the parent's address.
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

    /// The name that the prototype at `parent` gives to a child function.
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
            None => Arc::new(Prototype::read_alive(memory, vm, parent).map_err(|_| WrongParent)?),
        };
        let makes_it = known.children().any(|child| child == key.address) && parent.chunkname == key.chunkname;
        let definition = known.definition_of(key.address, vm.bytecode_set(), vm.layout.is_gc64());
        self.parent = Some(known);
        if !makes_it {
            return Err(WrongParent);
        }
        let Some(definition) = definition else { return Ok(None) };
        // As long as the parent exists, so do its child prototypes.
        let function = Prototype::read_alive(memory, vm, *key).map_err(|_| WrongParent)?;
        Ok(Some(definition.name(function.takes_self())))
    }

    /// Whether the last search for users of functions failed on a changing heap, and another one is affordable soon.
    fn may_look_again(&self) -> bool {
        self.allowance > OBJECTS_OF_USERS && self.remaining.as_ref().is_some_and(|remaining| remaining.used.is_torn)
    }

    fn remaining_name<M: ReadMemory>(&mut self, memory: &M, vm: &Vm, key: &PrototypeKey) -> Option<String> {
        let known = self.remaining.as_ref().and_then(|remaining| remaining.name(key.address));
        if known.is_some() {
            return known;
        }
        // A new search finds functions that were loaded since, and functions that the last one missed because the heap changed.
        let wait = if self.may_look_again() { 1 } else { BATCHES_BETWEEN };
        if self.remaining.is_some() && self.batches < wait {
            return None;
        }
        self.batches = 0;
        let remaining = self.remaining.insert(Remaining::read(memory, vm, &mut self.allowance));
        remaining.name(key.address)
    }
}

/// Main chunks have no name, and library functions get their names elsewhere.
fn can_have_name(key: &PrototypeKey) -> bool {
    !matches!(key.firstline, 0 | u32::MAX)
}

/// The prototype is not the parent of the function.
struct WrongParent;

/// Names of functions whose definition was collected.
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
