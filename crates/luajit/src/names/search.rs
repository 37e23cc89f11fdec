//! Which prototype makes the functions of which other one: a child does not say who its parent is.
//!
//! Parents have their children among their constants, so they are looked for on the list of all objects ([`gc.root`]). New
//! objects are put at its front, and a parent is made when its body is compiled, which is after its children: on the list it
//! always comes before them. So a search for a parent is over where the child is.
//!
//! What a walk over a list that changes has led to is no proof: who uses a parent looks whether it has the child.
//!
//! [`gc.root`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_obj.h#L606

use std::collections::HashMap;
use std::ops::ControlFlow;

use lj_trace_common::layout::{VmLayout, gct};
use lj_trace_common::memory::ReadMemory;

use super::list::{ListEnd, ListWalk};
use crate::Vm;
use crate::object::field;
use crate::page_cache::PageCache;
use crate::prototype::{Prototype, PrototypeKey};

/// Prototypes whose parents are kept: some 20 MB at most. Of those beyond, each is searched when it is asked for.
const MAX_KNOWN: usize = 1 << 19;

/// `PROTO_CHILD` ([`PROTO_*`] of `lj_obj.h`): it has prototypes among its constants.
///
/// [`PROTO_*`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_obj.h#L398-L404
const PROTO_CHILD: u8 = 1;

/// What it costs to read a prototype that makes functions, in objects.
const COST_OF_PARENT: u64 = 16;

/// How a search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FoundParent {
    /// Here is a prototype that may be the parent.
    Parent(u64),
    /// There is none any more.
    None,
    /// Nobody knows: it would have taken too much work.
    Unknown,
}

/// What is known of a prototype.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// Which one makes its functions.
    Parent(u64),
    /// It was seen on the list, and is this one; not so its parent.
    Alone(Print),
}

/// What tells prototypes at the same address apart, in a few bytes.
type Print = u32;

fn print(key: &PrototypeKey) -> Print {
    key.firstline.wrapping_mul(0x9e37_79b1) ^ key.sizebc
}

/// The parents of a VM's prototypes, as far as they were searched.
#[derive(Debug, Default)]
pub struct ParentSearch {
    known: HashMap<u64, Known>,
    /// How many walks were made over the whole list.
    walks: u32,
    walk: Option<ParentWalk>,
    /// The one that is asked for: there is room for it.
    wanted: u64,
}

/// How many walks over the whole list it takes to say that a prototype has no parent: one may have been led astray.
const WALKS: u32 = 2;

/// A walk that is not over.
#[derive(Debug, Default)]
struct ParentWalk {
    /// What it was started for.
    child: u64,
    list: ListWalk,
}

/// Where a visitor ends a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Visited {
    /// All that follows is known.
    Known,
    /// The prototype that was searched.
    Child,
}

impl ParentSearch {
    /// Takes in what a prototype makes.
    pub fn add_children(&mut self, parent: &Prototype) {
        for child in parent.children() {
            self.insert(child, Known::Parent(parent.key.address));
        }
    }

    fn insert(&mut self, prototype: u64, known: Known) {
        if self.known.len() < MAX_KNOWN || prototype == self.wanted || self.known.contains_key(&prototype) {
            self.known.insert(prototype, known);
        }
    }

    /// Forgets what was wrong.
    pub fn forget(&mut self, prototype: u64) {
        self.known.remove(&prototype);
    }

    /// Searches the parent of a prototype. It looks at no more objects than `budget`, which gets less by those that it has looked
    /// at; the next search goes on where this one ends.
    pub fn parent<M: ReadMemory>(
        &mut self,
        memory: &M,
        vm: &Vm,
        child: &PrototypeKey,
        budget: &mut u64,
    ) -> FoundParent {
        self.wanted = child.address;
        loop {
            match self.known.get(&child.address) {
                Some(&Known::Parent(parent)) => return FoundParent::Parent(parent),
                // It was there when the whole list was looked at.
                Some(&Known::Alone(known)) if self.walks >= WALKS && known == print(child) => return FoundParent::None,
                _ => {}
            }
            if *budget == 0 {
                return FoundParent::Unknown;
            }
            let end = self.go_on(memory, vm, child, budget);
            if end == ListEnd::Budget {
                continue;
            }
            self.walk = None;
            if end != ListEnd::Visitor(Visited::Child) && self.walks < WALKS {
                self.walks += 1;
            } else if !matches!(self.known.get(&child.address), Some(Known::Parent(_))) {
                // A new one, or one that there was no room for: the walk was for it alone.
                self.insert(child.address, Known::Alone(print(child)));
                return FoundParent::None;
            }
        }
    }

    /// Goes on with the walk, or starts one.
    fn go_on<M: ReadMemory>(
        &mut self,
        memory: &M,
        vm: &Vm,
        child: &PrototypeKey,
        budget: &mut u64,
    ) -> ListEnd<Visited> {
        // One for a single prototype does not show what is newer.
        let fits = |walk: &ParentWalk| self.walks < WALKS || walk.child == child.address;
        let new = ParentWalk { child: child.address, ..ParentWalk::default() };
        let mut walk = self.walk.take().filter(fits).unwrap_or(new);
        let end = walk.list.go_on(memory, vm, budget, |pages, object, budget| match object.kind {
            gct::PROTO => self.see(pages, &vm.layout, object.address, child, budget),
            _ => Some(ControlFlow::Continue(())),
        });
        self.walk = Some(walk);
        end
    }

    /// Notes a prototype of the list, and says whether the walk ends there. [`None`] if it is none.
    fn see<M: ReadMemory>(
        &mut self,
        pages: &PageCache<'_, M>,
        layout: &VmLayout,
        address: u64,
        child: &PrototypeKey,
        budget: &mut u64,
    ) -> Option<ControlFlow<Visited>> {
        // The second walk is for what the first one has missed.
        if self.walks == 1 && self.known.contains_key(&address) {
            return Some(ControlFlow::Continue(()));
        }
        let key = Prototype::key_at(pages, layout, address).ok()?;
        let flags: u8 = pages.read(field(address, layout.pt_flags)).ok()?;
        if flags & PROTO_CHILD != 0 {
            *budget = budget.saturating_sub(COST_OF_PARENT);
            let parent = Prototype::read_of(pages, layout, key).ok()?;
            let is_known = |child| self.known.get(&child) == Some(&Known::Parent(address));
            if self.walks >= WALKS && parent.has_children() && parent.children().all(is_known) {
                return Some(ControlFlow::Break(Visited::Known));
            }
            self.add_children(&parent);
        }
        // What is known of it may be of another one that was there before.
        if !matches!(self.known.get(&address), Some(Known::Parent(_))) {
            self.insert(address, Known::Alone(print(&key)));
        }
        // Only the first walks are for all prototypes.
        let is_over = self.walks >= WALKS && address == child.address;
        Some(if is_over { ControlFlow::Break(Visited::Child) } else { ControlFlow::Continue(()) })
    }
}

#[cfg(test)]
mod tests;
