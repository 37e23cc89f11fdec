//! The symbol table (`ljs`) at the start of every stream, and its entries, which may also come later as events.
//!
//! | version | Tarantool since | entries |
//! |---|---|---|
//! | 1 | 2020-10 | Lua functions |
//! | 2 | 2021-09 | + traces (tag 1) with the address of their machine code |
//! | 3 | 2022-03 | + C functions (tag 1); traces (tag 2) without that address |

use std::io::Read;
use std::sync::Arc;

use super::StreamError;
use super::bytes::{ByteReader, put_prologue, put_string, put_uleb};

/// The newest version: the version that the current reference parsers accept.
pub const VERSION: u8 = 3;

const MAGIC: [u8; 3] = *b"ljs";
const FINAL: u8 = 0x80;
const LUA: u8 = 0;

/// An entry of the symbol table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Symbol {
    /// A prototype of a Lua function.
    Lua {
        /// Address of the `GCproto`.
        addr: u64,
        /// Chunkname as LuaJIT keeps it: `@path`, `=name` or source text.
        chunk: Arc<[u8]>,
        /// Line where the function is defined; 0 for a main chunk.
        first_line: u64,
    },
    /// A C function. It reaches up to the next symbol, because the format has no sizes.
    C {
        /// The start of the function.
        addr: u64,
        /// The name. The format does not demangle it.
        name: Arc<[u8]>,
    },
    /// A trace.
    Trace(TraceSymbol),
}

/// LuaJIT's numbers of traces are below this. If lj-trace reuses a number for a trace with another start, its streams add
/// this value to the number.
pub const GENERATION: u64 = 1 << 16;

/// The end of such numbers. Numbers from here on do not belong to traces.
const GENERATIONS_END: u64 = GENERATION << 12;

/// LuaJIT's number of a trace with this number in a stream.
pub const fn own_number(number: u64) -> u64 {
    if number < GENERATIONS_END { number % GENERATION } else { number }
}

/// A trace and where it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceSymbol {
    /// Its number.
    pub number: u64,
    /// Address of its machine code; only symbol tables of version 2 have it.
    pub mcode: Option<u64>,
    /// The address of the prototype in which it starts.
    pub proto: u64,
    /// The line at which it starts.
    pub line: u64,
}

impl Symbol {
    /// A symbol for a Lua function.
    pub fn lua(addr: u64, chunk: &[u8], first_line: u64) -> Self {
        Self::Lua { addr, chunk: chunk.into(), first_line }
    }

    /// A symbol for a C function.
    pub fn c(addr: u64, name: &str) -> Self {
        Self::C { addr, name: name.as_bytes().into() }
    }
}

/// Reads a complete symbol table: its version and its entries in order.
pub(super) fn read<R: Read>(bytes: &mut ByteReader<R>) -> Result<(u8, Vec<Symbol>), StreamError> {
    let mut start = [0; 3];
    for at in 0..start.len() {
        match bytes.byte("the magic") {
            Ok(byte) => start[at] = byte,
            Err(error) if error.is_truncation() => return Err(not_a_stream(&start[..at])),
            Err(error) => return Err(error),
        }
    }
    if start != MAGIC {
        return Err(not_a_stream(&start));
    }
    let [version, ..] = bytes.array::<4>("the prologue of the symbol table")?;
    if !(1..=VERSION).contains(&version) {
        return Err(StreamError::UnsupportedVersion {
            part: "the symbol table (ljs)",
            found: version,
            newest: VERSION,
        });
    }
    let mut symbols = Vec::new();
    loop {
        let offset = bytes.offset();
        let header = bytes.byte("the symbol table")?;
        if header & FINAL != 0 {
            return Ok((version, symbols));
        }
        symbols.push(match (header, version) {
            (LUA, _) => read_lua(bytes)?,
            (1, 2) => read_trace(bytes, true)?,
            (1, 3..) => read_c(bytes)?,
            (2, 3..) => read_trace(bytes, false)?,
            _ => return Err(StreamError::invalid(offset, "an unknown kind of symbol")),
        });
    }
}

fn not_a_stream(start: &[u8]) -> StreamError {
    if start.is_empty() {
        return StreamError::Empty;
    }
    StreamError::NotAStream { start: String::from_utf8_lossy(start).into_owned() }
}

/// Reads the fields of a Lua function, after the header.
pub(super) fn read_lua<R: Read>(bytes: &mut ByteReader<R>) -> Result<Symbol, StreamError> {
    const PART: &str = "the symbol of a Lua function";
    let addr = bytes.uleb(PART)?;
    let chunk = bytes.string(PART)?;
    Ok(Symbol::Lua { addr, chunk, first_line: bytes.uleb(PART)? })
}

/// Reads the fields of a C function, after the header.
pub(super) fn read_c<R: Read>(bytes: &mut ByteReader<R>) -> Result<Symbol, StreamError> {
    const PART: &str = "the symbol of a C function";
    let addr = bytes.uleb(PART)?;
    Ok(Symbol::C { addr, name: bytes.string(PART)? })
}

/// Reads the fields of a trace, after the header.
pub(super) fn read_trace<R: Read>(bytes: &mut ByteReader<R>, with_mcode: bool) -> Result<Symbol, StreamError> {
    const PART: &str = "the symbol of a trace";
    Ok(Symbol::Trace(TraceSymbol {
        number: bytes.uleb(PART)?,
        mcode: if with_mcode { Some(bytes.uleb(PART)?) } else { None },
        proto: bytes.uleb(PART)?,
        line: bytes.uleb(PART)?,
    }))
}

/// Appends the prologue of a symbol table of this version.
pub(super) fn put_start(out: &mut Vec<u8>, version: u8) {
    put_prologue(out, MAGIC, version);
}

/// Appends an entry of a symbol table. Leaves out symbols for which the version has no entry.
pub(super) fn put_symbol(out: &mut Vec<u8>, version: u8, symbol: &Symbol) {
    let tag = match (symbol, version) {
        (Symbol::Lua { .. }, _) => LUA,
        (Symbol::Trace(_), 2) | (Symbol::C { .. }, 3..) => 1,
        (Symbol::Trace(_), 3..) => 2,
        (Symbol::Trace(_) | Symbol::C { .. }, _) => return,
    };
    out.push(tag);
    put_fields(out, symbol, version == 2);
}

/// Appends the fields of a symbol, without the header.
pub(super) fn put_fields(out: &mut Vec<u8>, symbol: &Symbol, with_mcode: bool) {
    match symbol {
        Symbol::Lua { addr, chunk, first_line } => {
            put_uleb(out, *addr);
            put_string(out, chunk);
            put_uleb(out, *first_line);
        }
        Symbol::C { addr, name } => {
            put_uleb(out, *addr);
            put_string(out, name);
        }
        Symbol::Trace(trace) => {
            put_uleb(out, trace.number);
            if with_mcode {
                put_uleb(out, trace.mcode.unwrap_or(0));
            }
            put_uleb(out, trace.proto);
            put_uleb(out, trace.line);
        }
    }
}

/// Appends the end of a symbol table.
pub(super) fn put_end(out: &mut Vec<u8>) {
    out.push(FINAL);
}
