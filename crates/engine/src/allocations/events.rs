//! Names the allocation events of a VM, to make the events of a memprof stream with the symbols that they need.
//!
//! LuaJIT's sources: [`lj_cf_package_unloadlib`], [`close_state`].
//!
//! [`lj_cf_package_unloadlib`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lib_package.c#L287-L293
//! [`close_state`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_state.c#L214-L244

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hasher as _};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use lj_trace_common::allocation::event::{NAME_SIZE, NAMELESS};
use lj_trace_common::allocation::on_trace::TracePlace;
use lj_trace_common::allocation::{AllocationEvent, AllocationKind, AllocationSource, PrototypeSeen, TraceSeen};
use lj_trace_luajit::interned::has_string;
use lj_trace_luajit::{FunctionNames, Prototype, Prototypes, Vm, read_traces};
use lj_trace_probes::allocator::AllocationRecord;
use lj_trace_process::{Process, ProcessMemory};
use lj_trace_profile::Frame;
use lj_trace_profile::memory::sources::SourceLine;
use lj_trace_streams::hash::AddrMap;
use lj_trace_streams::memprof::{Event, Source};
use lj_trace_streams::{Annotation, Symbol, TraceSymbol, reserved};
use lj_trace_text::chunk_name;
use lj_trace_unwind::symbols::demangle::demangle;

use super::c_callers::{CCall, CCallers};
use super::c_symbols::{CSymbols, symbols};
use super::definitions::{Definitions, FoundName};
use super::first_symbols::{FirstSymbols, SYMBOLS_AS_EVENTS};
use super::outputs::MemoryOutputs;
use super::requests::{AllocationRequests, Serving};
use super::room::{ENTRY, NameRoom};
use super::stream_traces::{Start, StreamTraces};
use super::trace_lines::{TraceLine, TraceLines};
use crate::error::EngineError;
use crate::resolve::TraceTable;

/// Names the allocation events of a VM.
pub struct MemoryEvents {
    /// The number of the VM in the outputs.
    number: usize,
    version: u8,
    vm: Vm,
    memory: ProcessMemory,
    functions: FunctionNames,
    /// Whether the VM was created during the recording. There may be thousands of such VMs, so their streams have symbols
    /// only of those C functions that their events name.
    is_late: bool,
    /// The symbols that existed at the beginning and that events cannot carry, until they are written.
    first_symbols: Option<FirstSymbols>,
    /// The function at each prototype's address, according to the stream.
    known: AddrMap<u64, Meaning>,
    /// The prototypes whose names are in the stream, or that have no name.
    named: HashSet<u64>,
    /// The room for names, shared by all VMs.
    room: NameRoom,
    /// Whether the stream has the symbols for functions without a name: for Lua, and for C.
    knows_nameless: [bool; 2],
    /// The names of C functions that were looked up, by address.
    c_functions: HashMap<u64, Arc<str>>,
    c_callers: CCallers,
    /// The number of files whose C functions are in the stream.
    c_files: usize,
    /// The names of functions.
    definitions: Definitions,
    traces: StreamTraces,
    trace_lines: TraceLines,
    /// What each trace has allocated, if that is counted.
    by_trace: Option<TraceTable>,
    /// What it allocates for.
    serving: Serving,
    tally: MemoryTally,
}

/// Counts of a VM's events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryTally {
    /// All events.
    pub events: u64,
    /// The number of new allocations.
    pub allocations: u64,
    /// Bytes of the new allocations.
    pub allocated: u64,
    /// Reallocations.
    pub reallocations: u64,
    /// Frees.
    pub frees: u64,
    /// Bytes that were freed.
    pub freed: u64,
    /// Events of functions whose names were lost or had no room.
    pub nameless: u64,
    /// Events of traces whose starts were lost.
    pub lost_starts: u64,
    /// Functions that may have a name that it would take too much work to find.
    pub unsearched: u64,
}

impl MemoryTally {
    /// The sum of both tallies.
    pub fn plus(self, other: Self) -> Self {
        Self {
            events: self.events + other.events,
            allocations: self.allocations + other.allocations,
            allocated: self.allocated + other.allocated,
            reallocations: self.reallocations + other.reallocations,
            frees: self.frees + other.frees,
            freed: self.freed + other.freed,
            nameless: self.nameless + other.nameless,
            lost_starts: self.lost_starts + other.lost_starts,
            unsearched: self.unsearched + other.unsearched,
        }
    }
}

