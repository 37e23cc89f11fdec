//! What a stream says of a VM before its events: what these cannot say themselves.
//!
//! Each prototype is named by the programs in the kernel before the first event of it, so a stream has the names of those that
//! allocate, and attaching takes no longer where there are a million others. Before version 3 streams have no room for names
//! among events: then all that are there are read first.

use std::ops::ControlFlow;

use lj_trace_luajit::{Vm, heap, read_prototype_names};
use lj_trace_process::ProcessMemory;
use lj_trace_streams::Symbol;

use super::room::{ENTRY, NameRoom};

/// The first version of a stream in which symbols are events.
pub const SYMBOLS_AS_EVENTS: u8 = 3;

/// The first symbols of a VM's stream.
#[derive(Debug)]
pub struct FirstSymbols {
    /// These.
    pub symbols: Vec<Symbol>,
    /// What they take, until they are written.
    room: NameRoom,
}

impl FirstSymbols {
    /// None yet; they take of what is left of `room`.
    pub fn within(room: &NameRoom) -> Self {
        Self { symbols: Vec::new(), room: room.of_another() }
    }

    /// Reads the prototypes of a VM, if streams of this `version` need them at first, and as far as there is room.
    pub fn read_prototypes(&mut self, memory: &ProcessMemory, vm: &Vm, version: u8) {
        if version >= SYMBOLS_AS_EVENTS {
            return;
        }
        read_prototype_names(memory, &vm.layout, heap::prototypes(memory, vm), |key, name| {
            if !self.room.take(ENTRY + name.len()) {
                return ControlFlow::Break(());
            }
            self.symbols.push(Symbol::lua(key.address, &name, u64::from(key.firstline)));
            ControlFlow::Continue(())
        });
    }
}
