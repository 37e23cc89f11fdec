//! The traces that memprof streams name by number. LuaJIT reuses these numbers after it flushes traces.
//!
//! The reference parser keeps the first start that it has seen for a number. So if the start of a number changes, the
//! stream uses another number that is higher by [`GENERATION`]; LuaJIT's own numbers are lower than that.

use std::collections::HashMap;

use lj_trace_common::allocation::TraceSeen;
use lj_trace_common::allocation::on_trace::NO_LINE;
use lj_trace_common::trace::TraceIdentity;
use lj_trace_streams::symtab::GENERATION;
use lj_trace_streams::{Symbol, TraceSymbol, reserved};

use super::events::Meaning;
use super::room::{ENTRY, NameRoom};

/// The most starts of a number. Further ones share the last.
const MAX_STARTS: usize = 4096;

/// Stands for numbers that LuaJIT never uses.
const NO_NUMBER: u64 = u32::MAX as u64;

/// The start of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// A line of a prototype.
    At {
        /// The prototype's address.
        proto: u64,
        /// The line.
        line: u32,
        /// The function at that address, at that time.
        meaning: Meaning,
    },
    /// The start is not known.
    Lost,
}

/// The traces of a VM's stream.
#[derive(Debug, Default)]
pub struct StreamTraces {
    /// The trace that a number has now, and the line at which it starts.
    now: HashMap<u64, (TraceIdentity, u32)>,
    /// All starts that each number has had. The index of a start is its generation in the stream.
    starts: HashMap<u64, Vec<Start>>,
    /// Whether the stream has the symbol for a lost start.
    knows_lost: bool,
}

/// The number of a trace in a stream, and the symbols to write before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// The number in the stream.
    pub number: u64,
    /// The symbols that define it.
    pub symbols: Vec<Symbol>,
}

impl StreamTraces {
    /// Notes a trace whose events come next.
    pub fn see(&mut self, seen: &TraceSeen) {
        // LuaJIT has no higher numbers, whatever its memory says.
        if u64::from(seen.identity.number) >= GENERATION {
            return;
        }
        self.now.insert(u64::from(seen.identity.number), (seen.identity, seen.line));
    }

    /// The trace of events with a number.
    pub fn identity(&self, number: u64) -> Option<&TraceIdentity> {
        self.now.get(&number).map(|(identity, _)| identity)
    }

    /// The address of the prototype in which that trace starts, and the line.
    pub fn start(&self, number: u64) -> Option<(u64, u32)> {
        self.now.get(&number).filter(|(_, line)| *line != NO_LINE).map(|(identity, line)| (identity.startpt, *line))
    }

    /// The number in the stream of a trace with this start, as long as there is `room` for another one.
    pub fn name(&mut self, number: u64, start: Start, room: &NameRoom) -> Named {
        // Numbers that LuaJIT never uses share one number if there is no room for each.
        let is_new = !self.starts.contains_key(&number);
        let number = if number >= GENERATION && is_new && !room.take(ENTRY) { NO_NUMBER } else { number };
        let starts = self.starts.entry(number).or_default();
        let known = starts.iter().position(|known| *known == start);
        let generation = known.unwrap_or_else(|| match starts.len() {
            0 => 0,
            all if all < MAX_STARTS && room.take(ENTRY) => all,
            all => all - 1,
        });
        // A number that is not a trace's has no generations.
        let number = if number < GENERATION { number + generation as u64 * GENERATION } else { number };
        if known.is_some() {
            return Named { number, symbols: Vec::new() };
        }
        starts.truncate(generation);
        starts.push(start);
        let mut symbols = Vec::new();
        let (proto, line) = match start {
            Start::At { proto, line, .. } => (proto, u64::from(line)),
            Start::Lost => {
                if !std::mem::replace(&mut self.knows_lost, true) {
                    symbols.push(Symbol::lua(reserved::LOST_START, b"=[unknown: its start was lost]", 0));
                }
                (reserved::LOST_START, 0)
            }
        };
        symbols.push(Symbol::Trace(TraceSymbol { number, mcode: None, proto, line }));
        Named { number, symbols }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(proto: u64, line: u32) -> Start {
        Start::At { proto, line, meaning: Meaning::new(b"@a.lua", 1) }
    }

    #[test]
    fn a_number_that_starts_elsewhere_is_another_one() {
        let (mut traces, room) = (StreamTraces::default(), NameRoom::default());
        let first = traces.name(7, at(0x1000, 3), &room);
        assert_eq!(first.number, 7);
        let symbol = |number, proto, line| Symbol::Trace(TraceSymbol { number, mcode: None, proto, line });
        assert_eq!(first.symbols, [symbol(7, 0x1000, 3)]);
        assert_eq!(traces.name(7, at(0x1000, 3), &room), Named { number: 7, symbols: Vec::new() });
        let other = traces.name(7, at(0x1000, 9), &room);
        assert_eq!(other, Named { number: 7 + GENERATION, symbols: vec![symbol(7 + GENERATION, 0x1000, 9)] });
        assert_eq!(traces.name(7, at(0x1000, 3), &room).number, 7, "compiled again");
        let reused = Start::At { proto: 0x1000, line: 3, meaning: Meaning::new(b"@b.lua", 1) };
        assert_eq!(traces.name(7, reused, &room).number, 7 + 2 * GENERATION, "another function at the same place");
        assert_eq!(traces.name(8, at(0x1000, 3), &room).number, 8);
    }

    #[test]
    fn a_start_that_is_lost_says_so() {
        let (mut traces, room) = (StreamTraces::default(), NameRoom::default());
        let lost = traces.name(7, Start::Lost, &room);
        assert_eq!((lost.number, lost.symbols.len()), (7, 2));
        assert_eq!(traces.name(7, at(0x1000, 3), &room).number, 7 + GENERATION);
        assert_eq!(traces.name(7, Start::Lost, &room).number, 7);
        let again = traces.name(8, Start::Lost, &room);
        assert_eq!((again.number, again.symbols.len()), (8, 1));
        let garbage = traces.name(0x8cd0_0078, Start::Lost, &room);
        assert_eq!(garbage.number, 0x8cd0_0078);
    }

    #[test]
    fn there_is_an_end_to_generations() {
        let (mut traces, room) = (StreamTraces::default(), NameRoom::default());
        for line in 0..MAX_STARTS as u32 + 10 {
            let named = traces.name(7, at(0x1000, line), &room);
            assert_eq!(named.number, 7 + u64::from(line).min(MAX_STARTS as u64 - 1) * GENERATION);
            assert_eq!(named.symbols.len(), 1);
        }
    }

    #[test]
    fn without_room_a_number_keeps_its_last_start() {
        let (mut traces, room) = (StreamTraces::default(), NameRoom::of(3 * ENTRY));
        let number = |line| 7 + u64::from(line) * GENERATION;
        for line in 0..4 {
            assert_eq!(traces.name(7, at(0x1000, line), &room).number, number(line));
        }
        for line in 4..10 {
            assert_eq!(traces.name(7, at(0x1000, line), &room).number, number(3), "they share it");
        }
        assert_eq!(traces.name(7, at(0x1000, 1), &room).number, number(1), "what is known stays");
        assert_eq!(traces.name(8, at(0x1000, 1), &room).number, 8);
        let garbage = [0x8cd0_0078, 0x8cd0_0079].map(|number| traces.name(number, Start::Lost, &room).number);
        assert_eq!(garbage, [NO_NUMBER; 2]);
    }
}
