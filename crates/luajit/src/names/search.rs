//! Finds the parents of prototypes: the parent is the prototype whose code creates the functions of a child. A child
//! does not say who its parent is.
//!
//! Parents have their children among their constants, so the search reads the list of all objects ([`gc.root`]). New
//! objects are put at its front. A parent is created after its children, when its body is compiled, so on the list it
//! always comes before them. Therefore a search for a parent ends at the child.
//!
//! A walk over a changing list proves nothing: the user of a parent has to check that it has the child.
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

/// The most prototypes whose parents are kept: as many as fit into a table of 19 MB. The parents of all others are
/// searched when they are needed.
const MAX_KNOWN: usize = 7 << 18;

/// How many more are kept of those that have the same parent as a prototype that was searched.
const MAX_SIBLINGS: usize = 1 << 18;

/// `PROTO_CHILD` ([`PROTO_*`] of `lj_obj.h`): the prototype has others among its constants.
///
/// [`PROTO_*`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_obj.h#L398-L404
const PROTO_CHILD: u8 = 1;

/// The cost of reading a prototype with children, counted in objects.
const COST_OF_PARENT: u64 = 16;

/// The same for so many bytes of it: an object may be on a page of its own, too.
const PAGE: u64 = 4096;

/// How a search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FoundParent {
    /// A prototype that may be the parent.
    Parent(u64),
    /// The parent does not exist any more.
    None,
    /// It is not known: the search would have taken too much work.
    Unknown,
}

/// The known parents of a VM's prototypes.
#[derive(Debug)]
pub struct ParentSearch {
    known: Parents,
    /// The most prototypes that are kept, not counting those that are searched.
    most: usize,
    /// Number of walks over the whole list so far.
    walks: u32,
    walk: Option<ParentWalk>,
    /// The prototype that is searched: it is kept in any case.
    wanted: u64,
}

/// How many walks over the whole list must find no parent before a prototype counts as having none: one may be led astray.
const WALKS: u32 = 2;

/// A walk that has not ended.
#[derive(Debug, Default)]
struct ParentWalk {
    /// The prototype whose search started the walk.
    child: u64,
    list: ListWalk,
}

/// Why a visitor ends a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Visited {
    /// All objects from here on are known.
    Known,
    /// The child of the search was reached.
    Child,
}

impl Default for ParentSearch {
    fn default() -> Self {
        Self::keeping(MAX_KNOWN)
    }
}

impl ParentSearch {
    /// A search that keeps the parents of at most `most` prototypes.
    fn keeping(most: usize) -> Self {
        Self { known: Parents::default(), most, walks: 0, walk: None, wanted: 0 }
    }

    /// Notes the children of a prototype.
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

    /// Forgets an entry that was wrong.
    pub fn forget(&mut self, prototype: u64) {
        self.known.remove(prototype);
    }

    /// Finds the parents of all prototypes, as far as `budget` allows, so that the first search does not have to.
    pub fn look_ahead<M: ReadMemory>(&mut self, memory: &M, vm: &Vm, budget: &mut u64) {
        let nobody = PrototypeKey { address: 0, chunkname: 0, firstline: 0, sizebc: 0 };
        while self.walks < WALKS && self.go_on(memory, vm, &nobody, budget) != ListEnd::Budget {
            self.walk = None;
            self.walks += 1;
        }
    }

    /// Searches the parent of a prototype. It reads at most `budget` objects, and subtracts them from `budget`; the
    /// next search continues where this one ends.
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
                // The prototype existed when the whole list was read.
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
                // The prototype is new, or there was no room for it: the walk was for this one alone.
                self.insert(child.address, KnownParent::Alone(print(child)), self.most);
                return FoundParent::None;
            }
        }
    }

    /// Continues the walk, or starts a new one.
    fn go_on<M: ReadMemory>(
        &mut self,
        memory: &M,
        vm: &Vm,
        child: &PrototypeKey,
        budget: &mut u64,
    ) -> ListEnd<Visited> {
        // A walk for another single prototype has not seen newer objects.
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

    /// Notes a prototype on the list, and returns whether the walk ends there. [`None`] if the object is no prototype.
    fn see<M: ReadMemory>(
        &mut self,
        pages: &PageCache<'_, M>,
        layout: &VmLayout,
        address: u64,
        child: &PrototypeKey,
        budget: &mut u64,
    ) -> Option<ControlFlow<Visited>> {
        // The second walk is for prototypes that the first one has missed.
        if self.walks == 1 && self.known.get(address).is_some() {
            return Some(ControlFlow::Continue(()));
        }
        let at = |offset| field(address, offset);
        let (firstline, sizebc): (u32, u32) =
            (pages.read(at(layout.pt_firstline)).ok()?, pages.read(at(layout.pt_sizebc)).ok()?);
        // If the prototype was freed and overwritten, its size makes no sense.
        let size: u32 = pages.read(at(layout.pt_sizept)).ok()?;
        if u64::from(size) < u64::from(layout.sizeof_pt) + 4 * u64::from(sizebc) {
            return None;
        }
        if pages.read::<u8>(at(layout.pt_flags)).ok()? & PROTO_CHILD != 0 {
            *budget = budget.saturating_sub(COST_OF_PARENT + u64::from(size) / PAGE);
            let key = Prototype::key_at(pages, layout, address).ok()?;
            let children = Prototype::read_children(pages, layout, key).ok()?;
            let is_known = |child: &u64| self.known.get(*child) == Some(KnownParent::Parent(address));
            if self.walks >= WALKS && !children.is_empty() && children.iter().all(is_known) {
                return Some(ControlFlow::Break(Visited::Known));
            }
            // If one child is searched, its siblings are likely to be searched next.
            let most = self.most + if children.contains(&self.wanted) { MAX_SIBLINGS } else { 0 };
            for child in children {
                self.insert(child, KnownParent::Parent(address), most);
            }
        }
        // The entry may belong to an older prototype at the same address.
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
