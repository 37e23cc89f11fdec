//! Memprof events (`ljm`): a VM's allocations, reallocations and frees.
//!
//! | version | Tarantool since | what is new |
//! |---|---|---|
//! | 1 | 2020-10 | allocations on traces count as internal |
//! | 2 | 2021-09 | the source "trace", with the address of its machine code |
//! | 3 | 2021-11 | symbols as events; the source "trace" without that address |

use std::io::{Read, Write};

use super::bytes::{ByteReader, put_prologue, put_uleb};
use super::record::{EPILOGUE, RecordWriter};
use super::{StreamError, Symbol, WriteError, symtab};

/// The newest version: the version that the current reference parser accepts.
pub const VERSION: u8 = 3;

const MAGIC: [u8; 3] = *b"ljm";

const KIND_MASK: u8 = 0b11;
const SYMBOL: u8 = 0;
const ALLOC: u8 = 1;
const FREE: u8 = 2;
const REALLOC: u8 = 3;

const SOURCE_SHIFT: u8 = 2;
const INTERNAL: u8 = 1;
const LUA: u8 = 2;
const C: u8 = 3;
const TRACE: u8 = 4;

/// What has allocated, reallocated or freed memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// The VM itself: the garbage collector, the JIT compiler, the parser.
    Internal,
    /// A Lua function, or a fast function that it called.
    Lua {
        /// The address of the prototype.
        proto: u64,
        /// The current line.
        line: u64,
    },
    /// A C function.
    C {
        /// The address of the function.
        addr: u64,
    },
    /// A trace.
    Trace {
        /// The number of the trace.
        number: u64,
        /// The address of its machine code; only version 2 has it.
        mcode: Option<u64>,
    },
}

/// An event. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Memory was allocated.
    Alloc {
        /// What has allocated it.
        source: Source,
        /// The address of the new memory.
        addr: u64,
        /// Its size.
        size: u64,
    },
    /// Memory was freed.
    Free {
        /// What has freed it.
        source: Source,
        /// The address of the memory.
        addr: u64,
        /// Its size.
        size: u64,
    },
    /// Memory was resized.
    Realloc {
        /// What has resized it.
        source: Source,
        /// The previous address.
        old_addr: u64,
        /// The previous size.
        old_size: u64,
        /// The new address.
        addr: u64,
        /// The new size.
        size: u64,
    },
    /// A symbol has appeared, or an address has changed its meaning.
    Symbol(Symbol),
}

impl Event {
    /// The same event with another source.
    pub fn caused_by(mut self, by: Source) -> Self {
        if let Self::Alloc { source, .. } | Self::Free { source, .. } | Self::Realloc { source, .. } = &mut self {
            *source = by;
        }
        self
    }
}

/// Reads the events of a stream.
#[derive(Debug)]
pub struct MemprofReader<R> {
    bytes: ByteReader<R>,
    version: u8,
    finished: bool,
}

impl<R: Read> MemprofReader<R> {
    pub(super) fn after_prologue(bytes: ByteReader<R>, version: u8) -> Result<Self, StreamError> {
        if !(1..=VERSION).contains(&version) {
            return Err(StreamError::UnsupportedVersion { part: "the events (ljm)", found: version, newest: VERSION });
        }
        Ok(Self { bytes, version, finished: false })
    }

    /// The version of the events: 1, 2 or 3.
    pub fn version(&self) -> u8 {
        self.version
    }

    /// The number of bytes of the stream that have been read.
    pub fn offset(&self) -> u64 {
        self.bytes.offset()
    }

    /// The next event, or `None` after the epilogue.
    ///
    /// # Errors
    /// [`StreamError::Truncated`] if the stream ends without its epilogue: everything before is valid.
    #[inline]
    pub fn next_event(&mut self) -> Result<Option<Event>, StreamError> {
        if self.finished {
            return Ok(None);
        }
        let start = self.bytes.offset();
        let header = self.bytes.byte("the events")?;
        if header == EPILOGUE {
            self.finished = true;
            return Ok(None);
        }
        let (kind, source) = (header & KIND_MASK, header >> SOURCE_SHIFT);
        if kind == SYMBOL {
            return self.symbol(source, start).map(|symbol| Some(Event::Symbol(symbol)));
        }
        let source = self.source(source, start)?;
        const PART: &str = "an event";
        let addr = self.bytes.uleb(PART)?;
        let size = self.bytes.uleb(PART)?;
        Ok(Some(match kind {
            ALLOC => Event::Alloc { source, addr, size },
            FREE => Event::Free { source, addr, size },
            _ => Event::Realloc {
                source,
                old_addr: addr,
                old_size: size,
                addr: self.bytes.uleb(PART)?,
                size: self.bytes.uleb(PART)?,
            },
        }))
    }

