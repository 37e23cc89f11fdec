//! The sources of allocations of one VM, as stacks.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use lj_trace_streams::hash::AddrMap;
use lj_trace_streams::memprof::Source;
use lj_trace_streams::{Annotation, Symbol, SymbolTable, reserved, symtab};
use lj_trace_text::chunk_name;
use lj_trace_unwind::symbols::demangle::demangle;

use super::unnamed::UnnamedStacks;
use crate::frame::Frame;
use crate::model::{StackId, StackTable};

/// What the sources of a VM's allocations mean at this point of the stream, and their stacks.
///
/// A source's stack is looked up once, and again only when a symbol changes what the source means. A name that comes
/// after the first events of a function is given to their stacks, too.
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
    lines: HashMap<Source, SourceLine>,
    unnamed: UnnamedStacks,
    /// The frame that all its stacks begin with: the VM.
    root: Option<Frame>,
    /// Once all stacks take this many bytes of memory, further sources share one frame.
    limit: Option<usize>,
}

/// The Lua line of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLine {
    /// Chunk, function, line, and what the line calls, as far as they are known.
    pub frames: Vec<Frame>,
    /// The address of the function's prototype.
    pub prototype: u64,
}

/// Stacks that have got the name of their function.
#[derive(Debug)]
pub struct NamedStacks {
    pub(super) name: Arc<str>,
    pub(super) stacks: Vec<StackId>,
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

