//! Names functions that allocate.
//!
//! An event says which prototype runs. Its name is looked for when it is first seen, and what it makes itself is named
//! as well then: a module's chunk is gone before its functions run.

use std::sync::Arc;

use lj_trace_luajit::{FunctionNamer, Prototype, Vm};
use lj_trace_process::ProcessMemory;
use lj_trace_streams::hash::AddrMap;

use super::events::Meaning;
use super::room::{ENTRY, NameRoom};

/// The names of a VM's functions, by the addresses of their prototypes.
#[derive(Default)]
pub struct Definitions {
    namer: FunctionNamer,
    names: AddrMap<u64, (Meaning, Option<Arc<str>>)>,
    /// Prototypes read since the last batch began.
    read: u32,
    room: NameRoom,
}

/// Prototypes that are read in a batch: a program that makes thousands of chunks would keep us from its events.
const BATCH: u32 = 1 << 10;
/// Names that are kept.
const MAX_NAMES: usize = 1 << 16;

impl Definitions {
    /// None yet; they take of this room.
    pub fn within(room: NameRoom) -> Self {
        Self { room, ..Self::default() }
    }

    /// Notes that time has passed.
    pub fn begin_batch(&mut self) {
        self.read = 0;
        self.namer.begin_batch();
    }

    /// How many functions may have a name that would have taken too much work to find.
    pub fn unsearched(&self) -> u64 {
        self.namer.unsearched()
    }

    /// The same number, which counts elsewhere from now on.
    pub fn take_unsearched(&mut self) -> u64 {
        self.namer.take_unsearched()
    }

    /// Names what a prototype makes that has just been seen to run; nothing if there are too many of them.
    pub fn see(&mut self, memory: &ProcessMemory, vm: &Vm, address: u64) {
        let Some(parent) = self.read(memory, vm, address).filter(Prototype::has_children) else { return };
        self.namer.add_children(&parent);
        for child in parent.children() {
            if let Some(child) = self.read(memory, vm, child) {
                self.name_of(memory, vm, &child);
            }
        }
    }

    /// The name of the function at `address`, if it is the one with this meaning.
    pub fn name(&mut self, memory: &ProcessMemory, vm: &Vm, address: u64, meaning: Meaning) -> Option<Arc<str>> {
        if let Some((_, name)) = self.names.get(&address).filter(|known| known.0 == meaning) {
            return name.clone();
        }
        let prototype = self.read(memory, vm, address)?;
        if Meaning::of(&prototype) == meaning { self.name_of(memory, vm, &prototype) } else { None }
    }

    /// Forgets what is at an address that was freed.
    pub fn forget(&mut self, address: u64) {
        if let Some((_, name)) = self.names.remove(&address) {
            self.room.give(room_of(name.as_deref()));
        }
        self.namer.forget(address);
    }

    fn read(&mut self, memory: &ProcessMemory, vm: &Vm, address: u64) -> Option<Prototype> {
        if self.read >= BATCH {
            return None;
        }
        self.read += 1;
        let key = Prototype::key_at(memory, &vm.layout, address).ok()?;
        Prototype::read(memory, &vm.layout, key).ok()
    }

    fn name_of(&mut self, memory: &ProcessMemory, vm: &Vm, prototype: &Prototype) -> Option<Arc<str>> {
        let name = self.namer.name(memory, vm, &prototype.key);
        let bytes = room_of(name.as_deref());
        if self.names.len() >= MAX_NAMES || !self.room.take(bytes) {
            self.forget_all();
            if !self.room.take(bytes) {
                return name;
            }
        }
        if let Some((_, old)) = self.names.insert(prototype.key.address, (Meaning::of(prototype), name.clone())) {
            self.room.give(room_of(old.as_deref()));
        }
        name
    }

    fn forget_all(&mut self) {
        self.room.give(self.names.drain().map(|(_, (_, name))| room_of(name.as_deref())).sum());
    }
}

fn room_of(name: Option<&str>) -> usize {
    ENTRY + name.map_or(0, str::len)
}
