//! Walks over the list of all objects of a VM that reach its end, although the program keeps running.
//!
//! Young objects may be freed during the walk, and the list leads astray there. Then the walk continues after the last
//! prototype that it has passed, since prototypes are seldom freed, and objects never move on the list ([`gc.root`]).
//!
//! [`gc.root`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_obj.h#L606

use std::collections::VecDeque;
use std::ops::ControlFlow;

use lj_trace_common::layout::gct;
use lj_trace_common::memory::ReadMemory;

use crate::Vm;
use crate::object::{field, type_of};
use crate::page_cache::PageCache;
use crate::prototype::{Prototype, PrototypeKey};

/// The most prototypes to which a walk can return.
const MAX_PLACES: usize = 256;

/// A place to return to is noted once in this many prototypes.
const PROTOTYPES_PER_PLACE: u32 = 16;

/// Cached pages are kept for this many objects.
const OBJECTS_PER_CACHE: usize = 1 << 15;

/// The cost of a return, counted in objects: a list that is torn everywhere must end the walk.
const COST_OF_RETURN: u64 = 1 << 14;

/// A walk, and the places where it can continue.
#[derive(Debug, Default)]
pub struct ListWalk {
    places: VecDeque<PrototypeKey>,
    prototypes: u32,
    returns: u32,
}

/// An object on the list.
#[derive(Clone, Copy, Debug)]
pub struct Listed {
    pub address: u64,
    /// A constant of [`gct`].
    pub kind: u8,
}

/// How a walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListEnd<B> {
    /// At the end of the list.
    List,
    /// Where the visitor ended it.
    Visitor(B),
    /// The budget was used up; the walk can continue.
    Budget,
}

impl ListWalk {
    /// Continues the walk, and passes each object to `visit`. `visit` returns where to end, or [`None`] if the object
    /// is something else. The walk reads no more objects than `budget`, of which `visit` may use some as well.
    pub fn go_on<M: ReadMemory, B>(
        &mut self,
        memory: &M,
        vm: &Vm,
        budget: &mut u64,
        mut visit: impl FnMut(&PageCache<'_, M>, Listed, &mut u64) -> Option<ControlFlow<B>>,
    ) -> ListEnd<B> {
        loop {
            let next = self.next(memory, vm);
            if let Some(end) = self.follow(memory, vm, next, budget, &mut visit) {
                return end;
            }
            self.returns = self.returns.saturating_add(1);
            *budget = budget.saturating_sub(COST_OF_RETURN);
            // Of a process that has exited, nothing can be read any more, not even the beginning of the list.
            if *budget == 0 {
                return ListEnd::Budget;
            }
        }
    }

    /// Whether the list was torn somewhere.
    pub fn was_led_astray(&self) -> bool {
        self.returns > 0
    }

    /// Follows the list from an object on. [`None`] if the list is torn.
    fn follow<M: ReadMemory, B>(
        &mut self,
        memory: &M,
        vm: &Vm,
        mut address: u64,
        budget: &mut u64,
        visit: &mut impl FnMut(&PageCache<'_, M>, Listed, &mut u64) -> Option<ControlFlow<B>>,
    ) -> Option<ListEnd<B>> {
        let (layout, pages) = (&vm.layout, PageCache::reading_ahead(memory));
        // If the list has become a ring, the walk comes back to the noted object, which is replaced each time that the
        // walk has become twice as long (Brent's algorithm).
        let (mut noted, mut last) = (0, None);
        for count in 1_usize.. {
            // The main thread is the VM's first object, so it is the last one on the list before userdata. What ends elsewhere is
            // another list, such as a chain of strings.
            if address == vm.main_thread {
                return Some(ListEnd::List);
            }
            if address == 0 || address == noted {
                return None;
            }
            if *budget == 0 {
                self.places.extend(last.and_then(|last| Prototype::key_at(&pages, layout, last).ok()));
                return Some(ListEnd::Budget);
            }
            *budget -= 1;
            if count.is_power_of_two() {
                noted = address;
            }
            // Older cached pages may be outdated.
            if count.is_multiple_of(OBJECTS_PER_CACHE) {
                pages.clear();
            }
            let kind = type_of(&pages, layout, address).ok()?;
            let next = pages.read_ref(layout.is_gc64(), address).ok()?;
            // Only these types are on this list: any other means that it is torn.
            if !(gct::STR + 1..=13).contains(&kind) {
                return None;
            }
            if kind == gct::PROTO {
                self.note(&pages, vm, address)?;
                last = Some(address);
            }
            if let ControlFlow::Break(end) = visit(&pages, Listed { address, kind }, budget)? {
                return Some(ListEnd::Visitor(end));
            }
            address = next;
        }
        None
    }

    fn note<M: ReadMemory>(&mut self, pages: &PageCache<'_, M>, vm: &Vm, address: u64) -> Option<()> {
        self.prototypes = self.prototypes.wrapping_add(1);
        if self.prototypes % PROTOTYPES_PER_PLACE == 1 {
            let place = Prototype::key_at(pages, &vm.layout, address).ok()?;
            if self.places.len() >= MAX_PLACES {
                self.places.pop_front();
            }
            self.places.push_back(place);
        }
        Some(())
    }

    /// The object to continue with: the one after the last noted prototype that still exists, or the first of all objects.
    fn next<M: ReadMemory>(&mut self, memory: &M, vm: &Vm) -> u64 {
        let gc64 = vm.layout.is_gc64();
        while let Some(place) = self.places.pop_back() {
            if Prototype::key_at(memory, &vm.layout, place.address) == Ok(place)
                && let Ok(next) = memory.read_ref(gc64, place.address)
            {
                return next;
            }
        }
        memory.read_ref(gc64, field(vm.global, vm.layout.g_gc_root)).unwrap_or(0)
    }
}
