//! What `parse-memprof` prints for a memprof stream: the text of the release that reads this stream version.
//!
//! LuaJIT's sources: [`lj_strfmt_wfnum`].
//!
//! [`lj_strfmt_wfnum`]: https://github.com/tarantool/luajit/blob/b52fe9795db249e7803aeef22c2ed6129a97aaeb/src/lj_strfmt_num.c#L508-L514

use std::collections::HashMap;
use std::io::{self, Write};

use lj_trace_streams::SymbolTable;
use lj_trace_streams::hash::{AddrMap, HeapMap};
use lj_trace_streams::memprof::{Event, Source};

use super::lua_order::{Interner, pairs_order, sort};
use super::sysprof::demangle;

/// The parser's options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReferenceOptions {
    /// Show only what is still held (`--leak-only`).
    pub leak_only: bool,
    /// Show KiB, MiB and GiB in place of bytes (`--human-readable`); also for versions 1 and 2, whose parsers lack the
    /// option.
    pub human_readable: bool,
}

/// A memprof stream after reading: events by source, and what became of the memory.
#[derive(Debug)]
pub struct ReferenceSummary {
    version: u8,
    locations: Locations,
    alloc: Events,
    realloc: Events,
    free: Events,
    heap: HeapMap<Chunk>,
}

/// An index into [`Locations`].
type LocationId = u32;
/// An index into [`Locations::names`].
type NameId = u32;

/// What the parser counts as one source: its `id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Location {
    addr: u64,
    line: u64,
    traceno: u64,
}

impl Location {
    /// The parser's key: `id` of `tools/utils/symtab.lua`.
    fn key(self, version: u8) -> Vec<u8> {
        let Self { addr, line, traceno } = self;
        // `%#x` of C has no prefix for zero.
        let addr = if addr == 0 { "0".to_owned() } else { format!("{addr:#x}") };
        match version {
            1 => format!("f{addr}l{line}"),
            2 => format!("f{addr}l{line}t{traceno}g1"),
            _ => format!("f{addr}l{line}t{traceno}g"),
        }
        .into_bytes()
    }
}

#[derive(Debug, Default)]
struct Locations {
    symbols: SymbolTable,
    /// Counts the changes of `symbols`: a name is valid for one epoch.
    epoch: u32,
    all: Vec<Location>,
    /// The hash of the parser's key for each location, which decides the order of its tables.
    hashes: Vec<u32>,
    /// The name of each location, and the epoch of that name.
    current: Vec<(NameId, u32)>,
    ids: AddrMap<Location, LocationId>,
    names: Vec<Vec<u8>>,
    name_hashes: Vec<u32>,
    interner: Interner,
    name_ids: HashMap<Vec<u8>, NameId>,
}

/// Events of one kind, in the order in which their locations were first seen.
#[derive(Debug, Default)]
struct Events {
    /// Index into `all` by location, plus one.
    index: Vec<u32>,
    all: Vec<SourceEvents>,
}

/// The events of one location.
#[derive(Debug)]
struct SourceEvents {
    location: LocationId,
    /// Its name when it was first seen.
    name: NameId,
    count: u64,
    freed: u64,
    allocated: u64,
    /// Whose memory this location reallocated or freed, in the order of first appearance.
    primary: Vec<Primary>,
    primary_index: AddrMap<LocationId, u32>,
}

#[derive(Debug)]
struct Primary {
    location: LocationId,
    name: NameId,
    allocated: u64,
    freed: u64,
    count: u64,
}

/// A live block.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    size: u64,
    location: LocationId,
    name: NameId,
}

/// What a source still holds.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    bytes: i128,
    allocs: u64,
    frees: u64,
}

impl ReferenceSummary {
    /// A summary without events, for streams of this version.
    pub fn new(version: u8) -> Self {
        Self {
            version,
            locations: Locations { symbols: SymbolTable::with_aliases(), ..Locations::default() },
            alloc: Events::default(),
            realloc: Events::default(),
            free: Events::default(),
            heap: HeapMap::default(),
        }
    }

