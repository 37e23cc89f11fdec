//! Names functions that allocate.
//!
//! An event says which prototype runs. At the first event of a prototype, lj-trace looks for its name, and names the
//! functions that it creates: a module's chunk is freed before its functions run. Names that take long to find come later
//! (`name_search`); reports then give them to the events until then.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use lj_trace_luajit::{FunctionNamer, Prototype, Vm};
use lj_trace_process::ProcessMemory;
use lj_trace_streams::hash::AddrMap;

use super::events::Meaning;
use super::name_search::{Finder, NameSearch};
use super::room::{ENTRY, NameRoom};

/// The names of a VM's functions, by the addresses of their prototypes.
#[derive(Default)]
pub struct Definitions {
    search: NameSearch<HeapNames>,
    names: AddrMap<u64, (Meaning, Option<Arc<str>>)>,
    /// Functions whose names are not known yet.
    missed: HashMap<u64, Meaning>,
    /// Those of them that were searched while the heap changed too fast. They are searched again.
    unsettled: HashMap<u64, Meaning>,
    retry: Retry,
    /// Those of them that appear in lines of reports.
    missed_in_lines: HashSet<u64>,
    /// Those of them whose names were found since.
    late: Vec<FoundName>,
    room: NameRoom,
}

/// A name, and the function that has it.
#[derive(Clone, Debug)]
pub struct FoundName {
    /// The address of its prototype.
    pub proto: u64,
    /// The function that this address belongs to.
    pub meaning: Meaning,
    /// The name; `None` if the function has none.
    pub name: Option<Arc<str>>,
    /// Whether lines of reports show the function.
    pub is_in_lines: bool,
    /// Whether another search would find the same.
    is_settled: bool,
}

/// When to search again for names that a changing heap has hidden: after twice as many batches each time.
#[derive(Debug)]
struct Retry {
    /// Batches until the next search.
    left: u32,
    /// Batches until the one after that.
    next: u32,
}

impl Default for Retry {
    fn default() -> Self {
        Self { left: 1, next: 2 }
    }
}

impl Retry {
    /// The most batches between two searches.
    const MOST: u32 = 64;

    /// Counts a batch; returns whether to search in it.
    fn is_due(&mut self) -> bool {
        self.left -= 1;
        if self.left > 0 {
            return false;
        }
        (self.left, self.next) = (self.next, Self::MOST.min(2 * self.next));
        true
    }
}

/// A question to the name search.
enum Wanted {
    /// What is needed to find names, before the first is asked for.
    All,
    /// The name of the function at an address, if it is still the function with this meaning.
    Name(u64, Meaning),
    /// The names of the functions that this one creates.
    Children(u64),
}

/// Finds names in the memory of a process.
#[derive(Default)]
struct HeapNames {
    namer: FunctionNamer,
    place: Option<(ProcessMemory, Vm)>,
}

/// The most functions created by one other that are named before their first event.
const MAX_CHILDREN: usize = 1 << 10;
/// The most names to keep, and the most to miss.
const MAX_NAMES: usize = 1 << 16;

impl Finder for HeapNames {
    type Wanted = Wanted;
    type Found = FoundName;

    fn find(&mut self, wanted: Wanted, found: &mut dyn FnMut(FoundName) -> bool) {
        let Self { namer, place: Some((memory, vm)) } = self else { return };
        let read = |address| {
            let key = Prototype::key_at(memory, &vm.layout, address).ok()?;
            Prototype::read_alive(memory, vm, key).ok()
        };
        let mut name = |namer: &mut FunctionNamer, proto, prototype: &Prototype| {
            let name = namer.name(memory, vm, &prototype.key);
            let is_settled = namer.is_settled(&prototype.key);
            found(FoundName { proto, meaning: Meaning::of(prototype), name, is_in_lines: false, is_settled })
        };
        match wanted {
            Wanted::All => namer.look_ahead(memory, vm),
            Wanted::Name(address, meaning) => match read(address).filter(|it| Meaning::of(it) == meaning) {
                Some(prototype) => {
                    name(namer, address, &prototype);
                }
                // The function is gone.
                None => {
                    found(FoundName { proto: address, meaning, name: None, is_in_lines: false, is_settled: true });
                }
            },
            Wanted::Children(address) => {
                let Some(parent) = read(address).filter(Prototype::has_children) else { return };
                namer.add_children(&parent);
                for child in parent.children().take(MAX_CHILDREN) {
                    if let Some(prototype) = read(child)
                        && !name(namer, child, &prototype)
                    {
                        return;
                    }
                }
            }
        }
    }

    fn address(found: &FoundName) -> u64 {
        found.proto
    }

    fn forget(&mut self, address: u64) {
        self.namer.forget(address);
    }

    fn begin_batch(&mut self) {
        self.namer.begin_batch();
    }

    fn take_unsearched(&mut self) -> u64 {
        self.namer.take_unsearched()
    }
}

impl Definitions {
    /// No names yet. Names will take memory of this room.
    pub fn within(room: NameRoom) -> Self {
        Self { room, ..Self::default() }
    }

