//! Names of the functions that allocate: those that they were assigned to where they are defined.
//!
//! An event says which prototype runs, but not who has called it by what name.

use lj_trace_luajit::{Prototype, Vm};
use lj_trace_process::ProcessMemory;
use lj_trace_streams::hash::AddrMap;

use super::events::Meaning;
use super::room::{ENTRY, NameRoom};

/// The names of a VM's functions, by the addresses of their prototypes.
#[derive(Default)]
pub struct Definitions {
    names: AddrMap<u64, (Meaning, String)>,
    /// Prototypes read since the last batch began.
    read: u32,
    room: NameRoom,
}

/// Prototypes that are read in a batch: a program that makes thousands of chunks would keep us from its events.
const BATCH: u32 = 256;
/// Names that are kept.
const MAX_NAMES: usize = 1 << 16;

impl Definitions {
    /// None yet; they take of this room.
    pub fn within(room: NameRoom) -> Self {
        Self { names: AddrMap::default(), read: 0, room }
    }

    /// Notes that time has passed.
    pub fn begin_batch(&mut self) {
        self.read = 0;
    }

    /// Takes in what a prototype defines.
    pub fn add(&mut self, memory: &ProcessMemory, vm: &Vm, parent: &Prototype) {
        for (address, name) in parent.definitions(vm.bytecode_set()) {
            let Ok(key) = Prototype::key_at(memory, &vm.layout, address) else { continue };
            // A function is of the same chunk as the one that it is defined in.
            if key.chunkname != parent.key.chunkname {
                continue;
            }
            let bytes = ENTRY + name.len();
            if self.names.len() >= MAX_NAMES || !self.room.take(bytes) {
                self.forget_all();
                if !self.room.take(bytes) {
                    return;
                }
            }
            let meaning = Meaning::new(parent.chunkname.as_bytes(), key.firstline);
            if let Some((_, old)) = self.names.insert(address, (meaning, name)) {
                self.room.give(ENTRY + old.len());
            }
        }
    }

    fn forget_all(&mut self) {
        self.room.give(self.names.drain().map(|(_, (_, name))| ENTRY + name.len()).sum());
    }

    /// Takes in what the function at `address` is called by others, if nothing better is known.
    pub fn add_used(&mut self, address: u64, meaning: Meaning, name: &str) {
        if self.name(address, meaning).is_none()
            && self.names.len() < MAX_NAMES
            && self.room.take(ENTRY + name.len())
            && let Some((_, old)) = self.names.insert(address, (meaning, name.to_owned()))
        {
            self.room.give(ENTRY + old.len());
        }
    }

    /// The same, for a prototype that has just been seen to run; nothing if there are too many of them.
    pub fn add_new(&mut self, memory: &ProcessMemory, vm: &Vm, address: u64) {
        if self.read >= BATCH {
            return;
        }
        self.read += 1;
        if let Ok(key) = Prototype::key_at(memory, &vm.layout, address)
            && let Ok(parent) = Prototype::read(memory, &vm.layout, key)
        {
            self.add(memory, vm, &parent);
        }
    }

    /// The name of the function at `address`, if it is the one with this meaning.
    pub fn name(&self, address: u64, meaning: Meaning) -> Option<&str> {
        self.names.get(&address).filter(|known| known.0 == meaning).map(|known| known.1.as_str())
    }
}