    /// Adds an event. The symbols at the stream's start are the first events.
    #[inline]
    pub fn add(&mut self, event: Event) {
        let heap = &mut self.heap;
        match event {
            Event::Symbol(symbol) => {
                if self.locations.symbols.insert(symbol) {
                    self.locations.epoch += 1;
                }
            }
            Event::Alloc { source, addr, size } => {
                let (location, name) = self.locations.of(source, self.version);
                let events = self.alloc.of(location, name);
                events.count += 1;
                events.allocated = events.allocated.saturating_add(size);
                heap.insert(addr, Chunk { size, location, name });
            }
            Event::Realloc { source, old_addr, old_size, addr, size } => {
                let (location, name) = self.locations.of(source, self.version);
                let events = self.realloc.of(location, name);
                events.count += 1;
                events.freed = events.freed.saturating_add(old_size);
                events.allocated = events.allocated.saturating_add(size);
                events.overrides(heap.remove(&old_addr), size);
                heap.insert(addr, Chunk { size, location, name });
            }
            Event::Free { source, addr, size } => {
                let (location, name) = self.locations.of(source, self.version);
                let events = self.free.of(location, name);
                events.count += 1;
                events.freed = events.freed.saturating_add(size);
                events.overrides(heap.remove(&addr), 0);
            }
        }
    }

    /// Writes the parser's text.
    ///
    /// # Errors
    /// The output cannot take the bytes.
    pub fn write(&self, options: ReferenceOptions, mut out: impl Write) -> io::Result<()> {
        if !options.leak_only {
            for (title, events) in
                [("ALLOCATIONS", &self.alloc), ("REALLOCATIONS", &self.realloc), ("DEALLOCATIONS", &self.free)]
            {
                writeln!(out, "{title}")?;
                self.write_events(events, options, &mut out)?;
                writeln!(out)?;
            }
        }
        self.write_held(options, &mut out)?;
        if self.version >= 3 {
            self.write_aliases(&mut out)?;
        }
        out.flush()
    }

    fn write_events(&self, events: &Events, options: ReferenceOptions, out: &mut impl Write) -> io::Result<()> {
        let mut order = self.visiting_order(&events.all, |events| events.location);
        sort(&mut order, |&a, &b| events.all[a].count > events.all[b].count);
        for events in order.into_iter().map(|at| &events.all[at]) {
            out.write_all(self.locations.name(events.name))?;
            let allocated = self.bytes(events.allocated, options);
            let freed = self.bytes(events.freed, options);
            writeln!(out, ": {} events\t+{allocated}\t-{freed}", events.count)?;
            if !events.primary.is_empty() {
                let mut names: Vec<&[u8]> =
                    events.primary.iter().map(|primary| self.locations.name(primary.name)).collect();
                names.sort_unstable();
                writeln!(out, "\tOverrides:")?;
                for name in names {
                    out.write_all(b"\t\t")?;
                    out.write_all(name)?;
                    writeln!(out)?;
                }
                writeln!(out)?;
            }
        }
        Ok(())
    }

    fn write_held(&self, options: ReferenceOptions, out: &mut impl Write) -> io::Result<()> {
        let held = self.held();
        let hashes: Vec<u32> = held.iter().map(|&(name, _)| self.locations.name_hashes[name as usize]).collect();
        let mut order: Vec<usize> = pairs_order(&hashes).into_iter().filter(|&at| held[at].1.bytes > 0).collect();
        sort(&mut order, |&a, &b| held[a].1.bytes > held[b].1.bytes);
        writeln!(out, "HEAP SUMMARY:")?;
        for at in order {
            let Held { bytes, allocs, frees } = held[at].1;
            out.write_all(self.locations.name(held[at].0))?;
            let bytes = self.bytes(u64::try_from(bytes).unwrap_or(u64::MAX), options);
            writeln!(out, " holds {bytes}: {allocs} allocs, {frees} frees")?;
        }
        writeln!(out)
    }

