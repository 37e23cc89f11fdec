//! From allocation events to memprof streams, one for each VM.

use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::path::PathBuf;

use lj_trace_common::allocation::{AllocationEvent, AllocationKind, AllocationSource};
use lj_trace_common::memory::ReadMemory as _;

use crate::stream::hash::AddrMap;
use crate::stream::memprof::{Event, MemprofWriter, Source};
use crate::stream::{Symbol, TraceSymbol, WriteError};
use crate::symbols::Symbolizer;
use crate::target::{Process, ProcessMemory};
use crate::vm::{FunctionNames, Prototype, PrototypeKey, Prototypes, Vm, heap, read_traces, trace_by_number};

/// A memprof stream that is being written.
pub struct MemoryStream {
    path: PathBuf,
    writer: MemprofWriter<Box<dyn Write>>,
    version: u8,
    vm: Vm,
    memory: ProcessMemory,
    prototypes: Prototypes,
    functions: FunctionNames,
    symbolizer: Symbolizer,
    /// What the stream says that the addresses of prototypes mean.
    known: AddrMap<u64, Known>,
    /// Addresses of C functions that the stream has a name for.
    named: HashSet<u64>,
    /// Address and start of each trace that the stream knows.
    traces: HashMap<u64, (u64, u64)>,
    /// Traces that have been looked at since the last batch began.
    traces_checked: HashSet<u64>,
    tally: MemoryTally,
}

/// What became of the events of a VM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryTally {
    /// All events.
    pub events: u64,
    /// New allocations, and what they took.
    pub allocations: u64,
    /// Bytes of the new allocations.
    pub allocated: u64,
    /// Reallocations.
    pub reallocations: u64,
    /// Frees.
    pub frees: u64,
    /// Bytes that were freed.
    pub freed: u64,
    /// Events of functions that were collected before they could be read: their lines are not known.
    pub collected: u64,
}

impl MemoryTally {
    /// Both together.
    pub fn plus(self, other: Self) -> Self {
        Self {
            events: self.events + other.events,
            allocations: self.allocations + other.allocations,
            allocated: self.allocated + other.allocated,
            reallocations: self.reallocations + other.reallocations,
            frees: self.frees + other.frees,
            freed: self.freed + other.freed,
            collected: self.collected + other.collected,
        }
    }
}

/// A prototype by what its events say of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    /// Address of its chunk's name: as long as the prototype is not freed, the name is not either.
    chunkname: u64,
    first_line: u32,
    size_bc: u32,
    /// What was read of it; none if it was freed before, so that the stream has no name for it.
    key: Option<PrototypeKey>,
}

impl Known {
    /// The prototype at `address`, if there is one.
    fn read(memory: &ProcessMemory, vm: &Vm, address: u64) -> Option<Self> {
        let layout = &vm.layout;
        let key = Prototype::key_at(memory, layout, address).ok()?;
        let chunkname = memory.read_ref(layout.is_gc64(), address + u64::from(layout.pt_chunkname)).ok()?;
        Some(Self { chunkname, first_line: key.firstline, size_bc: key.sizebc, key: Some(key) })
    }

    /// Whether the event's prototype is this one.
    fn is_of(&self, event: &AllocationEvent) -> bool {
        (self.chunkname, self.first_line, self.size_bc) == (event.chunkname, event.first_line, event.size_bc)
    }
}

