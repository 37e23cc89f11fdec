//! Which prototype makes the functions of which other one: a child does not say who its parent is.
//!
//! Parents have their children among their constants, so they are looked for on the list of all objects ([`gc.root`]). New
//! objects are put at its front, and a parent is made when its body is compiled, which is after its children: on the list it
//! always comes before them. So a search for a parent is over where the child is.
//!
//! The list changes while it is walked. What it led to is no proof: who uses a parent looks whether it has the child.
//!
//! [`gc.root`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_obj.h#L606

use std::collections::{HashMap, VecDeque};

use lj_trace_common::layout::{VmLayout, gct};
use lj_trace_common::memory::ReadMemory;

use crate::Vm;
use crate::object::{field, type_of};
use crate::page_cache::PageCache;
use crate::prototype::{Prototype, PrototypeKey};

/// Prototypes whose parents are kept: some 20 MB at most. Of those beyond, each is searched when it is asked for.
const MAX_KNOWN: usize = 1 << 19;

/// Prototypes to which a walk can return where the list was torn behind them.
const MAX_PLACES: usize = 256;

/// What a return costs, in objects: more than a few never lead on.
const COST_OF_RETURN: u64 = 256;

/// `PROTO_CHILD` ([`lj_obj.h`]): it has prototypes among its constants.
///
/// [`lj_obj.h`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_obj.h#L372-L376
const PROTO_CHILD: u8 = 1;

/// How a search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
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
    walk: Option<Walk>,
    /// The one that is asked for: there is room for it.
    wanted: u64,
}

/// How many walks over the whole list it takes to say that a prototype has no parent: one may have been led astray.
const WALKS: u32 = 2;

/// What it costs to read a prototype that makes functions, in objects.
const COST_OF_PARENT: u64 = 16;

/// One place is kept for so many prototypes.
const PROTOTYPES_PER_PLACE: u32 = 16;

/// A walk that is not over.
#[derive(Debug, Default)]
struct Walk {
    /// What it was started for.
    child: u64,
    prototypes: u32,
    /// The prototypes that it came by last: they live long, and on the list nothing moves.
    places: VecDeque<PrototypeKey>,
}

/// Where a part of a walk has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// At the end of the list, or where all that follows is known.
    List,
    /// At the prototype that was searched.
    Child,
    /// There was too much.
    Budget,
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

    /// How many prototypes are known.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Searches the parent of a prototype. It looks at no more objects than `budget`, which gets less by those that it has looked
    /// at; the next search goes on where this one ends.
    pub fn parent<M: ReadMemory>(&mut self, memory: &M, vm: &Vm, child: &PrototypeKey, budget: &mut u64) -> Found {
        self.wanted = child.address;
        loop {
            match self.known.get(&child.address) {
                Some(&Known::Parent(parent)) => return Found::Parent(parent),
                // It was there when the whole list was looked at.
                Some(&Known::Alone(known)) if self.walks >= WALKS && known == print(child) => return Found::None,
                _ => {}
            }
            if *budget == 0 {
                return Found::Unknown;
            }
            let end = self.go_on(memory, vm, child, budget);
            if end == End::Budget {
                continue;
            }
            self.walk = None;
            if end == End::List && self.walks < WALKS {
                self.walks += 1;
            } else if !matches!(self.known.get(&child.address), Some(Known::Parent(_))) {
                // A new one, or one that there was no room for: the walk was for it alone.
                self.insert(child.address, Known::Alone(print(child)));
                return Found::None;
            }
        }
    }

    /// Goes on with the walk, or starts one.
    fn go_on<M: ReadMemory>(&mut self, memory: &M, vm: &Vm, child: &PrototypeKey, budget: &mut u64) -> End {
        // One for a single prototype does not show what is newer.
        let fits = |walk: &Walk| self.walks < WALKS || walk.child == child.address;
        let new = Walk { child: child.address, ..Walk::default() };
        let mut walk = self.walk.take().filter(fits).unwrap_or(new);
        let end = loop {
            let next = walk.next(memory, vm);
            if let Some(end) = self.follow(&mut walk, memory, vm, next, child, budget) {
                break end;
            }
            *budget = budget.saturating_sub(COST_OF_RETURN);
        };
        self.walk = Some(walk);
        end
    }

    /// Follows the list from an object on. [`None`] if it is torn.
    fn follow<M: ReadMemory>(
        &mut self,
        walk: &mut Walk,
        memory: &M,
        vm: &Vm,
        mut object: u64,
        child: &PrototypeKey,
        budget: &mut u64,
    ) -> Option<End> {
        let (layout, pages) = (&vm.layout, PageCache::new(memory));
        // A list that became a ring comes back to an object that is noted each time that the walk has become twice as long
        // (Brent's algorithm).
        let mut noted = 0;
        for count in 1_usize.. {
            // The main thread is the VM's first object, so the last one on the list before userdata.
            if object == 0 || object == vm.main_thread {
                return Some(End::List);
            }
            if object == noted {
                return None;
            }
            if *budget == 0 {
                return Some(End::Budget);
            }
            *budget -= 1;
            if count.is_power_of_two() {
                noted = object;
            }
            // Each object may be on a page of its own: no more than 32 MiB of them are kept.
            if count % 8192 == 0 {
                pages.clear();
            }
            let kind = type_of(&pages, layout, object).ok()?;
            let next = pages.read_ref(layout.is_gc64(), object).ok()?;
            if kind == gct::PROTO {
                if let Some(end) = self.see(walk, &pages, layout, object, child, budget) {
                    return Some(end);
                }
            } else if !(gct::STR..=13).contains(&kind) {
                return None;
            }
            object = next;
        }
        None
    }

    /// Notes a prototype of the list. Gives how the walk ends if that is here.
    fn see<M: ReadMemory>(
        &mut self,
        walk: &mut Walk,
        pages: &PageCache<'_, M>,
        layout: &VmLayout,
        address: u64,
        child: &PrototypeKey,
        budget: &mut u64,
    ) -> Option<End> {
        // The second walk is for what the first one has missed.
        if self.walks == 1 && self.known.contains_key(&address) {
            return None;
        }
        let key = Prototype::key_at(pages, layout, address).ok()?;
        walk.note(key);
        let flags: u8 = pages.read(field(address, layout.pt_flags)).unwrap_or(0);
        if flags & PROTO_CHILD != 0 {
            *budget = budget.saturating_sub(COST_OF_PARENT);
            let parent = Prototype::read_of(pages, layout, key).ok()?;
            let is_known = |child| self.known.get(&child) == Some(&Known::Parent(address));
            if self.walks >= WALKS && parent.has_children() && parent.children().all(is_known) {
                return Some(End::List);
            }
            self.add_children(&parent);
        }
        // What is known of it may be of another one that was there before.
        if !matches!(self.known.get(&address), Some(Known::Parent(_))) {
            self.insert(address, Known::Alone(print(&key)));
        }
        // Only the first walks are for all prototypes.
        (self.walks >= WALKS && address == child.address).then_some(End::Child)
    }
}

impl Walk {
    fn note(&mut self, place: PrototypeKey) {
        self.prototypes += 1;
        if self.prototypes % PROTOTYPES_PER_PLACE != 1 {
            return;
        }
        if self.places.len() >= MAX_PLACES {
            self.places.pop_front();
        }
        self.places.push_back(place);
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
