//! Which prototype makes the functions of which other one: a child does not say who its parent is.
//!
//! Parents have their children among their constants, so they are looked for on the list of all objects ([`gc.root`]). New
//! objects are put at its front, and a parent is made when its body is compiled, which is after its children: on the list it
//! always comes before them. So a search for a parent is over where the child is.
//!
//! What a walk over a list that changes has led to is no proof: who uses a parent looks whether it has the child.
//!
//! [`gc.root`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_obj.h#L606

use std::ops::ControlFlow;

use lj_trace_common::layout::{VmLayout, gct};
use lj_trace_common::memory::ReadMemory;

use super::list::{ListEnd, ListWalk};
use super::parents::{KnownParent, Parents, print, print_of};
use crate::Vm;
use crate::object::field;
use crate::page_cache::PageCache;
use crate::prototype::{Prototype, PrototypeKey};

/// Prototypes whose parents are kept: as many as a table of 19 MB has room for. Of those beyond, each is searched when it is
/// asked for.
const MAX_KNOWN: usize = 7 << 18;

/// As many more are kept of those that have the same parent as one that was searched.
const MAX_SIBLINGS: usize = 1 << 18;

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

/// The parents of a VM's prototypes, as far as they were searched.
#[derive(Debug)]
pub struct ParentSearch {
    known: Parents,
    /// So many are known at most, but for what was asked for.
    most: usize,
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

impl Default for ParentSearch {
    fn default() -> Self {
        Self::keeping(MAX_KNOWN)
    }
}

impl ParentSearch {
    /// One that keeps the parents of so many prototypes.
    fn keeping(most: usize) -> Self {
        Self { known: Parents::default(), most, walks: 0, walk: None, wanted: 0 }
    }

    /// Takes in what a prototype makes.
    pub fn add_children(&mut self, parent: &Prototype) {
        for child in parent.children() {
            self.insert(child, KnownParent::Parent(parent.key.address), self.most);
        }
    }

    fn insert(&mut self, prototype: u64, known: KnownParent, most: usize) {
        if self.known.len() < most || prototype == self.wanted || self.known.get(prototype).is_some() {
            self.known.insert(prototype, known);
        }
    }

    /// Forgets what was wrong.
    pub fn forget(&mut self, prototype: u64) {
        self.known.remove(prototype);
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
            match self.known.get(child.address) {
                Some(KnownParent::Parent(parent)) => return FoundParent::Parent(parent),
                // It was there when the whole list was looked at.
                Some(KnownParent::Alone(known)) if self.walks >= WALKS && known == print(child) => {
                    return FoundParent::None;
                }
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
            } else if !matches!(self.known.get(child.address), Some(KnownParent::Parent(_))) {
                // A new one, or one that there was no room for: the walk was for it alone.
                self.insert(child.address, KnownParent::Alone(print(child)), self.most);
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
        if self.walks == 1 && self.known.get(address).is_some() {
            return Some(ControlFlow::Continue(()));
        }
        let at = |offset| field(address, offset);
        let (firstline, sizebc): (u32, u32) =
            (pages.read(at(layout.pt_firstline)).ok()?, pages.read(at(layout.pt_sizebc)).ok()?);
        // What was freed and written over is none any more.
        let size: u32 = pages.read(at(layout.pt_sizept)).ok()?;
        if u64::from(size) < u64::from(layout.sizeof_pt) + 4 * u64::from(sizebc) {
            return None;
        }
        if pages.read::<u8>(at(layout.pt_flags)).ok()? & PROTO_CHILD != 0 {
            *budget = budget.saturating_sub(COST_OF_PARENT);
            let key = Prototype::key_at(pages, layout, address).ok()?;
            let children = Prototype::read_children(pages, layout, key).ok()?;
            let is_known = |child: &u64| self.known.get(*child) == Some(KnownParent::Parent(address));
            if self.walks >= WALKS && !children.is_empty() && children.iter().all(is_known) {
                return Some(ControlFlow::Break(Visited::Known));
            }
            // Who asks for one of them is likely to ask for the others next.
            let most = self.most + if children.contains(&self.wanted) { MAX_SIBLINGS } else { 0 };
            for child in children {
                self.insert(child, KnownParent::Parent(address), most);
            }
        }
        // What is known of it may be of another one that was there before.
        if !matches!(self.known.get(address), Some(KnownParent::Parent(_))) {
            self.insert(address, KnownParent::Alone(print_of(firstline, sizebc)), self.most);
        }
        // Only the first walks are for all prototypes.
        let is_over = self.walks >= WALKS && address == child.address;
        Some(if is_over { ControlFlow::Break(Visited::Child) } else { ControlFlow::Continue(()) })
    }
}

#[cfg(test)]
mod tests;