    #[cfg(test)]
    pub(crate) fn held_total(&self) -> i128 {
        self.held().iter().map(|(_, held)| held.bytes).sum()
    }

    /// What each name still holds, in the order in which the parser meets the names: `form_heap_delta` of
    /// `tools/memprof/process.lua`.
    fn held(&self) -> Vec<(NameId, Held)> {
        let mut held: Vec<(NameId, Held)> = Vec::new();
        let mut index: AddrMap<NameId, usize> = AddrMap::default();
        let mut of = |name: NameId, change: &dyn Fn(&mut Held)| {
            let at = *index.entry(name).or_insert_with(|| {
                held.push((name, Held::default()));
                held.len() - 1
            });
            change(&mut held[at].1);
        };
        for at in self.visiting_order(&self.alloc.all, |events| events.location) {
            let events = &self.alloc.all[at];
            if events.allocated > 0 {
                of(events.name, &|held| {
                    held.bytes += i128::from(events.allocated);
                    held.allocs += events.count;
                });
            }
        }
        for events in [&self.realloc, &self.free] {
            for at in self.visiting_order(&events.all, |events| events.location) {
                let primaries = &events.all[at].primary;
                for at in self.visiting_order(primaries, |primary| primary.location) {
                    let primary = &primaries[at];
                    if primary.allocated > 0 {
                        of(primary.name, &|held| {
                            held.bytes += i128::from(primary.allocated);
                            held.allocs += primary.count;
                        });
                    }
                    if primary.freed > 0 {
                        of(primary.name, &|held| {
                            held.bytes -= i128::from(primary.freed);
                            held.frees += primary.count;
                        });
                    }
                }
            }
        }
        held
    }

    fn write_aliases(&self, out: &mut impl Write) -> io::Result<()> {
        let aliased = self.locations.symbols.aliased();
        if aliased.is_empty() {
            return Ok(());
        }
        writeln!(out, "ALIASES:")?;
        for (at, chunk) in aliased.iter().enumerate() {
            writeln!(out, "function_alias_{}:", at + 1)?;
            let lines = chunk.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
            for (at, line) in lines.enumerate() {
                write!(out, "{}\t| ", at + 1)?;
                out.write_all(line)?;
                writeln!(out)?;
            }
            writeln!(out, "\n")?;
        }
        Ok(())
    }

    /// The order in which `pairs` visits a table that is keyed by location.
    fn visiting_order<T>(&self, items: &[T], location: impl Fn(&T) -> LocationId) -> Vec<usize> {
        let hashes: Vec<u32> = items.iter().map(|item| self.locations.hashes[location(item) as usize]).collect();
        pairs_order(&hashes)
    }

    fn bytes(&self, bytes: u64, options: ReferenceOptions) -> String {
        match (options.human_readable, self.version) {
            (true, _) => human_readable(bytes),
            (false, 1 | 2) => format!("{bytes} bytes"),
            (false, _) => format!("{bytes}B"),
        }
    }
}

/// `human_readable_bytes` of `tools/memprof/humanize.lua`.
fn human_readable(bytes: u64) -> String {
    let mut amount = bytes as f64;
    let mut units = ["B", "KiB", "MiB", "GiB"].into_iter();
    let mut unit = units.next().unwrap_or_default();
    while amount >= 1024.0 {
        let Some(next) = units.next() else { break };
        amount /= 1024.0;
        unit = next;
    }
    if amount.fract() == 0.0 { format!("{amount:.0}{unit}") } else { format!("{}{unit}", two_decimals(amount)) }
}

/// `%.2f` of Tarantool's LuaJIT (`lj_strfmt_num.c`). It rounds a tie away from zero, while C and later LuaJIT round it
/// to an even digit: 453.125 is 453.13. Only odd multiples of 1/8 can be ties; all other numbers are clearly on one
/// side.
fn two_decimals(amount: f64) -> String {
    let eighths = amount * 8.0;
    let is_tie = eighths.fract() == 0.0 && eighths % 2.0 == 1.0;
    // The next larger number is on the right side of the tie.
    format!("{:.2}", if is_tie { amount.next_up() } else { amount })
}