/// The function at a prototype's address, according to a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Meaning {
    first_line: u32,
    /// A hash of the chunkname.
    name: u64,
    /// The length of the chunkname.
    length: u32,
}

impl Meaning {
    pub(super) fn of(prototype: &Prototype) -> Self {
        Self::new(prototype.chunkname.as_bytes(), prototype.key.firstline)
    }

    pub(super) fn new(name: &[u8], first_line: u32) -> Self {
        let mut hasher = DefaultHasher::new();
        hasher.write(name);
        Self { first_line, name: hasher.finish(), length: u32::try_from(name.len()).unwrap_or(u32::MAX) }
    }

    /// The memory that it takes in all tables, in bytes.
    fn room(self) -> usize {
        ENTRY + self.length as usize
    }
}

impl MemoryEvents {
    /// Prepares to name the events of `vm`: reads its traces, and those prototypes that events of this version cannot
    /// describe. `number` is the VM's number in the outputs, `version` the version of the streams. Names take memory of
    /// `room`, which all VMs share.
    pub fn read(process: &Process, vm: &Vm, number: usize, version: u8, room: &NameRoom) -> Self {
        let functions = FunctionNames::read(&process.memory(), vm);
        let mut events = Self::new(process, vm, number, version, functions, room);
        // It runs beside all that attaching has to do.
        events.definitions.look_ahead(&events.memory, vm);
        events.read_symbols(process);
        events
    }

    /// The same for a `vm` that was just created and has the same layout.
    pub fn of_another(&self, process: &Process, vm: &Vm, number: usize) -> Self {
        // Both VMs run the same machine code. The libraries of the new VM may not be loaded yet.
        let by_trace = self.by_trace.as_ref().map(|_| TraceTable::default());
        let functions = self.functions.clone();
        Self { by_trace, is_late: true, ..Self::new(process, vm, number, self.version, functions, &self.room) }
    }