impl MemoryStream {
    /// Starts a stream of the events of `vm` with all that it has by now: prototypes and traces.
    ///
    /// # Errors
    /// The output cannot take the bytes.
    pub fn start(
        process: &Process,
        vm: &Vm,
        version: u8,
        path: PathBuf,
        out: Box<dyn Write>,
    ) -> Result<Self, WriteError> {
        let memory = process.memory();
        let mut prototypes = Prototypes::default();
        let mut known = AddrMap::default();
        let mut symbols = Vec::new();
        for address in heap::prototypes(&memory, vm) {
            let Some(seen) = Known::read(&memory, vm, address) else { continue };
            let Some(Ok(prototype)) = seen.key.map(|key| prototypes.get(&memory, &vm.layout, key)) else { continue };
            symbols.push(lua_symbol(&prototype));
            known.insert(address, seen);
        }
        let mut traces = HashMap::new();
        for trace in process.maps().map(|maps| read_traces(&memory, &maps, vm)).unwrap_or_default() {
            if let Some(symbol) = trace_symbol(&memory, vm, &mut prototypes, &trace) {
                traces.insert(u64::from(trace.number), (trace.address, trace.startpc));
                symbols.push(Symbol::Trace(symbol));
            }
        }
        let writer = MemprofWriter::new(out, version, symbols)?;
        Ok(Self {
            path,
            writer,
            version,
            vm: vm.clone(),
            memory,
            prototypes,
            functions: FunctionNames::read(&memory, vm),
            symbolizer: Symbolizer::new(process.clone()),
            known,
            named: HashSet::new(),
            traces,
            traces_checked: HashSet::new(),
            tally: MemoryTally::default(),
        })
    }

    /// Where the stream is written to.
    pub fn path(&self) -> &PathBuf {
        &self.path
    }

    /// What became of the events so far.
    pub fn tally(&self) -> MemoryTally {
        self.tally
    }

    /// Notes that time has passed: what can change meanwhile is looked at again.
    pub fn begin_batch(&mut self) {
        self.traces_checked.clear();
    }

    /// Adds an event.
    ///
    /// # Errors
    /// The output cannot take the bytes.
    pub fn add(&mut self, event: &AllocationEvent) -> Result<(), WriteError> {
        let source = self.source(event)?;
        self.tally.events += 1;
        let &AllocationEvent { pointer, result, old_size, size, .. } = event;
        let event = match AllocationKind::from_u8(event.kind) {
            Some(AllocationKind::Free) => {
                self.tally.frees += 1;
                self.tally.freed += old_size;
                // Whatever lies at this address from now on is something else.
                if let Some(key) = self.known.remove(&pointer).and_then(|known| known.key) {
                    self.prototypes.forget(&key);
                }
                Event::Free { source, addr: pointer, size: old_size }
            }
            Some(AllocationKind::Realloc) => {
                self.tally.reallocations += 1;
                self.tally.allocated += size;
                self.tally.freed += old_size;
                Event::Realloc { source, old_addr: pointer, old_size, addr: result, size }
            }
            _ => {
                self.tally.allocations += 1;
                self.tally.allocated += size;
                Event::Alloc { source, addr: result, size }
            }
        };
        self.writer.event(&event)
    }

    /// Passes on what has been written so far.
    ///
    /// # Errors
    /// The output cannot take the bytes.
    pub fn flush(&mut self) -> Result<(), WriteError> {
        self.writer.flush()
    }

    /// Ends the stream.
    ///
    /// # Errors
    /// The output cannot take the bytes.
    pub fn finish(self) -> Result<(), WriteError> {
        self.writer.finish().map(drop)
    }

    /// Who caused the event, with the symbols that say so written before.
    fn source(&mut self, event: &AllocationEvent) -> Result<Source, WriteError> {
        Ok(match AllocationSource::from_u8(event.source) {
            Some(AllocationSource::Lua) => self.lua(event)?,
            Some(AllocationSource::C) => {
                self.name_c_function(event.place)?;
                Source::C { addr: event.place }
            }
            Some(AllocationSource::Trace) => {
                self.describe_trace(event.place)?;
                Source::Trace { number: event.place, mcode: self.trace_mcode(event.place) }
            }
            Some(AllocationSource::Internal) | None => Source::Internal,
        })
    }