    #[inline]
    fn source(&mut self, source: u8, start: u64) -> Result<Source, StreamError> {
        const PART: &str = "the source of an event";
        Ok(match source {
            INTERNAL => Source::Internal,
            LUA => Source::Lua { proto: self.bytes.uleb(PART)?, line: self.bytes.uleb(PART)? },
            C => Source::C { addr: self.bytes.uleb(PART)? },
            TRACE if self.version >= 2 => Source::Trace {
                number: self.bytes.uleb(PART)?,
                mcode: if self.version == 2 { Some(self.bytes.uleb(PART)?) } else { None },
            },
            _ => return Err(StreamError::invalid(start, "an unknown source of an event")),
        })
    }

    fn symbol(&mut self, source: u8, start: u64) -> Result<Symbol, StreamError> {
        match source {
            LUA if self.version >= 3 => symtab::read_lua(&mut self.bytes),
            C if self.version >= 3 => symtab::read_c(&mut self.bytes),
            TRACE if self.version >= 3 => symtab::read_trace(&mut self.bytes, false),
            _ => Err(StreamError::invalid(start, "an unknown kind of event")),
        }
    }
}

/// Writes a memprof stream of any version.
///
/// A writer that is dropped ends its stream, but only [`finish`](Self::finish) says whether that worked.
#[derive(Debug)]
pub struct MemprofWriter<W: Write> {
    records: RecordWriter<W>,
    version: u8,
}

impl<W: Write> MemprofWriter<W> {
    /// Starts a stream. `version` is the version of the events. The symbol table gets the version that was introduced with
    /// it (1, 2, 3), and leaves out symbols for which that version has no entry.
    ///
    /// # Errors
    /// As for all methods: the output cannot be written.
    pub fn new(out: W, version: u8, symbols: impl IntoIterator<Item = Symbol>) -> Result<Self, WriteError> {
        let version = version.clamp(1, VERSION);
        let mut records = RecordWriter::new(out);
        records.record(|out| {
            symtab::put_start(out, version);
            for symbol in symbols {
                symtab::put_symbol(out, version, &symbol);
            }
            symtab::put_end(out);
            put_prologue(out, MAGIC, version);
        })?;
        Ok(Self { records, version })
    }

    /// Writes an event in the form of the version: version 1 writes allocations on a trace as internal, and versions before
    /// 3 leave out symbols.
    ///
    /// # Errors
    /// The output cannot be written.
    #[inline]
    pub fn event(&mut self, event: &Event) -> Result<(), WriteError> {
        let version = self.version;
        match event {
            Event::Symbol(_) if version < 3 => Ok(()),
            Event::Symbol(symbol) => self.records.record(|out| {
                let source = match symbol {
                    Symbol::Lua { .. } => LUA,
                    Symbol::C { .. } => C,
                    Symbol::Trace(_) => TRACE,
                };
                out.push(SYMBOL | source << SOURCE_SHIFT);
                symtab::put_fields(out, symbol, false);
            }),
            Event::Alloc { source, addr, size } => self.records.record(|out| {
                put_source(out, version, ALLOC, *source);
                put_uleb(out, *addr);
                put_uleb(out, *size);
            }),
            Event::Free { source, addr, size } => self.records.record(|out| {
                put_source(out, version, FREE, *source);
                put_uleb(out, *addr);
                put_uleb(out, *size);
            }),
            Event::Realloc { source, old_addr, old_size, addr, size } => self.records.record(|out| {
                put_source(out, version, REALLOC, *source);
                put_uleb(out, *old_addr);
                put_uleb(out, *old_size);
                put_uleb(out, *addr);
                put_uleb(out, *size);
            }),
        }
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

/// Appends the header of an event and its source.
#[inline]
fn put_source(out: &mut Vec<u8>, version: u8, kind: u8, source: Source) {
    match source {
        Source::Lua { proto, line } => {
            out.push(kind | LUA << SOURCE_SHIFT);
            put_uleb(out, proto);
            put_uleb(out, line);
        }
        Source::C { addr } => {
            out.push(kind | C << SOURCE_SHIFT);
            put_uleb(out, addr);
        }
        Source::Trace { number, mcode } if version >= 2 => {
            out.push(kind | TRACE << SOURCE_SHIFT);
            put_uleb(out, number);
            if version == 2 {
                put_uleb(out, mcode.unwrap_or(0));
            }
        }
        Source::Internal | Source::Trace { .. } => out.push(kind | INTERNAL << SOURCE_SHIFT),
    }
}
