//! Maps addresses of instructions to places in Lua code.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use lj_trace_common::memory::ReadMemory;
use lj_trace_text::chunk_name;
use lj_trace_text::untrusted::Untrusted;
use serde::Serialize;

use crate::object::field;
use crate::prototype::{Prototype, PrototypeKey, Prototypes};
use crate::prototype_batch::read_prototypes;
use crate::{FunctionNamer, Vm, heap};

/// A place in a Lua function. Its text comes from the target, with everything escaped that is not plain text.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Place {
    /// The function: `name@file.lua:LINE` with the line of its definition; without the name if that is not known.
    pub function: String,
    /// The chunkname as LuaJIT shows it: `file.lua`.
    pub source: String,
    /// The line; [`None`] if the function has no debug information.
    pub line: Option<u32>,
}

/// All prototypes of a VM, to find the prototype of an instruction.
pub struct CodePlaces<'a, M> {
    memory: &'a M,
    vm: &'a Vm,
    /// Prototypes by the address of the first instruction.
    prototypes: BTreeMap<u64, PrototypeKey>,
    names: RefCell<FunctionNamer>,
    read: RefCell<Prototypes>,
    /// Whether these are all prototypes.
    pub complete: bool,
}

impl<'a, M: ReadMemory> CodePlaces<'a, M> {
    /// Reads all prototypes of `vm`, as far as `limit` allows, and passes each to `visit`.
    pub fn collect(memory: &'a M, vm: &'a Vm, limit: Duration, mut visit: impl FnMut(&Prototype)) -> Self {
        let found = heap::all_prototypes(memory, vm, limit);
        let layout = &vm.layout;
        let (mut prototypes, mut names) = (BTreeMap::new(), FunctionNamer::default());
        read_prototypes(memory, layout, found.addresses, |prototype| {
            prototypes.insert(field(prototype.key.address, layout.sizeof_pt), prototype.key);
            names.add_children(&prototype);
            visit(&prototype);
            ControlFlow::Continue(())
        });
        let names = RefCell::new(names);
        Self { memory, vm, prototypes, names, read: RefCell::default(), complete: found.complete }
    }

    /// The function with the instruction at `pc`, and the position of that instruction; [`None`] if there is no such
    /// function, or it was collected meanwhile.
    pub fn instruction(&self, pc: u64) -> Option<(Arc<Prototype>, u32)> {
        let (first, key) = self.prototypes.range(..=pc).next_back()?;
        let offset = pc - first;
        if !offset.is_multiple_of(4) || offset / 4 >= u64::from(key.sizebc) {
            return None;
        }
        let prototype = self.read.borrow_mut().get(self.memory, self.vm, *key).ok()?;
        Some((prototype, (offset / 4) as u32))
    }

    /// The place of the instruction at `pc`.
    pub fn at(&self, pc: u64) -> Option<Place> {
        let (prototype, position) = self.instruction(pc)?;
        Some(self.of(&prototype, position))
    }

    /// The place of an instruction of `prototype`.
    pub fn of(&self, prototype: &Prototype, position: u32) -> Place {
        let source = chunk_name(prototype.chunkname.as_bytes());
        if prototype.is_builtin() {
            return Place { function: format!("[Lua function of LuaJIT's library]@{source}"), source, line: None };
        }
        let name: Arc<str> = match prototype.key.firstline {
            0 => "main chunk".into(),
            _ => self.names.borrow_mut().name(self.memory, self.vm, &prototype.key).unwrap_or_default(),
        };
        let function = format!("{}@{source}:{}", Untrusted(&name), prototype.key.firstline);
        Place { function, source, line: prototype.line_at(position) }
    }

    /// All prototypes, in the order of their addresses.
    pub fn keys(&self) -> impl Iterator<Item = &PrototypeKey> {
        self.prototypes.values()
    }

    /// The address of an instruction.
    pub fn address(&self, key: &PrototypeKey, position: u32) -> u64 {
        field(key.address, self.vm.layout.sizeof_pt).wrapping_add(4 * u64::from(position))
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}", self.source),
            None => write!(f, "{} (no line: stripped)", self.source),
        }
    }
}