    /// Starts the outputs of the VM, with all symbols so far.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn start(&mut self, c_symbols: &CSymbols, out: &mut MemoryOutputs) -> Result<(), EngineError> {
        self.c_files = c_symbols.files().len();
        let all = (!self.is_late).then_some(c_symbols);
        let first = self.first_symbols.take();
        out.start(self.number, first.as_ref().map_or(&[], |first| &first.symbols), all)
    }

    fn new(process: &Process, vm: &Vm, number: usize, version: u8, functions: FunctionNames, room: &NameRoom) -> Self {
        // The room that this VM takes becomes free with it.
        let room = room.of_another();
        Self {
            number,
            version,
            vm: vm.clone(),
            memory: process.memory(),
            functions,
            is_late: false,
            first_symbols: None,
            known: AddrMap::default(),
            named: HashSet::new(),
            room: room.clone(),
            knows_nameless: [false; 2],
            c_functions: HashMap::new(),
            c_callers: CCallers::default(),
            c_files: 0,
            definitions: Definitions::within(room.clone()),
            traces: StreamTraces::default(),
            trace_lines: TraceLines::default(),
            by_trace: None,
            serving: Serving::default(),
            tally: MemoryTally::default(),
        }
    }

    /// Reads those symbols of the VM that events do not carry. Names of functions are looked up at their first event.
    fn read_symbols(&mut self, process: &Process) {
        let (memory, vm) = (self.memory, self.vm.clone());
        let mut first = FirstSymbols::within(&self.room);
        first.read_prototypes(&memory, &vm, self.version);
        let mut prototypes = Prototypes::default();
        for trace in process.maps().map(|maps| read_traces(&memory, &maps, &vm)).unwrap_or_default() {
            let Some((prototype, line)) = start_of(&memory, &vm, &mut prototypes, &trace) else { continue };
            let (proto, number) = (prototype.key.address, u64::from(trace.number));
            let meaning = Meaning::of(&prototype);
            let start = match self.learn(proto, meaning) {
                Some(is_new) => {
                    first.symbols.extend(is_new.then(|| lua_symbol(&prototype)));
                    Start::At { proto, line, meaning }
                }
                None => Start::Lost,
            };
            let mcode = (trace.mcode.start != 0).then_some(trace.mcode.start);
            for symbol in self.traces.name(number, start, &self.room).symbols {
                first.symbols.push(match symbol {
                    Symbol::Trace(symbol) => Symbol::Trace(TraceSymbol { mcode, ..symbol }),
                    other => other,
                });
            }
        }
        self.first_symbols = Some(first);
    }

    /// The symbol for a function's name, to be written before events of the function or of traces that start in it.
    /// Returned once per function.
    fn name_of(&mut self, proto: u64, meaning: Meaning) -> Option<Symbol> {
        if !self.named.insert(proto) {
            return None;
        }
        let name = self.definitions.name(&self.memory, &self.vm, proto, meaning)?;
        Some(Annotation::FunctionName { proto, name }.to_symbol())
    }

    /// Notes the function at a prototype's address; returns whether that is new. [`None`] if there is no room for it.
    fn learn(&mut self, proto: u64, meaning: Meaning) -> Option<bool> {
        if self.known.get(&proto) == Some(&meaning) {
            return Some(false);
        }
        self.forget(proto);
        if !self.room.take(meaning.room()) {
            return None;
        }
        self.known.insert(proto, meaning);
        Some(true)
    }

    /// Forgets an address; returns whether a prototype was there.
    fn forget(&mut self, proto: u64) -> bool {
        let known = self.known.remove(&proto);
        if known.is_some() {
            self.named.remove(&proto);
            self.definitions.forget(proto);
        }
        known.inspect(|meaning| self.room.give(meaning.room())).is_some()
    }

    /// The VM whose events these are.
    pub fn vm(&self) -> &Vm {
        &self.vm
    }

    /// Whether a record belongs to a trace while the layout of traces is still open.
    #[inline]
    pub fn is_undecided(&self, record: &AllocationRecord) -> bool {
        self.vm.leaves_traces_open() && matches!(record, AllocationRecord::Event(event) if is_on_trace(event))
    }

    /// Takes a VM with more of its layout decided, and forgets what could not be read of its traces.
    pub fn decide(&mut self, vm: Vm) {
        self.vm = vm;
        self.trace_lines = TraceLines::default();
    }

    /// Reports the free of the VM's first block. The VM was closed without a call of its allocator: the block, which is
    /// what `lua_close` leaves to the end, went away with the rest of the allocator's memory.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn free_first_block(&mut self, out: &mut MemoryOutputs) -> Result<(), EngineError> {
        let Some(size) = self.vm.first_block_size() else { return Ok(()) };
        self.tally.freed += size;
        out.event(self.number, &Event::Free { source: Source::Internal, addr: self.vm.main_thread, size })
    }

    /// The counts of the events so far; the caller counts these events from now on.
    pub fn take_tally(&mut self) -> MemoryTally {
        let unsearched = self.definitions.take_unsearched();
        MemoryTally { unsearched, ..std::mem::take(&mut self.tally) }
    }

    /// The number of the VM in the outputs.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Whether a record is the last one of its VM: the free of the VM's first block.
    #[inline]
    pub fn is_last(&self, record: &AllocationRecord) -> bool {
        matches!(record, AllocationRecord::Event(event)
            if event.pointer == self.vm.main_thread && event.kind == AllocationKind::Free as u8)
    }

    /// The counts of the events so far.
    pub fn tally(&self) -> MemoryTally {
        MemoryTally { unsearched: self.definitions.unsearched(), ..self.tally }
    }

    /// Begins a batch: time has passed, so looks again at what may have changed.
    ///
    /// # Errors
    /// The names that were found meanwhile cannot be written to the output.
    pub fn begin_batch(&mut self, out: &mut MemoryOutputs) -> Result<(), EngineError> {
        self.definitions.begin_batch(&self.memory, &self.vm);
        self.trace_lines.begin_batch();
        let late = self.definitions.take_late();
        let mut are_lines_named = false;
        for FoundName { proto, meaning, name, is_in_lines, .. } in late {
            let Some(name) = name else { continue };
            if is_in_lines {
                are_lines_named = true;
                self.c_callers.name(proto, meaning, &name);
                out.name_function(self.number, proto, &name);
            }
            if self.named.contains(&proto) && self.known.get(&proto) == Some(&meaning) {
                out.event(self.number, &Event::Symbol(Annotation::FunctionName { proto, name }.to_symbol()))?;
            }
        }
        // Lines on traces, and callers of C functions, were shown without these names.
        if are_lines_named && out.shows_lines() {
            self.trace_lines.forget();
            self.c_callers.tell_again();
            out.forget_lines(self.number);
        }
        Ok(())
    }

    /// Waits for names that are searched, until then at most.
    ///
    /// # Errors
    /// As [`Self::begin_batch`].
    pub fn finish_names(&mut self, until: Instant, out: &mut MemoryOutputs) -> Result<(), EngineError> {
        while self.definitions.is_searching() && Instant::now() < until {
            thread::sleep(Duration::from_millis(5));
            self.begin_batch(out)?;
        }
        Ok(())
    }

    /// Names an event, and passes it to `out`.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn add(
        &mut self,
        event: &AllocationEvent,
        c_symbols: &mut CSymbols,
        requests: &mut AllocationRequests,
        out: &mut MemoryOutputs,
    ) -> Result<(), EngineError> {
        out.enter_window(event.window);
        let raw = event;
        let source = self.source(event, c_symbols, out)?;
        let place = is_on_trace(event).then(|| TracePlace::of(event));
        let call = self.call_of_c(event, source);
        self.tally.events += 1;
        let &AllocationEvent { pointer, result, old_size, size, .. } = event;
        let event = match AllocationKind::from_u8(event.kind) {
            Some(AllocationKind::Free) => {
                self.tally.frees += 1;
                self.tally.freed += old_size;
                // From now on, other data is at this address.
                if self.forget(pointer) {
                    out.forget_prototype(self.number, pointer);
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
        if let (Some(place), Event::Alloc { size, .. } | Event::Realloc { size, .. }) = (place, &event) {
            self.count_for_trace(place, *size);
        }
        let shown = self.line_on_trace(place, out).or_else(|| self.caller_of_c(call?, out));
        let made = match &event {
            Event::Alloc { size, .. } | Event::Realloc { size, .. } => Some(*size),
            Event::Free { .. } | Event::Symbol(_) => None,
        };
        let request = requests.of_event(self.serving, raw, made);
        match shown {
            Some(line) => out.event_shown(self.number, &event, &event.clone().caused_by(line), Some(request)),
            None => out.event_shown(self.number, &event, &event, Some(request)),
        }
    }

    /// Notes which request it allocates for from now on.
    pub fn serve(&mut self, serving: Serving) {
        self.serving = serving;
    }

    /// Counts the bytes that each trace allocates, from now on.
    pub fn group_by_trace(&mut self) {
        self.by_trace = Some(TraceTable::default());
    }

    /// The bytes that each trace has allocated, if they were counted.
    pub fn by_trace(&self) -> Option<&TraceTable> {
        self.by_trace.as_ref()
    }

    fn count_for_trace(&mut self, place: TracePlace, bytes: u64) {
        let Some(table) = &mut self.by_trace else { return };
        let identity = place.at.and_then(|_| self.traces.identity(place.number));
        match identity.and_then(|identity| self.trace_lines.trace(&self.memory, &self.vm, identity)) {
            Some(trace) => table.add(self.number, trace, bytes),
            None => table.add_gone(bytes),
        }
    }

    /// The source that reports show instead of the trace of an event: the Lua line, if that is certain.
    fn line_on_trace(&mut self, place: Option<TracePlace>, out: &mut MemoryOutputs) -> Option<Source> {
        let place = place.filter(|_| out.shows_lines())?;
        let identity = *self.traces.identity(place.number)?;
        let line = self.trace_lines.line(&self.memory, &self.vm, &mut self.definitions, &identity, place);
        if self.trace_lines.has_forgotten() {
            out.forget_lines(self.number);
            self.c_callers.tell_again();
        }
        let (source, line) = line?;
        if let Some(line) = line {
            out.line(self.number, source, line);
        }
        Some(source)
    }

    /// The call of a C function that an event belongs to, if Lua code has made the call.
    fn call_of_c(&self, event: &AllocationEvent, source: Source) -> Option<CCall> {
        let Source::C { addr: function } = source else { return None };
        let meaning = *self.known.get(&event.caller)?;
        Some(CCall { function, prototype: event.caller, meaning, line: event.line })
    }

    /// The source that reports show instead of a C function: the function with the line that has called it.
    fn caller_of_c(&mut self, call: CCall, out: &mut MemoryOutputs) -> Option<Source> {
        if !out.shows_lines() {
            return None;
        }
        let Self { c_callers, c_functions, memory, vm, definitions, .. } = self;
        let find = || {
            let key = Prototype::key_at(memory, &vm.layout, call.prototype).ok()?;
            let prototype = Prototype::read_alive(memory, vm, key).ok()?;
            // The caller may be gone by now.
            let chunk: Arc<str> = chunk_name(prototype.chunkname.as_bytes()).into();
            let symbol = c_functions.get(&call.function)?;
            (Meaning::of(&prototype) == call.meaning).then(|| {
                let name = definitions.name_in_line(memory, vm, call.prototype, call.meaning);
                let first_line = prototype.key.firstline;
                vec![
                    Frame::Chunk { chunk: chunk.clone() },
                    Frame::Lua { name, chunk: chunk.clone(), first_line, line: None, compiled: false },
                    Frame::Line { chunk, line: call.line },
                    Frame::of_symbol(&demangle(symbol)),
                ]
            })
        };
        let (source, frames) = c_callers.shown(call, find)?;
        if let Some(frames) = frames {
            let line = SourceLine { frames, prototype: call.prototype };
            out.line(self.number, source, TraceLine { line, entered: call.prototype });
        }
        Some(source)
    }

    /// The source of an event. Writes the symbols that it needs first.
    fn source(
        &mut self,
        event: &AllocationEvent,
        c_symbols: &mut CSymbols,
        out: &mut MemoryOutputs,
    ) -> Result<Source, EngineError> {
        Ok(match AllocationSource::from_u8(event.source) {
            Some(AllocationSource::Lua) => self.lua(event, out)?,
            Some(AllocationSource::C) => {
                let addr = self.name_c_function(event.place, c_symbols, out)?;
                self.tally.nameless += u64::from(addr == reserved::NO_C_NAME);
                Source::C { addr }
            }
            Some(AllocationSource::Trace) => self.trace(TracePlace::of(event).number, out)?,
            Some(AllocationSource::LostTrace) => {
                self.tally.lost_starts += 1;
                self.trace_from(event.place, Start::Lost, out)?
            }
            Some(AllocationSource::Internal) | None => Source::Internal,
        })
    }

    fn lua(&mut self, event: &AllocationEvent, out: &mut MemoryOutputs) -> Result<Source, EngineError> {
        let is_known = self.known.contains_key(&event.place);
        self.tally.nameless += u64::from(!is_known);
        let proto = if is_known { event.place } else { NAMELESS };
        if !is_known && !std::mem::replace(&mut self.knows_nameless[0], true) {
            let symbol = Symbol::lua(NAMELESS, b"=[unknown: its name was lost]", 0);
            out.event(self.number, &Event::Symbol(symbol))?;
        }
        Ok(Source::Lua { proto, line: u64::from(event.line) })
    }

    /// Notes a prototype that later events name.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn name_prototype(&mut self, seen: &PrototypeSeen, out: &mut MemoryOutputs) -> Result<(), EngineError> {
        let name = match seen.name() {
            Some(name) if (seen.name_length as usize) <= NAME_SIZE => Cow::Borrowed(name),
            Some(name) => Cow::Owned(self.long_name(seen, name)),
            None => Cow::Borrowed(&b"=[unknown: not readable]"[..]),
        };
        let meaning = Meaning::new(&name, seen.first_line);
        let learned = self.learn(seen.prototype, meaning);
        match learned {
            Some(true) => {
                let symbol = Symbol::lua(seen.prototype, &name, u64::from(seen.first_line));
                out.event(self.number, &Event::Symbol(symbol))?;
            }
            Some(false) => {}
            None => {
                out.forget_prototype(self.number, seen.prototype);
                return Ok(());
            }
        }
        if let Some(name) = self.name_of(seen.prototype, meaning) {
            out.event(self.number, &Event::Symbol(name))?;
        }
        // The kernel half repeats a prototype after it has dropped it from its own table.
        if learned == Some(true) {
            self.definitions.see(&self.memory, &self.vm, seen.prototype);
        }
        Ok(())
    }

    /// Reads a name that did not arrive completely from its original place, if it is still there.
    fn long_name(&self, seen: &PrototypeSeen, beginning: &[u8]) -> Vec<u8> {
        /// The longest name to read in bytes. Longer ones are the source code of a chunk, not a name.
        const LONGEST: usize = 1 << 16;
        let text = seen.chunkname.wrapping_add(u64::from(self.vm.layout.sizeof_str));
        let read = || self.memory.read_bytes(text, LONGEST.min(seen.name_length as usize)).ok();
        let whole = read().filter(|name| {
            // Of a string that was freed, only the end may be wrong; and another one may have taken its place.
            let is_string = has_string(&self.memory, &self.vm, seen.chunkname) == Ok(true);
            name.starts_with(beginning) && is_string && read().as_ref() == Some(name)
        });
        whole.unwrap_or_else(|| [beginning, b"..."].concat())
    }

    /// Names a C function; returns its address in the outputs.
    fn name_c_function(
        &mut self,
        address: u64,
        c_symbols: &mut CSymbols,
        out: &mut MemoryOutputs,
    ) -> Result<u64, EngineError> {
        // Libraries with C functions for Lua stay loaded until their VM is closed (`lj_cf_package_unloadlib`,
        // `lib_package.c`).
        if self.c_functions.contains_key(&address) {
            return Ok(address);
        }
        if !self.room.take(ENTRY) {
            if !std::mem::replace(&mut self.knows_nameless[1], true) {
                let symbol = Symbol::c(reserved::NO_C_NAME, "[unknown: no room for its name]");
                out.event(self.number, &Event::Symbol(symbol))?;
            }
            return Ok(reserved::NO_C_NAME);
        }
        let (symbol, has_start) = c_symbols.find(address);
        for file in c_symbols.files()[self.c_files..].iter().filter(|_| !self.is_late) {
            symbols(file).try_for_each(|symbol| out.symbol_of_stream(self.number, symbol))?;
        }
        self.c_files = c_symbols.files().len();
        let known = self.functions.c_function(address).or_else(|| self.functions.builtin_at(address));
        let name = match (&symbol.name, known) {
            (Some(name), _) => name.to_string(),
            (None, Some(name)) => name.to_owned(),
            (None, None) => symbol.to_string(),
        };
        self.c_functions.insert(address, name.as_str().into());
        out.symbol_of_reports(self.number, Symbol::c(address, &name));
        // Streams have no sizes of functions. Without a symbol of its own, this function would get its neighbour's name.
        if !has_start || self.is_late {
            out.symbol_of_stream(self.number, Symbol::c(address, &name))?;
        }
        Ok(address)
    }

    /// Notes a trace that later events name.
    pub fn see_trace(&mut self, seen: &TraceSeen) {
        self.traces.see(seen);
    }

    /// The source for a trace that was named.
    fn trace(&mut self, number: u64, out: &mut MemoryOutputs) -> Result<Source, EngineError> {
        let start = self.traces.start(number).and_then(|(proto, line)| {
            let meaning = *self.known.get(&proto)?;
            Some(Start::At { proto, line, meaning })
        });
        self.tally.lost_starts += u64::from(start.is_none());
        self.trace_from(number, start.unwrap_or(Start::Lost), out)
    }

    /// The source for a trace with this start. Writes the symbols that it needs first.
    fn trace_from(&mut self, number: u64, start: Start, out: &mut MemoryOutputs) -> Result<Source, EngineError> {
        match self.version {
            // In these versions, traces are not symbols in events, but sources with the address of their machine code.
            ..SYMBOLS_AS_EVENTS => {
                let mcode = self.traces.identity(number).filter(|_| start != Start::Lost).map(|known| known.mcode);
                Ok(Source::Trace { number, mcode: (self.version == 2).then_some(mcode.unwrap_or(0)) })
            }
            SYMBOLS_AS_EVENTS.. => {
                if let Start::At { proto, meaning, .. } = start
                    && let Some(name) = self.name_of(proto, meaning)
                {
                    out.event(self.number, &Event::Symbol(name))?;
                }
                let named = self.traces.name(number, start, &self.room);
                for symbol in named.symbols {
                    out.event(self.number, &Event::Symbol(symbol))?;
                }
                Ok(Source::Trace { number: named.number, mcode: None })
            }
        }
    }
}

/// Whether a trace has caused the event.
fn is_on_trace(event: &AllocationEvent) -> bool {
    [AllocationSource::Trace as u8, AllocationSource::LostTrace as u8].contains(&event.source)
}

fn lua_symbol(prototype: &Prototype) -> Symbol {
    Symbol::lua(prototype.key.address, prototype.chunkname.as_bytes(), u64::from(prototype.key.firstline))
}

/// The function and the line at which a trace starts.
fn start_of(
    memory: &ProcessMemory,
    vm: &Vm,
    prototypes: &mut Prototypes,
    trace: &lj_trace_luajit::Trace,
) -> Option<(Arc<Prototype>, u32)> {
    let key = Prototype::key_at(memory, &vm.layout, trace.startpt).ok()?;
    let prototype = prototypes.get(memory, vm, key).ok()?;
    let offset = trace.startpc.checked_sub(trace.startpt.checked_add(vm.layout.sizeof_pt.into())?)?;
    let line = prototype.line_at(u32::try_from(offset / 4).ok()?)?;
    Some((prototype, line))
}
