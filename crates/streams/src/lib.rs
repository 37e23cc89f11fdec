//! The binary streams of Tarantool's in-process profilers, read and written.
//!
//! A stream is a symbol table (`ljs`) followed by either sysprof samples (`ljp`) or memprof events (`ljm`). The grammars
//! are in `src/lj_symtab.h`, `src/lj_sysprof.h` and `src/lj_memprof.h` of tarantool/luajit; the modules here document the
//! differences between versions. Reading and writing go record by record: a reader holds the symbols and one record, a
//! writer one buffer.
//!
//! Integers are ULEB128. Strings are a length and raw bytes (chunknames may contain any byte). Addresses are those of the
//! profiled process.
//!
//! LuaJIT's sources: [`symtab`], [`sysprof`], [`memprof`].
//!
//! [`symtab`]: https://github.com/tarantool/luajit/blob/b52fe9795db249e7803aeef22c2ed6129a97aaeb/src/lj_symtab.h#L21-L58
//! [`sysprof`]: https://github.com/tarantool/luajit/blob/b52fe9795db249e7803aeef22c2ed6129a97aaeb/src/lj_sysprof.h#L26-L89
//! [`memprof`]: https://github.com/tarantool/luajit/blob/b52fe9795db249e7803aeef22c2ed6129a97aaeb/src/lj_memprof.h#L22-L89

mod annotation;
mod bytes;
mod error;
pub mod hash;
pub mod memprof;
mod record;
mod symbols;
pub mod symtab;
pub mod sysprof;

use std::io::Read;

pub use annotation::{Annotation, reserved};
pub use error::{StreamError, WriteError};
pub use lj_trace_common::vm::VmState;
pub use memprof::{MemprofReader, MemprofWriter};
pub use record::end_after;
pub use symbols::{CSymbol, LuaSymbol, SymbolTable};
pub use symtab::{Symbol, TraceSymbol, VERSION as SYMTAB_VERSION};
pub use sysprof::{SysprofReader, SysprofWriter};

/// A stream opened for reading. Its symbol table has been read; its samples or events have not.
#[derive(Debug)]
pub struct Stream<R> {
    /// Version of the symbol table (`ljs`): 1, 2 or 3.
    pub symtab_version: u8,
    /// The symbols in the order of the stream.
    pub symbols: Vec<Symbol>,
    /// What follows the symbol table.
    pub body: Body<R>,
}

/// The part of a stream that follows its symbol table.
#[derive(Debug)]
pub enum Body<R> {
    /// Samples of CPU time.
    Sysprof(SysprofReader<R>),
    /// Allocations, reallocations and frees.
    Memprof(MemprofReader<R>),
}

impl<R: Read> Stream<R> {
    /// Reads the symbol table and the prologue of the body. `input` needs no further buffering.
    ///
    /// # Errors
    /// [`StreamError::NotAStream`] and [`StreamError::UnsupportedVersion`] if `input` is something else; the other errors
    /// if the symbol table is cut off or damaged.
    pub fn open(input: R) -> Result<Self, StreamError> {
        let mut bytes = bytes::ByteReader::new(input);
        let (symtab_version, symbols) = symtab::read(&mut bytes)?;
        let (magic, version) = bytes.prologue("the prologue of the samples or events")?;
        let body = match &magic {
            b"ljp" => Body::Sysprof(SysprofReader::after_prologue(bytes, version)?),
            b"ljm" => Body::Memprof(MemprofReader::after_prologue(bytes, version)?),
            _ => {
                return Err(StreamError::invalid(
                    bytes.offset() - 7,
                    "neither samples (ljp) nor events (ljm) follow the symbol table",
                ));
            }
        };
        Ok(Self { symtab_version, symbols, body })
    }
}

#[cfg(test)]
mod tests;
