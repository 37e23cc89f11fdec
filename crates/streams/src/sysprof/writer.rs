//! Writes samples.

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::Arc;

use super::splice::{Splicer, StackFrame};
use super::{
    EVENT_C, EVENT_LUA, EVENT_TRACE, FRAME_CFUNC, FRAME_FFUNC, FRAME_HOST_LAST, FRAME_LFUNC, FRAME_LUA_LAST, LuaFrame,
    MAGIC, StreamSample, TraceSample, VERSION,
};
use crate::bytes::{put_prologue, put_uleb};
use crate::record::RecordWriter;
use crate::symbols::UNKNOWN;
use crate::{Annotation, Symbol, SymbolTable, VmState, WriteError, reserved, symtab};

/// The name of a function, and whether it was compiled into a trace.
type FunctionName = (Option<Arc<str>>, bool);

/// The most names of one function: fewer than the bytes of its `GCproto`, since each name needs an address inside it.
const MAX_NAMES: usize = 64;

/// Writes a sysprof stream (`ljs` 3, `ljp` 2).
///
/// There are two levels. [`sample`](Self::sample), [`trace_sample`](Self::trace_sample) and [`symbol`](Self::symbol) write
/// records as they are. [`stack`](Self::stack) and the `define_*` methods are for recorders: they write samples that the
/// reference parser shows completely, and each symbol once, when it is first needed.
///
/// A writer that is dropped ends its stream, but only [`finish`](Self::finish) says whether that worked.
#[derive(Debug)]
pub struct SysprofWriter<W: Write> {
    records: RecordWriter<W>,
    symbols: SymbolTable,
    /// The names that callers use for a function, and whether it was compiled, by prototype.
    function_names: HashMap<u64, Vec<FunctionName>>,
    /// The addresses of names without an address of their own.
    named: HashMap<Arc<str>, u64>,
    /// The most bytes for all of this.
    limit: usize,
    /// The approximate bytes that all of this takes.
    bytes: usize,
    /// Whether symbols were forgotten. Readers then know symbols that are not known here.
    has_forgotten: bool,
    splicer: Splicer,
}

/// The approximate bytes of memory that a symbol takes besides its name: entries in several tables.
const SYMBOL_SIZE: usize = 160;

/// The most names without an address to know at a time. There are more addresses than that.
const MAX_NAMED: usize = 1 << 15;

/// The most frames of a sample. All of them have to be known when the sample is written.
const MAX_SAMPLE: usize = 1 << 13;

const _: () = assert!((MAX_NAMED + MAX_SAMPLE) as u64 <= reserved::END - reserved::NAMES);

/// The symbols in every stream of lj-trace.
fn own_symbols() -> [Symbol; 4] {
    [
        Annotation::Writer.to_symbol(),
        Symbol::c(reserved::SPLICE, reserved::SPLICE_NAME),
        Symbol::c(reserved::NO_STACK, "[unknown: no stack]"),
        Symbol::c(reserved::END, UNKNOWN),
    ]
}

impl<W: Write> SysprofWriter<W> {
    /// Starts a stream with these symbols and with lj-trace's own symbols ([`reserved`]).
    ///
    /// # Errors
    /// As for all methods: the output cannot be written.
    pub fn new(out: W, symbols: &SymbolTable) -> Result<Self, WriteError> {
        let mut symbols = symbols.clone();
        symbols.extend(own_symbols());
        Self::with_symbols(out, symtab::VERSION, VERSION, symbols.iter().collect::<Vec<_>>())
    }

    /// Starts a stream of these versions with exactly these symbols in this order.
    ///
    /// # Errors
    /// As for all methods: the output cannot be written.
    pub fn with_symbols(
        out: W,
        symtab_version: u8,
        version: u8,
        symbols: impl IntoIterator<Item = Symbol>,
    ) -> Result<Self, WriteError> {
        let mut records = RecordWriter::new(out);
        let mut table = SymbolTable::new();
        records.record(|out| {
            symtab::put_start(out, symtab_version);
            for symbol in symbols {
                symtab::put_symbol(out, symtab_version, &symbol);
                table.insert(symbol);
            }
            symtab::put_end(out);
            put_prologue(out, MAGIC, version);
        })?;
        Ok(Self {
            records,
            symbols: table,
            function_names: HashMap::new(),
            named: HashMap::new(),
            limit: usize::MAX,
            bytes: 0,
            has_forgotten: false,
            splicer: Splicer::default(),
        })
    }

    /// Limits the memory for written symbols to about this many bytes. [`Self::make_room`] enforces the limit.
    pub fn limit_memory(&mut self, bytes: usize) {
        self.limit = bytes;
    }

    /// Forgets the written symbols once they exceed the memory limit. Each is then written again before its next use. Call
    /// it between samples, before the first `define_*` of a sample.
    pub fn make_room(&mut self) {
        if self.bytes <= self.limit && self.named.len() <= MAX_NAMED {
            return;
        }
        self.symbols = own_symbols().into_iter().collect();
        self.function_names = HashMap::new();
        self.named = HashMap::new();
        self.bytes = 0;
        self.has_forgotten = true;
    }

