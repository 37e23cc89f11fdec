//! The symbol table (`ljs`) that every stream starts with, and its entries, which also come as events later.
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

/// The newest version: the one today's reference parsers accept.
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
    /// A C function: reaches up to the next symbol, for the format has no sizes.
    C {
        /// Where it starts.
        addr: u64,
        /// Its name, not demangled by the format.
        name: Arc<[u8]>,
    },
    /// A trace.
    Trace(TraceSymbol),
}

/// LuaJIT numbers traces below it. In lj-trace's streams, a number that is given to a trace with another start goes on
/// as one that is this much higher.
pub const GENERATION: u64 = 1 << 16;

/// Numbers of that kind are below it: what is not is none of a trace.
const GENERATIONS_END: u64 = GENERATION << 12;

/// The number that LuaJIT gives to a trace which a stream calls so.
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
    /// Address of the prototype it starts in.
    pub proto: u64,
    /// Line it starts at.
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

/// Reads a whole symbol table: its version and its entries in order.
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

/// Appends an entry of a symbol table. What the version has no entry for is left out.
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
