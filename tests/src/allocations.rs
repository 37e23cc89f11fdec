//! Memprof streams as the tests look at them: every event with the name of its source at that moment.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use lj_trace_streams::memprof::{Event, Source};
use lj_trace_streams::{Body, Stream, Symbol};

/// What caused an event.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// The VM itself.
    Internal,
    /// A line of a chunk, whose name is as LuaJIT keeps it.
    Lua(String, u64),
    /// A C function.
    C(String),
    /// A trace.
    Trace(u64),
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// New memory.
    Alloc,
    /// Another size for memory that there is.
    Realloc,
    /// Memory given back.
    Free,
}

/// An event. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Who.
    pub place: Place,
    /// What.
    pub kind: Kind,
    /// Where the memory was; 0 if it is new.
    pub old_address: u64,
    /// Its size before; 0 if it is new.
    pub old: u64,
    /// Where the memory is; 0 if it is freed.
    pub address: u64,
    /// Its size afterwards; 0 if it is freed.
    pub new: u64,
}

/// What a place does to the heap: how often it does the same.
pub type Counts = BTreeMap<(Place, Kind, u64, u64), u64>;

/// A memprof stream.
#[derive(Clone, Debug)]
pub struct Allocations {
    /// Version of the events.
    pub version: u8,
    /// The events in order.
    pub events: Vec<Allocation>,
}

impl Allocations {
    /// Reads a whole stream.
    ///
    /// # Errors
    /// If it is none, is not complete, or has an event of a function that no symbol names.
    pub fn read(path: &Path) -> Result<Self> {
        let file = File::open(path).with_context(|| format!("no stream {}", path.display()))?;
        let Stream { symbols, body, .. } = Stream::open(file)?;
        let Body::Memprof(mut reader) = body else { bail!("{} is no memprof stream", path.display()) };
        let mut names = Names::default();
        symbols.into_iter().for_each(|symbol| names.add(symbol));
        let mut allocations = Self { version: reader.version(), events: Vec::new() };
        while let Some(event) = reader.next_event()? {
            let event = match event {
                Event::Symbol(symbol) => {
                    names.add(symbol);
                    continue;
                }
                Event::Alloc { source, addr, size } => names.allocation(source, Kind::Alloc, (0, 0), (addr, size)),
                Event::Free { source, addr, size } => names.allocation(source, Kind::Free, (addr, size), (0, 0)),
                Event::Realloc { source, old_addr, old_size, addr, size } => {
                    names.allocation(source, Kind::Realloc, (old_addr, old_size), (addr, size))
                }
            };
            allocations.events.push(event);
        }
        Ok(allocations)
    }

    /// The events between the allocations of two strings of these lengths, which are in it only once.
    ///
    /// # Errors
    /// If they are not.
    pub fn between(&self, begin: u64, end: u64) -> Result<&[Allocation]> {
        // A string's header and end take a few bytes more.
        let is_mark =
            |event: &Allocation, length| event.kind == Kind::Alloc && (length..length + 40).contains(&event.new);
        let position = |length| self.events.iter().position(|event| is_mark(event, length));
        let begin = position(begin).context("the mark of the beginning is missing")?;
        let end = position(end).context("the mark of the end is missing")?;
        Ok(&self.events[begin + 1..end])
    }

    /// Checks that all memory that is freed or changes its size was there, with the size that is said; what was
    /// there before the recording began is believed. Each address has one size only.
    ///
    /// # Errors
    /// At the first event that contradicts the ones before.
    pub fn check_addresses(&self) -> Result<()> {
        let mut live = HashMap::new();
        for (index, event) in self.events.iter().enumerate() {
            if event.old_address != 0
                && let Some(size) = live.remove(&event.old_address)
                && size != event.old
            {
                bail!("event {index}, {event:?}: there were {size} bytes");
            }
            if event.address != 0
                && let Some(size) = live.insert(event.address, event.new)
            {
                bail!("event {index}, {event:?}: {size} bytes were there already");
            }
        }
        Ok(())
    }
}

/// How much all these events let the heap grow, in bytes.
pub fn growth<'a>(events: impl IntoIterator<Item = &'a Allocation>) -> i64 {
    events.into_iter().map(|event| event.new as i64 - event.old as i64).sum()
}

/// How often each place does the same.
pub fn count<'a>(events: impl IntoIterator<Item = &'a Allocation>) -> Counts {
    let mut counts = Counts::new();
    for event in events {
        *counts.entry((event.place.clone(), event.kind, event.old, event.new)).or_default() += 1;
    }
    counts
}

/// The name that Lua programmers know: builds with symbols have `lj_cf_string_rep` for `string.rep`.
fn library_name(symbol: &str) -> String {
    symbol.strip_prefix("lj_cf_").map_or_else(|| symbol.to_owned(), |name| name.replacen('_', ".", 1))
}

/// What the addresses mean by now.
#[derive(Default)]
struct Names {
    lua: HashMap<u64, String>,
    c: HashMap<u64, String>,
}

impl Names {
    fn add(&mut self, symbol: Symbol) {
        match symbol {
            Symbol::Lua { addr, chunk, .. } => {
                self.lua.insert(addr, String::from_utf8_lossy(&chunk).into_owned());
            }
            Symbol::C { addr, name } => {
                self.c.insert(addr, library_name(&String::from_utf8_lossy(&name)));
            }
            Symbol::Trace(_) => {}
        }
    }

    fn allocation(&self, source: Source, kind: Kind, before: (u64, u64), after: (u64, u64)) -> Allocation {
        let name = |names: &HashMap<u64, String>, address| {
            names.get(&address).cloned().unwrap_or_else(|| format!("no symbol for {address:#x}"))
        };
        let place = match source {
            Source::Internal => Place::Internal,
            Source::Lua { proto, line } => Place::Lua(name(&self.lua, proto), line),
            Source::C { addr } => Place::C(name(&self.c, addr)),
            Source::Trace { number, .. } => Place::Trace(number),
        };
        let ((old_address, old), (address, new)) = (before, after);
        Allocation { place, kind, old_address, old, address, new }
    }
}
