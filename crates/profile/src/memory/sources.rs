//! The sources of allocations of one VM, as stacks.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use lj_trace_streams::hash::AddrMap;
use lj_trace_streams::memprof::Source;
use lj_trace_streams::{Annotation, Symbol, SymbolTable, reserved, symtab};
use lj_trace_text::chunk_name;
use lj_trace_unwind::symbols::demangle::demangle;

use crate::frame::Frame;
use crate::model::{StackId, StackTable};

/// What the sources of a VM's allocations mean at this point of the stream, and their stacks.
///
/// A source's stack is looked up once, and again only when a symbol changes what the source means.
#[derive(Debug, Default)]
pub struct Sources {
    symbols: SymbolTable,
    names: HashMap<u64, Arc<str>>,
    stacks: AddrMap<Source, StackId>,
    /// The sources in `stacks` by prototype, so that those of a freed prototype can be dropped.
    lua: AddrMap<u64, Vec<Source>>,
    /// The sources that are C functions: a new symbol may cover any of them.
    c: Vec<Source>,
    /// The sources that are traces, by number.
    traces: AddrMap<u64, Vec<Source>>,
    /// The Lua lines behind sources on traces, where a recording knows more than a stream says.
    lines: HashMap<Source, Vec<Frame>>,
    /// The frame that all its stacks begin with: the VM.
    root: Option<Frame>,
    /// Once all stacks take this many bytes of memory, further sources share one frame.
    limit: Option<usize>,
}

impl Sources {
    /// The sources of a VM whose stacks all begin with `root`.
    pub fn of_vm(root: Frame) -> Self {
        Self { root: Some(root), ..Self::default() }
    }

    /// Once all stacks take this many bytes of memory, shows further sources together, as [`Frame::Rare`].
    #[must_use]
    pub fn within(self, bytes: usize) -> Self {
        Self { limit: Some(bytes), ..self }
    }

    /// Adds a symbol. Losses that the stream notes go to `losses`.
    pub fn symbol(&mut self, symbol: &Symbol, losses: &mut BTreeMap<String, u64>) {
        match Annotation::from_symbol(symbol) {
            Some(Annotation::FunctionName { proto, name }) => {
                if self.names.insert(proto, name.clone()) != Some(name) {
                    self.forget(proto);
                }
                return;
            }
            Some(Annotation::Property { key, value }) => {
                if let (Some(reason), Ok(count)) = (key.strip_prefix("lost "), value.parse::<u64>()) {
                    *losses.entry(reason.to_owned()).or_insert(0) += count;
                }
                return;
            }
            Some(Annotation::Writer | Annotation::State(_) | Annotation::Line(_) | Annotation::Compiled { .. }) => {
                return;
            }
            None => {}
        }
        if !self.symbols.insert(symbol.clone()) {
            return;
        }
        match symbol {
            Symbol::Lua { addr, .. } => {
                self.names.remove(addr);
                self.forget(*addr);
            }
            Symbol::C { .. } => drop_all(&mut self.stacks, std::mem::take(&mut self.c)),
            Symbol::Trace(trace) => {
                drop_all(&mut self.stacks, self.traces.remove(&trace.number).unwrap_or_default());
            }
        }
    }

    /// Gives the Lua line of a source on a trace.
    pub fn line(&mut self, source: Source, frames: Vec<Frame>) {
        self.stacks.remove(&source);
        self.lines.insert(source, frames);
    }

    /// Forgets a freed prototype: its address has no name until a symbol says what is there then.
    pub fn forget_prototype(&mut self, proto: u64) {
        self.names.remove(&proto);
        self.symbols.remove_lua(proto);
        self.forget(proto);
    }

    /// Forgets everything that [`line`](Self::line) was told.
    pub fn forget_lines(&mut self) {
        self.lines = HashMap::new();
        drop_all(&mut self.stacks, self.traces.drain().flat_map(|(_, sources)| sources).collect());
    }

