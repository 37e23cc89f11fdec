//! Walks over the list of all objects of a VM that get to its end, though the program runs on.
//!
//! Young objects are freed while they are walked over, and the list leads astray there. A walk that does goes on behind the last
//! prototype that it came by, which are seldom freed; on the list nothing moves ([`gc.root`]).
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

/// Prototypes to which a walk can return.
const MAX_PLACES: usize = 256;

/// One place is kept for so many prototypes.
const PROTOTYPES_PER_PLACE: u32 = 16;

/// What was read is kept for so many objects.
const OBJECTS_PER_CACHE: usize = 1 << 15;

/// What a return costs, in objects: a list that is torn everywhere ends the walk.
const COST_OF_RETURN: u64 = 1 << 14;

/// A walk, and where it can go on.
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
    /// Where the visitor said so.
    Visitor(B),
    /// There was too much: it can go on.
    Budget,
}

impl ListWalk {
    /// Goes on, and shows each object to `visit`, which says where to end, and [`None`] if something else is there. It looks
    /// at no more objects than `budget`, of which `visit` may take some as well.
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
        }
    }

    /// Whether the list was torn somewhere.
    pub fn was_led_astray(&self) -> bool {
        self.returns > 0
    }

    /// Follows the list from an object on. [`None`] if it is torn.
    fn follow<M: ReadMemory, B>(
        &mut self,
        memory: &M,
        vm: &Vm,
        mut address: u64,
        budget: &mut u64,
        visit: &mut impl FnMut(&PageCache<'_, M>, Listed, &mut u64) -> Option<ControlFlow<B>>,
    ) -> Option<ListEnd<B>> {
        let (layout, pages) = (&vm.layout, PageCache::reading_ahead(memory));
        // A list that became a ring comes back to an object that is noted each time that the walk has become twice as long
        // (Brent's algorithm).
        let (mut noted, mut last) = (0, None);
        for count in 1_usize.. {
            // The main thread is the VM's first object, so the last one on the list before userdata.
            if address == 0 || address == vm.main_thread {
                return Some(ListEnd::List);
            }
            if address == noted {
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
            // What is older than that may have changed.
            if count.is_multiple_of(OBJECTS_PER_CACHE) {
                pages.clear();
            }
            let kind = type_of(&pages, layout, address).ok()?;
            let next = pages.read_ref(layout.is_gc64(), address).ok()?;
            // The collectable types.
            if !(gct::STR..=13).contains(&kind) {
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

    /// The object to go on with: what follows the last prototype that is there still, or the first object of all.
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