impl Locations {
    /// The number of a source, and the number of its name at this point of the stream.
    #[inline]
    fn of(&mut self, source: Source, version: u8) -> (LocationId, NameId) {
        let location = match source {
            Source::Internal => Location { addr: 0, line: 0, traceno: 0 },
            Source::Lua { proto, line } => Location { addr: proto, line, traceno: 0 },
            Source::C { addr } => Location { addr, line: 0, traceno: 0 },
            Source::Trace { number, mcode } => Location { addr: mcode.unwrap_or(0), line: 0, traceno: number },
        };
        let id = match self.ids.get(&location) {
            Some(&id) => id,
            None => {
                let id = self.all.len() as LocationId;
                self.all.push(location);
                self.hashes.push(self.interner.hash(&location.key(version)));
                self.ids.insert(location, id);
                let name = self.intern(self.demangle(location, version));
                self.current.push((name, self.epoch));
                id
            }
        };
        let (mut name, epoch) = self.current[id as usize];
        if epoch != self.epoch {
            name = self.intern(self.demangle(location, version));
            self.current[id as usize] = (name, self.epoch);
        }
        (id, name)
    }

    fn intern(&mut self, name: Vec<u8>) -> NameId {
        if let Some(&id) = self.name_ids.get(&name) {
            return id;
        }
        let id = self.names.len() as NameId;
        self.names.push(name.clone());
        self.name_hashes.push(self.interner.hash(&name));
        self.name_ids.insert(name, id);
        id
    }

    fn name(&self, id: NameId) -> &[u8] {
        &self.names[id as usize]
    }

    fn demangle(&self, location: Location, version: u8) -> Vec<u8> {
        let Location { addr, line, traceno } = location;
        if traceno == 0 {
            return match self.symbols.lua(addr) {
                // Aliases exist since version 3.
                Some(lua) if version < 3 && addr != 0 => [&lua.chunk, format!(":{line}").as_bytes()].concat(),
                _ => demangle(&self.symbols, addr, line),
            };
        }
        let mut name = format!("TRACE [{traceno}]").into_bytes();
        if version < 3 {
            name.extend_from_slice(format!(" {addr:#x}").as_bytes());
        }
        let known = self.symbols.trace(traceno).filter(|trace| version >= 3 || trace.mcode == Some(addr));
        if let Some(trace) = known {
            name.extend_from_slice(b" started at ");
            let start = Location { addr: trace.proto, line: trace.line, traceno: 0 };
            name.extend_from_slice(&self.demangle(start, version));
        }
        name
    }
}

impl Events {
    #[inline]
    fn of(&mut self, location: LocationId, name: NameId) -> &mut SourceEvents {
        let slot = location as usize;
        if self.index.len() <= slot {
            self.index.resize(slot + 1, 0);
        }
        if self.index[slot] == 0 {
            self.all.push(SourceEvents {
                location,
                name,
                count: 0,
                freed: 0,
                allocated: 0,
                primary: Vec::new(),
                primary_index: AddrMap::default(),
            });
            self.index[slot] = self.all.len() as u32;
        }
        &mut self.all[self.index[slot] as usize - 1]
    }
}

impl SourceEvents {
    /// Counts that this location took memory from its owner, and gave it back at this size. Memory from before the
    /// profile has no owner.
    #[inline]
    fn overrides(&mut self, chunk: Option<Chunk>, size: u64) {
        let Some(chunk) = chunk else { return };
        let at = *self.primary_index.entry(chunk.location).or_insert_with(|| {
            self.primary.push(Primary { location: chunk.location, name: chunk.name, allocated: 0, freed: 0, count: 0 });
            self.primary.len() as u32 - 1
        });
        let primary = &mut self.primary[at as usize];
        primary.allocated = primary.allocated.saturating_add(size);
        primary.freed = primary.freed.saturating_add(chunk.size);
        primary.count += 1;
    }
}