    /// Forgets the stacks of all sources: they have other numbers now, so they are looked up again.
    pub fn forget_stacks(&mut self) {
        self.stacks.clear();
        self.lua.clear();
        self.c.clear();
        self.traces.clear();
    }

    fn forget(&mut self, proto: u64) {
        drop_all(&mut self.stacks, self.lua.remove(&proto).unwrap_or_default());
    }

    /// The stack of a source at this point of the stream.
    #[inline]
    pub fn stack(&mut self, source: Source, stacks: &mut StackTable) -> StackId {
        match self.stacks.get(&source) {
            Some(&stack) => stack,
            None => self.resolve(source, stacks),
        }
    }

    #[cold]
    fn resolve(&mut self, source: Source, stacks: &mut StackTable) -> StackId {
        match source {
            Source::Lua { proto, .. } => self.lua.entry(proto).or_default().push(source),
            Source::C { .. } => self.c.push(source),
            Source::Trace { number, .. } => self.traces.entry(number).or_default().push(source),
            Source::Internal => {}
        }
        let is_full = self.limit.is_some_and(|limit| stacks.bytes() >= limit);
        let frames = if is_full { vec![Frame::Rare] } else { self.frames(source) };
        let frames = self.root.iter().cloned().chain(frames);
        let frames: Vec<_> = frames.map(|frame| stacks.intern(frame)).collect();
        let stack = stacks.stack(&frames);
        self.stacks.insert(source, stack);
        stack
    }

    /// The frames of a source, root first.
    fn frames(&self, source: Source) -> Vec<Frame> {
        if let Some(line) = self.lines.get(&source) {
            return line.clone();
        }
        match source {
            Source::Internal => vec![Frame::Internal],
            Source::Lua { proto, line } => self.lua_frames(proto, line),
            Source::C { addr } => vec![self.native(addr)],
            Source::Trace { number, mcode } => {
                let known = self.symbols.trace(number).filter(|trace| mcode.is_none() || trace.mcode == mcode);
                let number = Some(symtab::own_number(number));
                let Some((trace, symbol)) = known.and_then(|trace| Some((trace, self.symbols.lua(trace.proto)?)))
                else {
                    return vec![Frame::Trace { number, start: None }];
                };
                let chunk = chunk_name(&symbol.chunk);
                if trace.proto == reserved::LOST_START {
                    return vec![Frame::Trace { number, start: Some(chunk.into()) }];
                }
                // The function that the trace starts in, and the trace itself in place of a line.
                let mut frames = self.lua_frames(trace.proto, trace.line);
                frames.pop_if(|frame| matches!(frame, Frame::Line { .. }));
                frames.push(Frame::Trace { number, start: Some(format!("@{chunk}:{}", trace.line).into()) });
                frames
            }
        }
    }

    fn lua_frames(&self, proto: u64, line: u64) -> Vec<Frame> {
        let Some(symbol) = self.symbols.lua(proto) else { return vec![no_symbol()] };
        let chunk: Arc<str> = chunk_name(&symbol.chunk).into();
        if let unresolved @ Frame::Unresolved { .. } = Frame::of_symbol(&chunk) {
            return vec![unresolved];
        }
        let number = |line| u32::try_from(line).unwrap_or(u32::MAX);
        let first_line = number(symbol.first_line);
        vec![
            Frame::Chunk { chunk: chunk.clone() },
            Frame::Lua {
                name: self.names.get(&proto).cloned(),
                chunk: chunk.clone(),
                first_line,
                line: None,
                compiled: false,
            },
            Frame::Line { chunk, line: number(line) },
        ]
    }

    fn native(&self, addr: u64) -> Frame {
        match self.symbols.c_name(addr) {
            Some(name) => Frame::of_symbol(&demangle(&String::from_utf8_lossy(name))),
            None => no_symbol(),
        }
    }
}

fn no_symbol() -> Frame {
    Frame::Unresolved { reason: "no symbol".into() }
}

fn drop_all(stacks: &mut AddrMap<Source, StackId>, sources: Vec<Source>) {
    for source in sources {
        stacks.remove(&source);
    }
}

