//! Symbols by address.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::hash::AddrMap;
use super::{Symbol, TraceSymbol};

/// A Lua function in the symbol table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LuaSymbol {
    /// The chunkname: `@path`, `=name` or source text.
    pub chunk: Arc<[u8]>,
    /// The line of the function's definition; 0 for a main chunk.
    pub first_line: u64,
}

/// The C function that contains an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CSymbol {
    /// The start of the function, at or below the address.
    pub start: u64,
    /// Its name.
    pub name: Arc<[u8]>,
}

/// The symbols of a stream up to one point. A later symbol at an address replaces an earlier one.
#[derive(Clone, Debug, Default)]
pub struct SymbolTable {
    lua: BTreeMap<u64, LuaSymbol>,
    c: AddrMap<u64, Arc<[u8]>>,
    c_starts: BTreeSet<u64>,
    traces: BTreeMap<u64, TraceSymbol>,
    /// Whether to number chunknames with several lines. Numbered chunknames are never dropped.
    numbers_aliases: bool,
    aliases: HashMap<Arc<[u8]>, usize>,
    aliased: Vec<Arc<[u8]>>,
}

impl SymbolTable {
    /// An empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty table that numbers chunknames with several lines as the reference parsers do ([`alias`](Self::alias)).
    pub fn with_aliases() -> Self {
        Self { numbers_aliases: true, ..Self::default() }
    }

    /// Removes the Lua function at `addr`.
    pub fn remove_lua(&mut self, addr: u64) {
        self.lua.remove(&addr);
    }

    /// Adds or replaces a symbol; returns whether that changed anything.
    pub fn insert(&mut self, symbol: Symbol) -> bool {
        match symbol {
            Symbol::Lua { addr, chunk, first_line } => {
                if self.numbers_aliases && chunk.contains(&b'\n') && !self.aliases.contains_key(&chunk) {
                    self.aliased.push(chunk.clone());
                    self.aliases.insert(chunk.clone(), self.aliased.len());
                }
                let symbol = LuaSymbol { chunk, first_line };
                let old = self.lua.insert(addr, symbol.clone());
                old != Some(symbol)
            }
            Symbol::C { addr, name } => match self.c.entry(addr) {
                Entry::Occupied(known) if Arc::ptr_eq(known.get(), &name) || *known.get() == name => false,
                Entry::Occupied(mut known) => {
                    known.insert(name);
                    true
                }
                Entry::Vacant(new) => {
                    new.insert(name);
                    self.c_starts.insert(addr)
                }
            },
            Symbol::Trace(trace) => self.traces.insert(trace.number, trace) != Some(trace),
        }
    }

    /// Adds a C function with its extent, and a boundary after it, so that no address after it takes its name: look-ups in
    /// the format take the nearest symbol below an address, and know no sizes.
    ///
    /// If functions nest or overlap, the function that starts later wins within its extent.
    pub fn insert_c_range(&mut self, start: u64, end: u64, name: &str) {
        self.insert(Symbol::c(start, name));
        if end > start && !self.c.contains_key(&end) {
            self.insert(Symbol::c(end, UNKNOWN));
        }
    }

    /// The Lua function whose prototype is at `addr`.
    pub fn lua(&self, addr: u64) -> Option<&LuaSymbol> {
        self.lua.get(&addr)
    }

    /// The C function with the nearest start at or below `addr`.
    pub fn c(&self, addr: u64) -> Option<CSymbol> {
        let &start = self.c_starts.range(..=addr).next_back()?;
        Some(CSymbol { start, name: self.c.get(&start)?.clone() })
    }

    /// The name of the C function with the nearest start at or below `addr`.
    pub fn c_name(&self, addr: u64) -> Option<&[u8]> {
        self.c.get(self.c_starts.range(..=addr).next_back()?).map(|name| &**name)
    }

    /// The trace with this number.
    pub fn trace(&self, number: u64) -> Option<&TraceSymbol> {
        self.traces.get(&number)
    }

    /// The number under which the reference parsers list a chunkname with several lines: they print `function_alias_N` in
    /// its place.
    pub fn alias(&self, chunk: &[u8]) -> Option<usize> {
        self.aliases.get(chunk).copied()
    }

    /// The chunknames with several lines, in the order of their alias numbers.
    pub fn aliased(&self) -> &[Arc<[u8]>] {
        &self.aliased
    }

    /// All symbols: Lua functions, traces, C functions, each by address or number.
    pub fn iter(&self) -> impl Iterator<Item = Symbol> + '_ {
        let lua = self.lua.iter().map(|(&addr, symbol)| Symbol::Lua {
            addr,
            chunk: symbol.chunk.clone(),
            first_line: symbol.first_line,
        });
        let traces = self.traces.values().map(|&trace| Symbol::Trace(trace));
        let c = self.c_starts.iter().filter_map(|&addr| Some(Symbol::C { addr, name: self.c.get(&addr)?.clone() }));
        lua.chain(traces).chain(c)
    }
}

/// The name of an address that no symbol covers.
pub(super) const UNKNOWN: &str = "[unknown]";

impl Extend<Symbol> for SymbolTable {
    fn extend<T: IntoIterator<Item = Symbol>>(&mut self, symbols: T) {
        for symbol in symbols {
            self.insert(symbol);
        }
    }
}

impl FromIterator<Symbol> for SymbolTable {
    fn from_iter<T: IntoIterator<Item = Symbol>>(symbols: T) -> Self {
        let mut table = Self::new();
        table.extend(symbols);
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_behind_a_function_does_not_take_its_name() {
        let mut table = SymbolTable::new();
        table.insert_c_range(0x1000, 0x1100, "first");
        table.insert_c_range(0x1100, 0x1200, "second");
        let name = |addr| table.c(addr).map(|symbol| String::from_utf8_lossy(&symbol.name).into_owned());
        assert_eq!(name(0xfff), None);
        assert_eq!(name(0x10ff).as_deref(), Some("first"));
        assert_eq!(name(0x1100).as_deref(), Some("second"));
        assert_eq!(name(0x1200).as_deref(), Some(UNKNOWN));
    }

    #[test]
    fn aliases_count_distinct_chunks_of_several_lines() {
        let mut table = SymbolTable::with_aliases();
        table.extend([
            Symbol::lua(1, b"one\ntwo", 0),
            Symbol::lua(2, b"@file.lua", 0),
            Symbol::lua(3, b"one\ntwo", 1),
            Symbol::lua(4, b"three\n", 0),
        ]);
        assert_eq!(
            (table.alias(b"one\ntwo"), table.alias(b"three\n"), table.alias(b"@file.lua")),
            (Some(1), Some(2), None)
        );
        assert_eq!(table.aliased().len(), 2);
    }
}