    /// Adds a symbol. Losses that the stream notes go to `losses`. Returns the `stacks` that have a name by it.
    pub fn symbol(
        &mut self,
        symbol: &Symbol,
        stacks: &mut StackTable,
        losses: &mut BTreeMap<String, u64>,
    ) -> Option<NamedStacks> {
        match Annotation::from_symbol(symbol) {
            Some(Annotation::FunctionName { proto, name }) => {
                if self.names.insert(proto, name.clone()).as_ref() == Some(&name) {
                    return None;
                }
                drop_all(&mut self.stacks, self.lua.remove(&proto).unwrap_or_default());
                return self.name_function(proto, &name, stacks);
            }
            Some(Annotation::Property { key, value }) => {
                if let (Some(reason), Ok(count)) = (key.strip_prefix("lost "), value.parse::<u64>()) {
                    *losses.entry(reason.to_owned()).or_insert(0) += count;
                }
                return None;
            }
            Some(Annotation::Writer | Annotation::State(_) | Annotation::Line(_) | Annotation::Compiled { .. }) => {
                return None;
            }
            None => {}
        }
        if !self.symbols.insert(symbol.clone()) {
            return None;
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
        None
    }

    /// Names the `stacks` that a function has without a name so far.
    pub fn name_function(&mut self, proto: u64, name: &Arc<str>, stacks: &mut StackTable) -> Option<NamedStacks> {
        let of_it = self.unnamed.take(proto);
        if of_it.is_empty() {
            return None;
        }
        self.stacks.retain(|_, stack| !of_it.contains(stack));
        of_it.iter().for_each(|stack| stacks.name_function(*stack, name));
        Some(NamedStacks { name: name.clone(), stacks: of_it })
    }

    /// Gives the Lua line of a source on a trace.
    pub fn line(&mut self, source: Source, line: SourceLine) {
        self.stacks.remove(&source);
        self.lines.insert(source, line);
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

    /// Forgets the stacks of all sources, which are looked up again. `moved` has their new numbers, by their old ones.
    pub fn renumber(&mut self, moved: &[StackId]) {
        self.unnamed.renumber(moved);
        self.stacks.clear();
        self.lua.clear();
        self.c.clear();
        self.traces.clear();
    }

    fn forget(&mut self, proto: u64) {
        self.unnamed.forget(proto);
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
        let unnamed = frames.iter().any(is_unnamed).then(|| self.function(source)).flatten();
        let frames = self.root.iter().cloned().chain(frames);
        let frames: Vec<_> = frames.map(|frame| stacks.intern(frame)).collect();
        let stack = stacks.stack(&frames);
        if let Some(prototype) = unnamed {
            self.unnamed.add(prototype, stack);
        }
        self.stacks.insert(source, stack);
        stack
    }

    /// The prototype of a source's function.
    fn function(&self, source: Source) -> Option<u64> {
        if let Some(line) = self.lines.get(&source) {
            return Some(line.prototype);
        }
        match source {
            Source::Lua { proto, .. } => Some(proto),
            Source::Trace { number, .. } => self.symbols.trace(number).map(|trace| trace.proto),
            Source::C { .. } | Source::Internal => None,
        }
    }

    /// The frames of a source, root first.
    fn frames(&self, source: Source) -> Vec<Frame> {
        if let Some(line) = self.lines.get(&source) {
            return line.frames.clone();
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

/// Whether it is a function without a name that may have one. Main chunks have none.
fn is_unnamed(frame: &Frame) -> bool {
    matches!(frame, Frame::Lua { name: None, first_line: 1.., .. })
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
            self.sources.symbol(&symbol, &mut self.stacks, &mut BTreeMap::new());
        }

        fn function(&mut self, proto: u64, name: &str) {
            self.symbol(Annotation::FunctionName { proto, name: name.into() }.to_symbol());
        }

        fn shown(&self) -> Vec<String> {
            let text = |id| self.stacks.frame(id).unwrap().to_string();
            self.stacks
                .iter(0)
                .map(|(frames, n)| format!("{} {n}", frames.iter().map(|&id| text(id)).collect::<Vec<_>>().join(";")))
                .collect()
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
    fn a_name_that_comes_late_is_the_name_of_earlier_events() {
        let mut names = Names::new();
        let lua = |proto| Source::Lua { proto, line: 7 };
        let trace = Source::Trace { number: 3, mcode: None };
        names.symbol(Symbol::lua(0x1000, b"@a.lua", 5));
        names.symbol(Symbol::Trace(TraceSymbol { number: 3, mcode: None, proto: 0x1000, line: 7 }));
        names.of(lua(0x1000));
        names.of(trace);
        names.function(0x1000, "work");
        assert_eq!(
            names.shown(),
            ["a.lua;work@a.lua:5;a.lua:7 1", "a.lua;work@a.lua:5;TRACE [3] started at @a.lua:7 1"]
        );
        assert_eq!(names.of(lua(0x1000)), "a.lua;work@a.lua:5;a.lua:7");
        assert_eq!(names.shown()[0], "a.lua;work@a.lua:5;a.lua:7 2");
        // Two functions of one line: the name of one is not the other's.
        for proto in [0x2000, 0x3000] {
            names.symbol(Symbol::lua(proto, b"@min.lua", 1));
            names.of(lua(proto));
        }
        names.function(0x2000, "first");
        names.of(lua(0x2000));
        names.function(0x3000, "second");
        names.of(lua(0x3000));
        let of_min = [
            "min.lua;@min.lua:1;min.lua:7 2",
            "min.lua;first@min.lua:1;min.lua:7 1",
            "min.lua;second@min.lua:1;min.lua:7 1",
        ];
        assert_eq!(names.shown()[2..], of_min);
        // The function is another one since.
        names.symbol(Symbol::lua(0x4000, b"@b.lua", 5));
        names.of(lua(0x4000));
        names.sources.forget_prototype(0x4000);
        names.symbol(Symbol::lua(0x4000, b"@b.lua", 5));
        names.function(0x4000, "later");
        names.of(lua(0x4000));
        assert_eq!(names.shown()[5..], ["b.lua;@b.lua:5;b.lua:7 1", "b.lua;later@b.lua:5;b.lua:7 1"]);
    }

    #[test]
    fn a_name_that_comes_late_is_the_name_of_lines_on_traces() {
        let mut names = Names::new();
        let frames = |line| vec![Frame::lua(None, b"@a.lua", 5, None), Frame::Line { chunk: "a.lua".into(), line }];
        for (address, line, prototype) in [(1, 6, 0x1000), (2, 6, 0x1000), (3, 7, 0x1000), (4, 8, 0x2000)] {
            let source = Source::Trace { number: 3, mcode: Some(address) };
            names.sources.line(source, SourceLine { frames: frames(line), prototype });
            names.of(source);
        }
        names.sources.forget_lines();
        names.sources.name_function(0x1000, &"work".into(), &mut names.stacks);
        assert_eq!(names.shown(), ["work@a.lua:5;a.lua:6 2", "work@a.lua:5;a.lua:7 1", "@a.lua:5;a.lua:8 1"]);
    }

    #[test]
    fn a_function_whose_name_some_of_its_stacks_have_has_one_name() {
        let mut names = Names::new();
        let frames = |name: Option<&str>| {
            vec![Frame::lua(name.map(Into::into), b"@a.lua", 5, None), Frame::Line { chunk: "a.lua".into(), line: 6 }]
        };
        // The second line was found when the name was known, but nobody was told the name yet.
        for (address, name) in [(1, None), (2, Some("work"))] {
            let source = Source::Trace { number: 3, mcode: Some(address) };
            names.sources.line(source, SourceLine { frames: frames(name), prototype: 0x1000 });
            names.of(source);
        }
        names.sources.name_function(0x1000, &"work".into(), &mut names.stacks);
        assert_eq!(names.shown(), ["work@a.lua:5;a.lua:6 2"]);
        names.of(Source::Trace { number: 3, mcode: Some(1) });
        assert_eq!(names.shown(), ["work@a.lua:5;a.lua:6 2", "@a.lua:5;a.lua:6 1"]);
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