    /// Writes a sample as it is.
    ///
    /// # Errors
    /// Also of kind `InvalidInput`, with nothing written, if the format cannot represent the sample: the state `TRACE`, a
    /// Lua stack in a state that has none, or an address 0.
    pub fn sample(&mut self, sample: &StreamSample<'_>) -> Result<(), WriteError> {
        let problem = if sample.vmstate == VmState::Trace {
            Some("a sample in the state TRACE has no stacks in a sysprof stream")
        } else if !sample.vmstate.has_lua_stack() && !sample.lua.is_empty() {
            Some("a sample in this state has no Lua stack in a sysprof stream")
        } else if sample.host.contains(&FRAME_HOST_LAST) {
            Some("a host frame of a sysprof stream cannot have the address 0")
        } else {
            None
        };
        if let Some(problem) = problem {
            let source = io::Error::new(io::ErrorKind::InvalidInput, problem);
            return Err(self.records.error(source));
        }
        self.records.record(|out| put_sample(out, sample))
    }

    /// Writes a sample on a trace in the form of the in-process profiler. The reference parser shows it as a bare `;`.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn trace_sample(&mut self, sample: &TraceSample) -> Result<(), WriteError> {
        self.records.record(|out| {
            out.push(VmState::Trace as u8);
            put_uleb(out, sample.number);
            put_uleb(out, sample.proto);
            put_uleb(out, sample.line);
        })
    }

    /// Writes a symbol that has appeared, or whose address has changed its meaning.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn symbol(&mut self, symbol: Symbol) -> Result<(), WriteError> {
        self.records.record(|out| {
            out.push(match symbol {
                Symbol::Lua { .. } => EVENT_LUA,
                Symbol::C { .. } => EVENT_C,
                Symbol::Trace(_) => EVENT_TRACE,
            });
            symtab::put_fields(out, &symbol, false);
        })?;
        // States are not symbols for look-ups, and each sample may have one.
        if !matches!(symbol, Symbol::C { addr: ..reserved::NAMES, .. }) {
            let name = match &symbol {
                Symbol::Lua { chunk, .. } => chunk.len(),
                Symbol::C { name, .. } => name.len(),
                Symbol::Trace(_) => 0,
            };
            self.bytes += SYMBOL_SIZE + name;
            self.symbols.insert(symbol);
        }
        Ok(())
    }

    /// Writes an annotation.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn annotate(&mut self, annotation: &Annotation) -> Result<(), WriteError> {
        self.symbol(annotation.to_symbol())
    }

    /// Makes the stream say from here on that the prototype at `proto` is this function. Returns the address that
    /// represents it under this name. A function that is `compiled` into traces has another address inside the prototype
    /// than one that is not. Writes nothing if the stream already says so. If a prototype was freed and its memory reused,
    /// the address gets its new meaning.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn define_lua(
        &mut self,
        proto: u64,
        chunk: &[u8],
        first_line: u64,
        name: Option<&str>,
        compiled: bool,
    ) -> Result<u64, WriteError> {
        let known = self.symbols.lua(proto);
        let same = known.is_some_and(|known| *known.chunk == *chunk && known.first_line == first_line);
        let names = self.function_names.entry(proto).or_default();
        if !same {
            names.clear();
        }
        if let Some(index) = names.iter().position(|known| (known.0.as_deref(), known.1) == (name, compiled)) {
            return Ok(proto.wrapping_add(index as u64));
        }
        if names.len() >= MAX_NAMES {
            return Ok(proto);
        }
        let address = proto.wrapping_add(names.len() as u64);
        let name: Option<Arc<str>> = name.map(Into::into);
        names.push((name.clone(), compiled));
        self.bytes += SYMBOL_SIZE + name.as_ref().map_or(0, |name| name.len());
        self.symbol(Symbol::lua(address, chunk, first_line))?;
        if let Some(name) = name {
            self.annotate(&Annotation::FunctionName { proto: address, name })?;
        }
        if compiled {
            self.annotate(&Annotation::Compiled { proto: address })?;
        }
        Ok(address)
    }

    /// Makes the stream say from here on that the prototype at `proto` is this function, with any name.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn define_prototype(&mut self, proto: u64, chunk: &[u8], first_line: u64) -> Result<(), WriteError> {
        let known = self.symbols.lua(proto);
        if known.is_some_and(|known| *known.chunk == *chunk && known.first_line == first_line) {
            return Ok(());
        }
        self.define_lua(proto, chunk, first_line, None, false).map(drop)
    }

    /// Gives the code address `pc` this name in the stream from here on, with a symbol for the whole function `start..end`
    /// and a boundary after it. Writes nothing if `pc` already has this name.
    ///
    /// For an address without a symbol pass `pc` as `start`, `pc + 1` as `end` and a name such as
    /// `[unknown: no symbol]`.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn define_c(&mut self, pc: u64, start: u64, end: u64, name: &str) -> Result<(), WriteError> {
        let has_name = |symbols: &SymbolTable| symbols.c(pc).is_some_and(|known| *known.name == *name.as_bytes());
        if pc < reserved::END {
            return Ok(());
        }
        if self.has_forgotten {
            // Readers may know symbols around it that are not known here, so each address gets a symbol of its own.
            let known = self.symbols.c(pc).filter(|known| known.start == pc);
            let is_known = known.is_some_and(|known| *known.name == *name.as_bytes());
            return if is_known { Ok(()) } else { self.symbol(Symbol::c(pc, name)) };
        }
        if has_name(&self.symbols) {
            return Ok(());
        }
        // The function may lie around one that is known; what is known behind `end` must keep its name.
        if end > start && self.symbols.c(end).is_none_or(|known| known.start != end) {
            let behind = self.symbols.c(end).map_or_else(|| UNKNOWN.as_bytes().into(), |known| known.name);
            self.symbol(Symbol::C { addr: end, name: behind })?;
        }
        self.symbol(Symbol::c(start.max(reserved::END), name))?;
        if !has_name(&self.symbols) {
            // Another function starts between `start` and `pc`.
            self.symbol(Symbol::c(pc, name))?;
        }
        Ok(())
    }

    /// Makes the stream know a trace from here on.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn define_trace(&mut self, trace: symtab::TraceSymbol) -> Result<(), WriteError> {
        if self.symbols.trace(trace.number) == Some(&trace) {
            return Ok(());
        }
        self.symbol(Symbol::Trace(trace))
    }

    /// Returns an address for a function that has a name but no address for streams, such as a fast function that
    /// Tarantool's LuaJIT does not have. The same name always gets the same address.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn address_of_name(&mut self, name: &str) -> Result<u64, WriteError> {
        if let Some(&addr) = self.named.get(name) {
            return Ok(addr);
        }
        let addr = reserved::NAMES + self.named.len() as u64;
        if addr >= reserved::END {
            return Ok(reserved::NO_STACK);
        }
        self.symbol(Symbol::c(addr, name))?;
        self.bytes += SYMBOL_SIZE + name.len();
        self.named.insert(name.into(), addr);
        Ok(addr)
    }

    /// Writes a sample so that the reference parser, which knows only the symbols written so far, shows all frames of its
    /// merged stack in order. See [`super::splice`].
    ///
    /// `frames` are root first. All states are allowed, including `TRACE`.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn stack(&mut self, vmstate: VmState, frames: &[StackFrame<'_>]) -> Result<(), WriteError> {
        let mut splicer = std::mem::take(&mut self.splicer);
        let result = self.stack_with(&mut splicer, vmstate, frames);
        self.splicer = splicer;
        result
    }

    fn stack_with(
        &mut self,
        splicer: &mut Splicer,
        vmstate: VmState,
        frames: &[StackFrame<'_>],
    ) -> Result<(), WriteError> {
        splicer.frames.clear();
        for frame in frames {
            let frame = match *frame {
                StackFrame::Fast { name } => match super::fast_function_id(name) {
                    Some(ffid) => LuaFrame::Ffunc { ffid },
                    None => LuaFrame::Cfunc { addr: self.address_of_name(name)? },
                },
                StackFrame::Lua { proto, line } => LuaFrame::Lfunc { proto, line },
                StackFrame::Host { addr } => {
                    LuaFrame::Cfunc { addr: if addr == 0 { reserved::NO_STACK } else { addr } }
                }
            };
            splicer.frames.push(frame);
        }
        let sample = splicer.splice(vmstate, &self.symbols);
        if sample.vmstate != vmstate {
            self.annotate(&Annotation::State(vmstate))?;
        }
        self.records.record(|out| put_sample(out, &sample))
    }

    /// Passes everything written so far on to the output.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn flush(&mut self) -> Result<(), WriteError> {
        self.records.flush()
    }

    /// Writes the epilogue, flushes, and returns the output.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn finish(self) -> Result<W, WriteError> {
        self.records.finish()
    }
}

fn put_sample(out: &mut Vec<u8>, sample: &StreamSample<'_>) {
    out.push(sample.vmstate as u8);
    if sample.vmstate.has_lua_stack() {
        for frame in sample.lua {
            match *frame {
                LuaFrame::Lfunc { proto, line } => {
                    out.push(FRAME_LFUNC);
                    put_uleb(out, proto);
                    put_uleb(out, line);
                }
                LuaFrame::Cfunc { addr } => {
                    out.push(FRAME_CFUNC);
                    put_uleb(out, addr);
                }
                LuaFrame::Ffunc { ffid } => {
                    out.push(FRAME_FFUNC);
                    put_uleb(out, ffid);
                }
            }
        }
        out.push(FRAME_LUA_LAST);
    }
    for &addr in sample.host {
        put_uleb(out, addr);
    }
    put_uleb(out, FRAME_HOST_LAST);
}