    /// Begins to search, before the first event: what comes first takes longest.
    pub fn look_ahead(&mut self, memory: &ProcessMemory, vm: &Vm) {
        self.search.ask_ahead(Wanted::All);
        self.start(memory, vm);
    }

    /// Begins a batch: time has passed, so continues the search.
    pub fn begin_batch(&mut self, memory: &ProcessMemory, vm: &Vm) {
        let mut found = Vec::new();
        self.search.begin_batch(|name| found.push(name));
        found.into_iter().for_each(|name| self.take_in(name));
        if !self.unsettled.is_empty() && self.retry.is_due() {
            for (address, meaning) in std::mem::take(&mut self.unsettled) {
                self.search.ask(Wanted::Name(address, meaning));
            }
        }
        self.start(memory, vm);
    }

    /// Whether names are searched that were needed.
    pub fn is_searching(&self) -> bool {
        !self.missed.is_empty()
    }

    /// The names that were missing when they were needed, and are known by now.
    pub fn take_late(&mut self) -> Vec<FoundName> {
        std::mem::take(&mut self.late)
    }

    /// The number of functions whose names are not found yet, or would take too much work to find.
    pub fn unsearched(&self) -> u64 {
        self.search.unsearched() + self.missed.len() as u64
    }

    /// The same number; the caller counts these functions from now on.
    pub fn take_unsearched(&mut self) -> u64 {
        self.missed_in_lines.clear();
        self.unsettled.clear();
        self.search.take_unsearched() + std::mem::take(&mut self.missed).len() as u64
    }

    /// Names the functions that a prototype creates, at the prototype's first event.
    pub fn see(&mut self, memory: &ProcessMemory, vm: &Vm, address: u64) {
        self.search.ask(Wanted::Children(address));
        self.start(memory, vm);
    }

    /// The name of the function at `address`, if it is still the function with this meaning, and if the name is found
    /// within some milliseconds.
    pub fn name(&mut self, memory: &ProcessMemory, vm: &Vm, address: u64, meaning: Meaning) -> Option<Arc<str>> {
        if let Some((_, name)) = self.names.get(&address).filter(|known| known.0 == meaning) {
            return name.clone();
        }
        // The search is under way, and the name comes later.
        if self.missed.get(&address) == Some(&meaning) {
            return None;
        }
        if self.missed.len() >= MAX_NAMES {
            self.search.refuse();
            return None;
        }
        let mut found = Vec::new();
        let is_it = |name: &FoundName| (name.proto, name.meaning) == (address, meaning);
        let place = |finder: &mut HeapNames| finder.place = Some((*memory, vm.clone()));
        let wanted = Wanted::Name(address, meaning);
        let is_known = self.search.ask_and_wait(wanted, place, |name| found.push(name), is_it);
        let own = found.iter().find(|name| is_it(name));
        let (name, is_settled) = own.map_or((None, true), |found| (found.name.clone(), found.is_settled));
        if is_known == Some(false) || !is_settled {
            self.missed.insert(address, meaning);
        }
        found.into_iter().for_each(|name| self.take_in(name));
        name
    }

    /// The same, for a function in a line of reports.
    pub fn name_in_line(
        &mut self,
        memory: &ProcessMemory,
        vm: &Vm,
        address: u64,
        meaning: Meaning,
    ) -> Option<Arc<str>> {
        let name = self.name(memory, vm, address, meaning);
        if self.missed.contains_key(&address) {
            self.missed_in_lines.insert(address);
        }
        name
    }

    /// Forgets a function whose address was freed.
    pub fn forget(&mut self, address: u64) {
        if let Some((_, name)) = self.names.remove(&address) {
            self.room.give(room_of(name.as_deref()));
        }
        self.missed.remove(&address);
        self.missed_in_lines.remove(&address);
        self.unsettled.remove(&address);
        self.search.forget(address);
    }

    fn start(&mut self, memory: &ProcessMemory, vm: &Vm) {
        self.search.start(|finder| finder.place = Some((*memory, vm.clone())));
    }

    fn take_in(&mut self, found: FoundName) {
        if !found.is_settled {
            if self.missed.get(&found.proto) == Some(&found.meaning) {
                self.unsettled.insert(found.proto, found.meaning);
            }
            return;
        }
        if self.missed.get(&found.proto) == Some(&found.meaning) {
            self.missed.remove(&found.proto);
            let is_in_lines = self.missed_in_lines.remove(&found.proto);
            self.late.push(FoundName { is_in_lines, ..found.clone() });
        }
        let bytes = room_of(found.name.as_deref());
        if self.names.len() >= MAX_NAMES || !self.room.take(bytes) {
            self.forget_all();
            if !self.room.take(bytes) {
                return;
            }
        }
        if let Some((_, old)) = self.names.insert(found.proto, (found.meaning, found.name)) {
            self.room.give(room_of(old.as_deref()));
        }
    }

    fn forget_all(&mut self) {
        self.room.give(self.names.drain().map(|(_, (_, name))| room_of(name.as_deref())).sum());
    }
}

fn room_of(name: Option<&str>) -> usize {
    ENTRY + name.map_or(0, str::len)
}