#[cfg(test)]
mod tests {
    use lj_trace_streams::TraceSymbol;

    use super::*;

    struct Names {
        sources: Sources,
        stacks: StackTable,
    }

    impl Names {
        fn new() -> Self {
            Self { sources: Sources::default(), stacks: StackTable::default() }
        }

        fn symbol(&mut self, symbol: Symbol) {
            self.sources.symbol(&symbol, &mut BTreeMap::new());
        }

        fn of(&mut self, source: Source) -> String {
            let stack = self.sources.stack(source, &mut self.stacks);
            self.stacks.add(stack, 0, 1);
            let frames = self.sources.frames(source);
            // The remembered stack equals a fresh look-up.
            let ids: Vec<_> = frames.iter().map(|frame| self.stacks.intern(frame.clone())).collect();
            assert_eq!(self.stacks.stack(&ids), stack);
            frames.iter().map(Frame::to_string).collect::<Vec<_>>().join(";")
        }
    }

    #[test]
    fn a_source_means_what_the_newest_symbol_says() {
        let mut names = Names::new();
        let lua = Source::Lua { proto: 0x1000, line: 7 };
        assert_eq!(names.of(lua), "[unknown: no symbol]");
        names.symbol(Symbol::lua(0x1000, b"@a.lua", 5));
        assert_eq!(names.of(lua), "a.lua;@a.lua:5;a.lua:7");
        names.symbol(Annotation::FunctionName { proto: 0x1000, name: "work".into() }.to_symbol());
        assert_eq!(names.of(lua), "a.lua;work@a.lua:5;a.lua:7");
        names.symbol(Symbol::lua(0x1000, b"@b.lua", 0));
        assert_eq!(names.of(lua), "b.lua;main chunk@b.lua:0;b.lua:7");
        names.symbol(Symbol::lua(0x1000, b"=[unknown: collected]", 0));
        assert_eq!(names.of(lua), "[unknown: collected]");

        let c = Source::C { addr: 0x5010 };
        names.symbol(Symbol::c(0x5000, "below"));
        assert_eq!(names.of(c), "below");
        names.symbol(Symbol::c(0x5010, "exactly"));
        assert_eq!(names.of(c), "exactly");
    }

    #[test]
    fn a_trace_says_where_it_starts() {
        let mut names = Names::new();
        let trace = Source::Trace { number: 3, mcode: None };
        assert_eq!(names.of(trace), "TRACE [3]");
        names.symbol(Symbol::lua(0x1000, b"@a.lua", 5));
        names.symbol(Symbol::Trace(TraceSymbol { number: 3, mcode: None, proto: 0x1000, line: 6 }));
        assert_eq!(names.of(trace), "a.lua;@a.lua:5;TRACE [3] started at @a.lua:6");
        // The number was reused for a trace that starts elsewhere.
        let number = 3 + symtab::GENERATION;
        let later = Source::Trace { number, mcode: None };
        names.symbol(Symbol::Trace(TraceSymbol { number, mcode: None, proto: 0x1000, line: 9 }));
        assert_eq!(names.of(later), "a.lua;@a.lua:5;TRACE [3] started at @a.lua:9");
        names.symbol(Symbol::lua(reserved::LOST_START, b"=[unknown: its start was lost]", 0));
        names.symbol(Symbol::Trace(TraceSymbol { number, mcode: None, proto: reserved::LOST_START, line: 0 }));
        assert_eq!(names.of(later), "TRACE [3] started at [unknown: its start was lost]");
        // Streams of version 2 distinguish traces with the same number by their machine code.
        names.symbol(Symbol::Trace(TraceSymbol { number: 4, mcode: Some(0x70), proto: 0x1000, line: 6 }));
        let of_version_2 = names.of(Source::Trace { number: 4, mcode: Some(0x70) });
        assert_eq!(of_version_2, "a.lua;@a.lua:5;TRACE [4] started at @a.lua:6");
        assert_eq!(names.of(Source::Trace { number: 4, mcode: Some(0x80) }), "TRACE [4]");
    }
}