#[cfg(test)]
mod tests {
    use lj_trace_streams::{Body, MemprofWriter, Stream, Symbol};

    use super::*;
    use crate::memprof;

    fn text(stream: &[u8], options: ReferenceOptions) -> String {
        let Stream { symbols, body, .. } = Stream::open(stream).unwrap();
        let Body::Memprof(mut reader) = body else { panic!("not a memprof stream") };
        let mut summary = ReferenceSummary::new(reader.version());
        assert!(memprof::read(symbols, &mut reader, |event| summary.add(event)).unwrap().is_none());
        let mut out = Vec::new();
        summary.write(options, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    macro_rules! golden {
        ($name:literal) => {
            (
                $name,
                include_bytes!(concat!("../../../streams/tests/golden/", $name, ".bin")).as_slice(),
                include_str!(concat!("../../../streams/tests/golden/", $name, ".txt")),
            )
        };
    }

    #[test]
    fn golden_streams_read_as_the_parsers_print_them() {
        for (name, stream, expected) in [
            golden!("memprof-jit"),
            golden!("memprof-nojit"),
            golden!("memprof-v1-jit"),
            golden!("memprof-v1-nojit"),
            golden!("memprof-v2-jit"),
            golden!("memprof-v2-nojit"),
        ] {
            assert_eq!(text(stream, ReferenceOptions::default()), expected, "{name}");
        }
    }

    #[test]
    fn the_options_change_the_text_as_in_the_parser() {
        let jit = include_bytes!("../../../streams/tests/golden/memprof-jit.bin");
        let nojit = include_bytes!("../../../streams/tests/golden/memprof-nojit.bin");
        let leak_only = ReferenceOptions { leak_only: true, human_readable: false };
        let human_readable = ReferenceOptions { leak_only: false, human_readable: true };
        assert_eq!(text(jit, leak_only), include_str!("../../../streams/tests/golden/memprof-jit.leak.txt"));
        assert_eq!(text(nojit, leak_only), include_str!("../../../streams/tests/golden/memprof-nojit.leak.txt"));
        assert_eq!(text(jit, human_readable), include_str!("../../../streams/tests/golden/memprof-jit.human.txt"));
        assert_eq!(text(nojit, human_readable), include_str!("../../../streams/tests/golden/memprof-nojit.human.txt"));
    }

    #[test]
    fn ties_are_rounded_as_luajit_rounds_them() {
        for (bytes, expected) in [
            (464_000, "453.13KiB"), // 453.125
            (1664, "1.63KiB"),      // 1.625
            (1152, "1.13KiB"),      // 1.125
            (1408, "1.38KiB"),      // 1.375
            (1920, "1.88KiB"),      // 1.875
            (1029, "1.00KiB"),
            (2048, "2KiB"),
        ] {
            assert_eq!(human_readable(bytes), expected);
        }
    }

    #[test]
    fn chunks_of_several_lines_are_listed_as_aliases() {
        let symbols = [Symbol::lua(0x1000, b"local a = {}\n\nreturn a", 0)];
        let mut writer = MemprofWriter::new(Vec::new(), 3, symbols).unwrap();
        let source = Source::Lua { proto: 0x1000, line: 1 };
        writer.event(&Event::Alloc { source, addr: 0x10, size: 40 }).unwrap();
        let leaks = text(&writer.finish().unwrap(), ReferenceOptions { leak_only: true, human_readable: false });
        assert_eq!(
            leaks,
            "HEAP SUMMARY:\nfunction_alias_1:1 holds 40B: 1 allocs, 0 frees\n\n\
             ALIASES:\nfunction_alias_1:\n1\t| local a = {}\n2\t| return a\n\n\n"
        );
    }

    #[test]
    fn amounts_read_as_in_the_parser() {
        let shown = [0, 1023, 1024, 1536, 1_572_864, 1 << 30, 5 << 40].map(human_readable);
        assert_eq!(shown, ["0B", "1023B", "1KiB", "1.50KiB", "1.50MiB", "1GiB", "5120GiB"]);
    }
}