    fn lua(&mut self, event: &AllocationEvent) -> Result<Source, WriteError> {
        let known = match self.known.get(&event.place) {
            Some(known) if known.is_of(event) => known,
            _ => {
                let (known, symbol) = self.get_to_know(event);
                self.writer.event(&Event::Symbol(symbol))?;
                self.known.entry(event.place).insert_entry(known).into_mut()
            }
        };
        self.tally.collected += u64::from(known.key.is_none());
        Ok(Source::Lua { proto: event.place, line: u64::from(event.line) })
    }

    /// Reads the prototype of an event, if it is there still.
    fn get_to_know(&mut self, event: &AllocationEvent) -> (Known, Symbol) {
        let (memory, layout) = (&self.memory, &self.vm.layout);
        let there = Known::read(memory, &self.vm, event.place).filter(|known| known.is_of(event));
        let prototype = there.and_then(|known| {
            let prototype = self.prototypes.get(memory, layout, known.key?).ok()?;
            Some((known, prototype))
        });
        match prototype {
            Some((known, prototype)) => (known, lua_symbol(&prototype)),
            None => {
                let &AllocationEvent { chunkname, first_line, size_bc, .. } = event;
                let name = b"=[unknown: collected]";
                let symbol = Symbol::lua(event.place, name, u64::from(first_line));
                (Known { chunkname, first_line, size_bc, key: None }, symbol)
            }
        }
    }

    fn name_c_function(&mut self, address: u64) -> Result<(), WriteError> {
        if !self.named.insert(address) {
            return Ok(());
        }
        let symbol = self.symbolizer.symbolize(address);
        let known = self.functions.c_function(address).or_else(|| self.functions.builtin_at(address));
        let name = match (&symbol.name, known) {
            (Some(name), _) => name.to_string(),
            (None, Some(name)) => name.to_owned(),
            (None, None) => symbol.to_string(),
        };
        self.writer.event(&Event::Symbol(Symbol::c(address, &name)))
    }

    fn describe_trace(&mut self, number: u64) -> Result<(), WriteError> {
        if !self.traces_checked.insert(number) {
            return Ok(());
        }
        let Some(trace) = u16::try_from(number).ok().and_then(|number| trace_by_number(&self.memory, &self.vm, number))
        else {
            return Ok(());
        };
        let identity = (trace.address, trace.startpc);
        if self.traces.insert(number, identity) == Some(identity) {
            return Ok(());
        }
        match trace_symbol(&self.memory, &self.vm, &mut self.prototypes, &trace) {
            Some(symbol) => self.writer.event(&Event::Symbol(Symbol::Trace(symbol))),
            None => Ok(()),
        }
    }

    /// The address of a trace's machine code, which only version 2 of the stream has room for.
    fn trace_mcode(&self, number: u64) -> Option<u64> {
        if self.version != 2 {
            return None;
        }
        let number = u16::try_from(number).ok()?;
        Some(trace_by_number(&self.memory, &self.vm, number).map_or(0, |trace| trace.mcode.start))
    }
}

fn lua_symbol(prototype: &Prototype) -> Symbol {
    Symbol::lua(prototype.key.address, prototype.chunkname.as_bytes(), u64::from(prototype.key.firstline))
}

fn trace_symbol(
    memory: &ProcessMemory,
    vm: &Vm,
    prototypes: &mut Prototypes,
    trace: &crate::vm::Trace,
) -> Option<TraceSymbol> {
    let key = Prototype::key_at(memory, &vm.layout, trace.startpt).ok()?;
    let prototype = prototypes.get(memory, &vm.layout, key).ok()?;
    let offset = trace.startpc.checked_sub(trace.startpt + u64::from(vm.layout.sizeof_pt))?;
    let line = prototype.line_at(u32::try_from(offset / 4).ok()?)?;
    Some(TraceSymbol {
        number: u64::from(trace.number),
        proto: trace.startpt,
        line: u64::from(line),
        mcode: (trace.mcode.start != 0).then_some(trace.mcode.start),
    })
}
