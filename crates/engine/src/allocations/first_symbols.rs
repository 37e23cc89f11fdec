//! The symbols of a VM that its stream has before the first event, because events cannot carry them.
//!
//! The programs in the kernel report each prototype before its first event. So a stream has the names of those functions
//! that allocate, and attaching is fast even in a process with a million others. Before version 3, streams cannot have
//! names among events; then lj-trace reads all existing prototypes first.

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
    /// The symbols.
    pub symbols: Vec<Symbol>,
    /// The room that they take until they are written.
    room: NameRoom,
}

impl FirstSymbols {
    /// No symbols yet. They will take memory of `room`.
    pub fn within(room: &NameRoom) -> Self {
        Self { symbols: Vec::new(), room: room.of_another() }
    }

    /// Reads the prototypes of a VM as far as there is room, if streams of this `version` need them at the beginning.
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
